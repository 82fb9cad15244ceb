//! Claim, commit, acknowledge: in batches, over crashes, ended channels and lost replies.

mod broker;
mod lane;
mod policy;
mod steps;
mod world;

use stateright::{Model, Property};

use crate::explore::{breaks, holds};
use policy::{Flaw, Isolation};
use steps::{Action, Claims};
use world::{Faults, Kind, Phase, Published, State, Status, Why};

const ONCE: &str = "a key takes effect at most once";
const NOT_LOST: &str = "a message is at the broker, dead-lettered or done";
const ACKED_ONCE: &str = "no tag is acknowledged twice";
const NOT_BOTH: &str = "a key is not done and its message dead";
const INNOCENT: &str = "no innocent message is dead-lettered";
const TRUE_ROW: &str = "a key is completed exactly where it took effect";
const FINISHES: &str = "what is not settled can go on";
const KILLER: &str = "in the end a killer is dead-lettered for it";

impl Claims {
    /// Neither its handler fails for good nor is its key another payload's.
    fn is_innocent(&self, id: u8) -> bool {
        let message = self.messages[usize::from(id)];
        let rivals = self.messages.iter().filter(|m| m.key == message.key && m.payload != message.payload);
        matches!(message.kind, Kind::Good | Kind::Flaky) && rivals.count() == 0
    }

    fn ids(&self) -> impl Iterator<Item = u8> {
        0..u8::try_from(self.messages.len()).unwrap()
    }

    fn is_done(&self, state: &State, id: u8) -> bool {
        let message = self.messages[usize::from(id)];
        let row = state.rows[usize::from(message.key)];
        row.status == Status::Completed && row.payload == message.payload
    }

    fn effects_of(&self, state: &State, key: u8) -> u8 {
        self.ids()
            .filter(|id| self.messages[usize::from(*id)].key == key)
            .map(|id| state.effects[usize::from(id)])
            .sum()
    }

    fn is_at_rest(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.work(state, &mut actions);
        actions.is_empty()
    }

    fn has(&self, kind: Kind) -> bool {
        self.messages.iter().any(|message| message.kind == kind)
    }
}

impl Model for Claims {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.work(state, actions);
        self.trouble(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        self.fold(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONCE, |model: &Self, state: &State| {
                (0..state.rows.len()).all(|key| model.effects_of(state, u8::try_from(key).unwrap()) <= 1)
            }),
            Property::always(TRUE_ROW, |model: &Self, state: &State| {
                state.rows.iter().enumerate().all(|(key, row)| {
                    let effects = model.effects_of(state, u8::try_from(key).unwrap());
                    (row.status == Status::Completed) == (effects > 0)
                })
            }),
            Property::always(NOT_LOST, |model: &Self, state: &State| {
                model.ids().all(|id| state.is_held(id) || model.is_done(state, id))
            }),
            Property::always(NOT_BOTH, |model: &Self, state: &State| {
                state
                    .dead
                    .iter()
                    .all(|(id, _)| state.effects[usize::from(*id)] == 0 && !model.is_done(state, *id))
            }),
            Property::always(INNOCENT, |model: &Self, state: &State| {
                state.dead.iter().all(|(id, _)| !model.is_innocent(*id))
            }),
            Property::always(ACKED_ONCE, |_: &Self, state: &State| !state.acked_twice),
            Property::always(FINISHES, |model: &Self, state: &State| {
                state.settled() || !model.is_at_rest(state)
            }),
            Property::always(KILLER, |model: &Self, state: &State| {
                !state.settled()
                    || model.ids().all(|id| {
                        model.messages[usize::from(id)].kind != Kind::Killer
                            || state.dead.contains(&(id, Why::Crash))
                    })
            }),
            Property::sometimes("everything is settled", |_: &Self, state: &State| state.settled()),
            Property::sometimes("an acknowledgement is withheld from another channel", |_, state: &State| {
                state.processes.iter().any(|process| {
                    process.lanes.iter().any(|lane| match &lane.phase {
                        Phase::Settling { acks, .. } => acks.iter().any(|delivery| delivery.stale),
                        _ => false,
                    })
                })
            }),
            Property::sometimes("a redelivered message is done already", |model: &Self, state: &State| {
                state.ready.iter().any(|queued| queued.redelivered && model.is_done(state, queued.id))
            }),
        ];
        if self.faults.resets == 0 {
            properties.retain(|property| !property.name.contains("another channel"));
        }
        if self.faults.crashes + self.faults.resets == 0 {
            properties.retain(|property| !property.name.contains("done already"));
        }
        if self.processes * self.lanes > 1 {
            properties.push(Property::sometimes("a transaction waits", |model: &Self, state: &State| {
                state.processes.iter().enumerate().any(|(p, process)| {
                    (0..process.lanes.len())
                        .any(|l| process.lanes[l].phase == Phase::Idle && model.waits(state, p, l))
                })
            }));
        }
        if self.has(Kind::Flaky) {
            properties.push(Property::sometimes("a message waits for its second run", |_, state: &State| {
                state.rows.iter().any(|row| row.status == Status::InProgress && row.attempts == 1)
                    && state.ready.iter().any(|queued| !queued.redelivered)
            }));
        }
        if self.faults.lost_replies > 0 {
            properties.push(Property::sometimes(
                "the next try finds what the lost reply was about",
                |model: &Self, state: &State| {
                    state.lanes().any(|lane| {
                        lane.phase == Phase::Idle
                            && lane.todo.iter().flat_map(|p| &p.items).any(|i| model.is_done(state, i.id))
                    })
                },
            ));
        }
        if self.has(Kind::Killer) {
            properties.push(Property::sometimes(
                "an innocent suspect runs alone",
                |model: &Self, state: &State| {
                    state.lanes().any(|lane| {
                        matches!(&lane.phase, Phase::Open { portion, .. }
                        if portion.alone && model.is_innocent(portion.items[0].id))
                    })
                },
            ));
        }
        properties
    }
}

fn message(key: u8, payload: u8, kind: Kind) -> Published {
    Published { key, payload, kind }
}

/// Two processes, three messages: a copy of one key, and another that fails once.
fn ordinary() -> Claims {
    Claims {
        messages: vec![message(0, 0, Kind::Good), message(0, 0, Kind::Good), message(1, 0, Kind::Flaky)],
        processes: 2,
        lanes: 1,
        faults: faults(1, 0, 0),
        flaw: Flaw::None,
        isolation: Isolation::GroupThenAlone,
        delivery_limit: 20,
        max_attempts: 2,
    }
}

/// A message that ends its process, among innocents.
fn deadly() -> Claims {
    Claims {
        messages: vec![message(0, 0, Kind::Killer), message(1, 0, Kind::Good), message(2, 0, Kind::Good)],
        processes: 1,
        lanes: 2,
        faults: faults(0, 0, 0),
        ..ordinary()
    }
}

fn faults(crashes: u8, resets: u8, lost_replies: u8) -> Faults {
    Faults { crashes, resets, lost_replies, swallowed: 0 }
}

/// One process with two lanes and two messages.
fn two_lanes() -> Claims {
    let messages = vec![message(0, 0, Kind::Good), message(1, 0, Kind::Flaky)];
    Claims { messages, processes: 1, lanes: 2, ..ordinary() }
}

#[test]
fn two_workers_share_three_messages_and_one_dies() {
    holds("claim, one crash", ordinary());
    holds("claim, one lost reply", Claims { faults: faults(0, 0, 1), ..ordinary() });
}

#[test]
fn two_workers_share_two_messages_with_two_faults() {
    let copies = vec![message(0, 0, Kind::Good), message(0, 0, Kind::Flaky)];
    let distinct = two_lanes().messages;
    for (name, messages) in [("copies", copies), ("two keys", distinct)] {
        for with in [faults(2, 0, 0), faults(0, 1, 1), faults(1, 0, 1)] {
            // Copies of one message are the largest space of all; one process less makes it small enough.
            let processes = if name == "copies" && with.crashes == 2 { 1 } else { 2 };
            let model = Claims { messages: messages.clone(), processes, faults: with, ..ordinary() };
            holds(&format!("claim, {name}, {with:?}"), model);
        }
    }
}

#[test]
fn two_lanes_of_a_process_share_its_channel() {
    holds("lanes", Claims { faults: faults(1, 1, 0), ..two_lanes() });
}

#[test]
fn of_two_payloads_of_one_key_one_runs_and_the_other_is_dead_lettered() {
    let messages = vec![message(0, 0, Kind::Good), message(0, 1, Kind::Good), message(1, 0, Kind::Poison)];
    holds("conflict", Claims { messages, ..ordinary() });
}

#[test]
fn a_swallowed_error_is_noticed() {
    let swallowed = Faults { swallowed: 1, ..faults(1, 0, 0) };
    // One run more than the message that fails once needs.
    holds("swallowed error", Claims { faults: swallowed, max_attempts: 3, ..two_lanes() });
    let ignored = Claims { faults: swallowed, flaw: Flaw::TagIgnored, ..two_lanes() };
    breaks("COMMIT's tag ignored", ignored, NOT_LOST);
}

#[test]
fn what_is_acknowledged_too_early_or_on_another_channel_is_lost() {
    for (flaw, with) in [
        (Flaw::AckBeforeCommit, faults(1, 0, 0)),
        (Flaw::StaleAck, faults(0, 1, 0)),
        (Flaw::AckOverGap, faults(1, 0, 0)),
    ] {
        breaks(&format!("{flaw:?}"), Claims { flaw, faults: with, ..two_lanes() }, NOT_LOST);
    }
}

#[test]
fn a_tag_acknowledged_again_closes_the_channel() {
    let model = Claims { flaw: Flaw::AckTwice, faults: faults(0, 0, 0), ..two_lanes() };
    breaks("AckTwice", model, ACKED_ONCE);
}

#[test]
fn a_commit_whose_reply_was_lost_is_no_failure() {
    let flawed = Claims { flaw: Flaw::UnknownIsFailure, faults: faults(0, 0, 1), ..two_lanes() };
    breaks("UnknownIsFailure, retried", flawed.clone(), ONCE);
    breaks("UnknownIsFailure, given up", Claims { max_attempts: 1, ..flawed }, NOT_BOTH);
}

#[test]
fn a_message_that_ends_its_process_is_found_out_and_its_neighbours_are_spared() {
    for isolation in [Isolation::GroupThenAlone, Isolation::Alone] {
        holds(&format!("killer, {isolation:?}"), Claims { isolation, ..deadly() });
    }
}

#[test]
fn without_isolation_the_neighbours_of_a_killer_are_dead_lettered() {
    let never = Claims { isolation: Isolation::Never, delivery_limit: 3, ..deadly() };
    breaks("killer, Never, delivery limit 3", never, INNOCENT);
    for isolation in [Isolation::GroupAlways, Isolation::AloneInItsLane] {
        breaks(&format!("killer, {isolation:?}"), Claims { isolation, ..deadly() }, INNOCENT);
    }
}

/// The bounds of isolation: how many ends of the process a message stands that is not to blame for them.
#[test]
fn isolation_stands_one_crash_that_no_message_is_to_blame_for() {
    let pair = || {
        let mut model = deadly();
        model.messages.pop();
        model
    };
    holds("killer and one crash", Claims { faults: faults(1, 0, 0), ..pair() });
    breaks("killer and two crashes", Claims { faults: faults(2, 0, 0), ..pair() }, INNOCENT);
    // Each message of the prefetch comes back with every end of the process, run or not.
    breaks("killer, delivery limit 3", Claims { delivery_limit: 3, ..pair() }, INNOCENT);
    holds("killer, delivery limit 4", Claims { delivery_limit: 4, ..pair() });
}
