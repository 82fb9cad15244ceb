//! Mirror queue, relay, mirror, garbage collection, and failovers that lose commits.

mod steps;
mod world;

use oncely_core::decide::PrecheckMode;
use stateright::{Model, Property};

use crate::explore::{breaks, holds};
use steps::{Action, Believing, Mirrored, Relaying};
use world::{Entry, Relay, State, Written};

const TRUE_HIT: &str = "what is acknowledged on a hit is done in the history that goes on";
const ONCE: &str = "a key takes effect once in a history";
const ENTRY: &str = "an entry of this history that counts has its key";
const PENDING: &str = "a key whose record is pending is not collected";
const IN_REACH: &str = "a pending record can be relayed";
const WRITTEN: &str = "a deleted record was written";

impl Model for Mirrored {
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
        let changed = self.step(&mut state, action);
        // Which relay is the first does not matter.
        state.relays.sort_unstable();
        changed.then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(TRUE_HIT, |_: &Self, state: &State| !state.false_hit),
            Property::always(ONCE, |model: &Self, state: &State| {
                (0..model.keys).all(|key| state.row(key).effects <= 1)
            }),
            Property::always(ENTRY, |model: &Self, state: &State| {
                !model.with_epoch
                    || state.redis.iter().all(|entry| {
                        entry.epoch != state.timeline || !model.believes(entry) || state.row(entry.key).done
                    })
            }),
            Property::always(PENDING, |_: &Self, state: &State| !state.collected_pending),
            Property::always(IN_REACH, |model: &Self, state: &State| {
                model.relaying != Relaying::IdCursor
                    || (0..model.keys).all(|key| {
                        let row = state.row(key);
                        let is_held = state.relays.iter().any(|relay| relay.holds(key));
                        !row.pending || is_held || row.id > state.cursor
                    })
            }),
            Property::always(WRITTEN, |_: &Self, state: &State| !state.deleted_unwritten),
            Property::sometimes("a duplicate is acknowledged on a hit", |_: &Self, state: &State| state.hit),
        ];
        if self.failovers > 0 && self.relaying != Relaying::Flushed {
            properties.push(Property::sometimes(
                "an entry outlives its commit",
                |_: &Self, state: &State| {
                    state.redis.iter().any(|entry| entry.epoch < state.timeline && !state.row(entry.key).done)
                },
            ));
            properties.push(Property::sometimes(
                "a lost key takes effect again, its old entry still there",
                |_: &Self, state: &State| {
                    state.log.iter().any(|written| {
                        matches!(written, Written::Key { key, epoch: 1.., .. } if holds_entry(state, 0, *key))
                    })
                },
            ));
        }
        if self.retention_ends {
            properties.push(Property::sometimes("a key is collected", |_: &Self, state: &State| {
                state.log.iter().any(|written| matches!(written, Written::Collected(_)))
            }));
        }
        if self.relays > 1 {
            properties.push(Property::sometimes("two relays work at once", |_: &Self, state: &State| {
                state.relays.iter().all(|relay| *relay != Relay::Idle)
            }));
        }
        if self.relay_crashes > 0 {
            properties.push(Property::sometimes("a tag is written again", |model: &Self, state: &State| {
                state.relays.iter().any(|relay| {
                    matches!(relay, Relay::Took { key, epoch }
                        if model.with_epoch && holds_entry(state, *epoch, *key))
                })
            }));
        }
        if self.forgeries > 0 {
            properties.push(Property::sometimes(
                "a made-up entry stands under the tag of a message that has not taken effect",
                |_: &Self, state: &State| {
                    state.redis.iter().any(|entry| entry.proof.is_none() && !state.row(entry.key).done)
                },
            ));
        }
        properties
    }
}

fn holds_entry(state: &State, epoch: u8, key: u8) -> bool {
    state.redis.iter().any(|Entry { epoch: e, key: k, .. }| (*e, *k) == (epoch, key))
}

/// Two keys, each delivered twice, and a failover. No assumption about how long anything takes.
fn failover(mode: PrecheckMode) -> Mirrored {
    Mirrored {
        keys: 2,
        mode,
        with_epoch: true,
        with_freshness: true,
        relaying: Relaying::SkipLocked,
        relays: 1,
        spares_pending: true,
        minds_expiry: true,
        synchronous: false,
        slow_promotion: false,
        quiet_outage: false,
        failovers: 1,
        relay_crashes: 0,
        evictions: 0,
        retention_ends: false,
        believing: Believing::Evidence,
        forgeries: 0,
    }
}

/// As production assumes where it believes hits: what comes again comes after the failover, and that takes longer than an
/// answer of the old primary is believed.
fn slow_failover(mode: PrecheckMode) -> Mirrored {
    Mirrored { slow_promotion: true, quiet_outage: true, ..failover(mode) }
}

/// Two relays, evictions, and keys whose retention ends; no failover.
fn maintained() -> Mirrored {
    Mirrored {
        relays: 2,
        failovers: 0,
        relay_crashes: 1,
        evictions: 1,
        retention_ends: true,
        ..failover(PrecheckMode::Trust)
    }
}

/// Somebody sees all that goes to Redis and writes there what he likes; handlers fail, so messages that were asked for come again.
fn hostile() -> Mirrored {
    let quiet = Mirrored { relays: 1, relay_crashes: 0, evictions: 0, retention_ends: false, ..maintained() };
    Mirrored { forgeries: 1, ..quiet }
}

#[test]
fn who_sees_and_writes_everything_in_redis_makes_no_message_vanish() {
    holds("hostile Redis", hostile());
    holds("hostile Redis and the collection", Mirrored { keys: 1, retention_ends: true, ..hostile() });
    let over = Mirrored { keys: 1, failovers: 1, ..hostile() };
    holds("hostile Redis and a failover", Mirrored { slow_promotion: true, quiet_outage: true, ..over });
}

#[test]
fn a_value_that_a_stranger_can_write_is_no_evidence() {
    // As it was: what stands under a tag did not matter.
    breaks("any value", Mirrored { believing: Believing::AnyValue, ..hostile() }, TRUE_HIT);
    // A value that is the same for all tags, or whose tag is not looked at, is copied from another one.
    breaks("any proof", Mirrored { believing: Believing::AnyProof, ..hostile() }, TRUE_HIT);
    // One that says nothing of the time is kept until its key is forgotten.
    breaks(
        "an undated proof",
        Mirrored { believing: Believing::Undated, retention_ends: true, ..hostile() },
        ENTRY,
    );
}

#[test]
fn a_hit_that_postgresql_confirms_is_true_whatever_fails_over_when() {
    holds("verify", failover(PrecheckMode::Verify));
}

#[test]
fn a_hit_is_believed_where_a_failover_takes_longer_than_the_trust() {
    for mode in [PrecheckMode::Trust, PrecheckMode::Auto] {
        holds(&format!("{mode:?}, slow failover"), slow_failover(mode));
    }
}

#[test]
fn a_hit_is_believed_where_only_what_standbys_flushed_is_mirrored() {
    // Not even the freshness is needed then.
    let model =
        Mirrored { with_freshness: false, relaying: Relaying::Flushed, ..failover(PrecheckMode::Trust) };
    holds("trust what was flushed", model);
}

#[test]
fn a_plain_cache_and_an_epoch_alone_acknowledge_what_is_lost() {
    let plain = Mirrored { with_epoch: false, ..slow_failover(PrecheckMode::Trust) };
    breaks("plain cache", plain, TRUE_HIT);
    let epoch = Mirrored { with_freshness: false, ..slow_failover(PrecheckMode::Trust) };
    breaks("epoch alone", epoch, TRUE_HIT);
}

#[test]
fn what_is_mirrored_before_it_is_replicated_is_no_matter_of_trust() {
    // The wait for the synchronous standby is cancelled: visible, mirrored, not replicated.
    let cancelled = Mirrored { synchronous: true, ..slow_failover(PrecheckMode::Trust) };
    let unguarded = Mirrored { with_freshness: false, ..cancelled.clone() };
    breaks("mirrored before replicated", unguarded, TRUE_HIT);
    holds("mirrored before replicated, fresh answers", cancelled);
}

/// The bounds of trust: within a second of the old primary's last answer a hit is believed, wherever the history goes.
#[test]
fn trust_knows_nothing_of_the_second_in_which_the_primary_dies() {
    for mode in [PrecheckMode::Trust, PrecheckMode::Auto] {
        let loud = Mirrored { quiet_outage: false, ..slow_failover(mode) };
        breaks(&format!("{mode:?}, delivered while the primary is dead"), loud, TRUE_HIT);
        let quick = Mirrored { slow_promotion: false, ..slow_failover(mode) };
        breaks(&format!("{mode:?}, promoted within the trust"), quick, TRUE_HIT);
    }
}

#[test]
fn two_relays_evictions_and_the_collection_leave_no_entry_without_its_key() {
    holds("maintenance", maintained());
}

#[test]
fn the_collection_spares_what_is_pending_and_the_relay_what_is_past() {
    let greedy = Mirrored { spares_pending: false, ..maintained() };
    breaks("GC without a look at the mirror queue", greedy.clone(), PENDING);
    breaks("… and a relay that mirrors what is past", Mirrored { minds_expiry: false, ..greedy }, ENTRY);
}

#[test]
fn a_relay_that_deletes_first_or_goes_by_numbers_leaves_keys_out() {
    let first = Mirrored { relaying: Relaying::DeletesFirst, ..maintained() };
    // No effect is lost by it: the mirror lacks a key, and PostgreSQL answers for it.
    breaks("relay deletes first", first, WRITTEN);
    let cursor = Mirrored { relaying: Relaying::IdCursor, ..maintained() };
    breaks("id cursor", cursor, IN_REACH);
}
