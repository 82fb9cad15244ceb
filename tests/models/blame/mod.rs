//! Who is charged and who waits: good messages and a broken branch, copies of both, and an environment that breaks for a while.

mod steps;

use stateright::{Model, Property};

use crate::explore::{breaks, holds};
use steps::{Action, Kind, Policy, State, World};

const JUST: &str = "no good message spends an attempt or dies";
const LADDER: &str = "attempts lie on the ladder";
const FAIR: &str = "while the environment works a good message can run";

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(JUST, |model: &Self, state: &State| {
                model.good().all(|m| state.messages[m].attempts == 0 && !state.messages[m].dead)
            }),
            Property::always(LADDER, |_: &Self, state: &State| {
                state.messages.iter().all(|message| message.attempts <= state.tick + 1)
            }),
            Property::always(FAIR, |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.possible(state, &mut actions);
                let can_run = |m| {
                    actions.iter().any(|action| matches!(action, Action::Begin(n, _) | Action::Call(n) | Action::End(n) if *n == m))
                };
                state.broken || model.good().all(|m| state.messages[m].done || can_run(m))
            }),
            Property::sometimes("everything is settled", |_: &Self, state: &State| {
                state.messages.iter().all(|message| message.copies.is_empty())
            }),
            Property::sometimes("the broken branch is given up", |model: &Self, state: &State| {
                (0..state.messages.len()).any(|m| model.kinds[m] == Kind::Branch && state.messages[m].dead)
            }),
            Property::sometimes("a message waits for a witness", |_: &Self, state: &State| {
                state.messages.iter().any(|message| message.undecided)
            }),
        ]
    }
}

fn world(policy: Policy) -> World {
    World { policy, kinds: vec![Kind::Good, Kind::Good, Kind::Branch], copies: 2, ticks: 3, breaks: 1 }
}

#[test]
fn blame_is_just_and_fair_with_copies_and_an_outage() {
    holds("blame", world(Policy::Right));
}

#[test]
fn charging_whoever_meets_an_outage_is_unjust() {
    breaks("charging all", world(Policy::ChargesAll), JUST);
}

#[test]
fn a_success_that_began_before_the_failure_or_ended_after_the_try_is_no_witness() {
    breaks("any success is a witness", world(Policy::AnySuccess), JUST);
}

#[test]
fn waiting_with_whoever_fails_is_unfair() {
    breaks("pinning the lane", world(Policy::Pins), FAIR);
}

#[test]
fn copies_that_do_not_wait_for_their_key_run_down_the_ladder() {
    breaks("copies that spend", world(Policy::CopiesSpend), LADDER);
}
