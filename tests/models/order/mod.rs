//! Events of one ordering key: emitters, two relays, and a broker that refuses, loses confirms, or is told twice.

mod steps;

use stateright::{Model, Property};

use crate::explore::{breaks, holds};
use steps::{Action, Ordered, Policy, State};

const ORDER: &str = "no event arrives for the first time before those of its key that came before it";
const NOTHING_LOST: &str = "what is deleted has arrived";

impl Model for Ordered {
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
        // Which relay is the first does not matter.
        if state.relays[0] > state.relays[1] {
            state.relays.swap(0, 1);
            for holder in state.held.iter_mut().flatten() {
                *holder = 1 - *holder;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ORDER, |_: &Self, state: &State| !state.overtaken),
            Property::always(NOTHING_LOST, |_: &Self, state: &State| !state.lost),
        ];
        if self.policy == Policy::Right {
            properties.extend([
                Property::sometimes("all arrive", |model: &Self, state: &State| {
                    state.arrived.iter().filter(|arrived| **arrived).count() == model.events
                        && state.is_empty()
                }),
                Property::sometimes("an event arrives twice", |_: &Self, state: &State| state.repeated),
                Property::sometimes("a relay publishes what it holds no more", |_: &Self, state: &State| {
                    state.published_as_zombie
                }),
            ]);
        }
        properties
    }
}

fn world(policy: Policy) -> Ordered {
    Ordered { policy, events: 4, in_row: 2, refusals: 2, outages: 1, crashes: 1, zombies: 1 }
}

#[test]
fn order_holds_with_two_relays_refusals_outages_and_deaths() {
    holds("ordered events", world(Policy::Right));
}

#[test]
fn going_on_after_a_refusal_breaks_the_order() {
    breaks("going on after a refusal", world(Policy::GoesOn), ORDER);
}

#[test]
fn taking_behind_a_gap_breaks_the_order() {
    breaks("taking behind a gap", world(Policy::TakesBehindGaps), ORDER);
}

#[test]
fn skipping_what_another_relay_holds_breaks_the_order() {
    breaks("skipping locked heads", world(Policy::SkipsHeldHeads), ORDER);
}

#[test]
fn numbers_that_do_not_follow_the_commits_break_the_order() {
    breaks("numbers from a sequence", world(Policy::Sequence), ORDER);
}

#[test]
fn deleting_what_was_not_confirmed_loses_it() {
    breaks("deleting unconfirmed events", world(Policy::DeletesUnconfirmed), NOTHING_LOST);
}
