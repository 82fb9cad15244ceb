//! Leases: two runs of one key that may die, stand still or be told nothing, a database's clock, and a provider outside.

mod steps;
mod world;

use stateright::{Model, Property};

use crate::explore::{breaks, holds};
use steps::{Action, Leased};
use world::{Budget, MAX_CRASHES, Policy, Rule, State, Status};

const ONCE: &str = "L1: a key is completed once";
const HOLDER: &str = "L1: who completes, stores or renews holds the key";
const EARLY: &str = "L2: no lease is taken over before its end";
const TOKENS: &str = "L2: each lease has a greater token than those before";
const EFFECT: &str = "L3: a side that knows its keys sees one effect";
const EXCUSED: &str = "L4: a call beside the first has a takeover, a failure or a release behind it";
const NEVER: &str = "L5: what must not be repeated is called once";
const WINDOW: &str = "L6: no call comes when its key is forgotten";
const STORED: &str = "L7: a stored step is not called";
const SETTLED: &str = "L8: what is acknowledged is done";
const JUSTIFIED: &str = "L9: who is given up for crashes has them";
const CEILING: &str = "L11: no lease goes beyond its run";
const TOLD: &str = "L12: what is known of a call decides on it";
const TRESPASS: &str = "who has no lease leaves a held key alone";

impl Model for Leased {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.choices(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        // Which of them is the first does not matter.
        state.runs.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONCE, |_: &Self, state: &State| !state.wrong.completed_twice),
            Property::always(HOLDER, |_: &Self, state: &State| !state.wrong.not_holder),
            Property::always(EARLY, |_: &Self, state: &State| !state.wrong.taken_early),
            Property::always(TOKENS, |_: &Self, state: &State| !state.wrong.token_again),
            // Whatever commits are lost.
            Property::always(EFFECT, |model: &Self, state: &State| {
                model.rule != Rule::Pay || state.effects <= 1
            }),
            Property::always(EXCUSED, |_: &Self, state: &State| {
                state.lost_commit || state.calls <= 1 + state.excuses
            }),
            Property::always(NEVER, |model: &Self, state: &State| {
                state.lost_commit || model.rule != Rule::Once || state.calls <= 1
            }),
            Property::always(WINDOW, |_: &Self, state: &State| !state.wrong.past_window),
            Property::always(STORED, |_: &Self, state: &State| !state.wrong.stored_called),
            Property::always(SETTLED, |_: &Self, state: &State| !state.wrong.acked_open),
            Property::always(JUSTIFIED, |_: &Self, state: &State| !state.wrong.killed_nobody),
            Property::always(CEILING, |_: &Self, state: &State| !state.wrong.too_long),
            Property::always(TOLD, |_: &Self, state: &State| !state.wrong.outcome_lost),
            Property::always(TRESPASS, |_: &Self, state: &State| !state.wrong.trespassed),
        ];
        if self.policy == Policy::Right && self.budget.lost_replies > 0 {
            properties.extend([
                Property::sometimes("a run is taken over", |_: &Self, state: &State| state.seen.takeover),
                Property::sometimes("a run that lost its key is told so", |_: &Self, state: &State| {
                    state.seen.fenced
                }),
                Property::sometimes("a run finishes late", |_: &Self, state: &State| state.seen.late_finish),
                Property::sometimes("a stored result is used again", |_: &Self, state: &State| {
                    state.seen.replay
                }),
            ]);
            if self.rule == Rule::Once {
                properties
                    .push(Property::sometimes("nobody knows what happened", |_: &Self, state: &State| {
                        state.seen.unknown
                    }));
                properties.push(Property::sometimes("it becomes known late", |_: &Self, state: &State| {
                    state.seen.late_outcome
                }));
            }
        }
        if self.budget.crashes >= MAX_CRASHES {
            properties
                .push(Property::sometimes("a message is given up for crashes", |_: &Self, state: &State| {
                    state.row.status == Status::Failed && !state.seen.unknown
                }));
        }
        properties
    }
}

/// A death, a freeze, a lost answer, a torn call; no clock jumps, no commit is lost.
fn world(policy: Policy, rule: Rule) -> Leased {
    let budget = Budget { crashes: 1, freezes: 1, lost_replies: 1, tears: 1, ..Budget::default() };
    Leased { policy, rule, ticks: 5, budget, plain: false }
}

/// The same policy with other troubles.
fn with(budget: Budget, rule: Rule) -> Leased {
    Leased { budget, ..world(Policy::Right, rule) }
}

const RULES: [Rule; 3] = [Rule::Pay, Rule::Charge, Rule::Once];

#[test]
fn leases_hold_whoever_dies_stands_still_or_is_told_nothing() {
    for rule in RULES {
        holds(&format!("leases, {rule:?}"), world(Policy::Right, rule));
    }
}

#[test]
fn leases_hold_whichever_channel_goes_and_whoever_stops() {
    let budget = Budget { freezes: 1, channels: 1, releases: 1, ..Budget::default() };
    for rule in RULES {
        holds(&format!("leases, channels and stops, {rule:?}"), with(budget, rule));
    }
}

#[test]
fn leases_hold_whatever_the_clock_does_and_whichever_commit_is_lost() {
    for rule in RULES {
        let clock = Budget { freezes: 1, jumps: 1, ..Budget::default() };
        holds(&format!("leases, a clock that jumps, {rule:?}"), with(clock, rule));
        let failover = Budget { tears: 1, channels: 1, failovers: 1, ..Budget::default() };
        holds(&format!("leases, a failover, {rule:?}"), with(failover, rule));
    }
}

#[test]
fn three_deaths_and_a_worker_without_leases_are_no_harm() {
    let budget = Budget { crashes: 1, freezes: 1, ..Budget::default() };
    holds("leases beside a worker without", Leased { plain: true, ..with(budget, Rule::Pay) });
    // A fourth run begins when three leases are over.
    let deaths = Budget { crashes: 3, ..Budget::default() };
    holds("leases, three deaths", Leased { ticks: 7, ..with(deaths, Rule::Pay) });
}

#[test]
fn who_has_lost_its_lease_must_not_go_on() {
    breaks("completing without the token", world(Policy::CompleteWithoutToken, Rule::Pay), HOLDER);
    breaks("a checkpoint without the token", world(Policy::CheckpointWithoutToken, Rule::Pay), HOLDER);
    breaks("renewing by the owner's name", world(Policy::RenewByOwnerName, Rule::Pay), HOLDER);
}

#[test]
fn whose_lease_is_not_over_keeps_it() {
    breaks("a takeover from a snapshot", world(Policy::TakeoverFromSnapshot, Rule::Pay), EARLY);
    breaks("expiry by the worker's clock", world(Policy::WorkerClockExpiry, Rule::Pay), EARLY);
    breaks("a process may enter twice", world(Policy::ReentrantByProcess, Rule::Pay), TOKENS);
    breaks("no ceiling of a run", world(Policy::NoRunCeiling, Rule::Pay), CEILING);
}

#[test]
fn what_is_not_done_must_not_be_acknowledged() {
    breaks("in flight is a duplicate", world(Policy::InFlightIsDuplicate, Rule::Pay), SETTLED);
    breaks("acknowledged when claimed", world(Policy::AckAtClaim, Rule::Pay), SETTLED);
}

#[test]
fn calls_outside_keep_their_rules() {
    breaks("another key in each run", world(Policy::StepKeyPerAttempt, Rule::Pay), EFFECT);
    breaks("given back when saving failed", world(Policy::ReleaseWhenSavingFailed, Rule::Pay), EFFECT);
    breaks("… of what must not be repeated", world(Policy::ReleaseWhenSavingFailed, Rule::Once), NEVER);
    breaks("the window is ignored", world(Policy::WindowIgnored, Rule::Charge), WINDOW);
    breaks("the unknown is repeated", world(Policy::UnknownRepeated, Rule::Once), NEVER);
    breaks("a stored result is ignored", world(Policy::StoredIgnored, Rule::Mail), STORED);
    breaks("a late outcome is lost", world(Policy::LateOutcomeLost, Rule::Once), TOLD);
    breaks("who doubts gives up what is known", world(Policy::DoubterKeepsItsLease, Rule::Once), TOLD);
}

#[test]
fn who_has_no_lease_must_leave_the_key() {
    let beside = Leased { plain: true, ..world(Policy::RetakeHeld, Rule::Pay) };
    breaks("a held key is retaken", beside, TRESPASS);
    breaks("a held key is collected", world(Policy::CollectHeld, Rule::Pay), TRESPASS);
}
