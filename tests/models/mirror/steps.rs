//! What can happen next.

use oncely_core::decide::{
    HitDecision, KeyDecision, OnConflict, PrecheckMode, decide_on_hit, decide_on_key, is_hit_confirmed,
};

use super::world::{Entry, Proof, Relay, Row, Standing, State, Written};

/// What the relay does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relaying {
    /// Production: `FOR UPDATE SKIP LOCKED`, write, delete, commit.
    SkipLocked,
    /// Only what the standby has flushed.
    Flushed,
    /// Deletes and commits first, then writes.
    DeletesFirst,
    /// Takes numbers above the highest one so far.
    IdCursor,
}

/// What the worker takes for a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believing {
    /// Production: evidence of this tag, in a bucket of this time.
    Evidence,
    /// Evidence of this tag, of whatever time.
    Undated,
    /// Anything that was made with the key.
    AnyProof,
    /// Whatever stands under the tag.
    AnyValue,
}

/// A world to explore.
#[derive(Clone)]
pub struct Mirrored {
    pub keys: u8,
    pub mode: PrecheckMode,
    /// Tags hold the epoch.
    pub with_epoch: bool,
    /// A hit counts only on a fresh answer.
    pub with_freshness: bool,
    pub relaying: Relaying,
    pub relays: usize,
    /// The collection spares keys whose record may be pending. In production this is SQL (`crates/postgres/src/collect_*.sql`: nothing
    /// that is not older than the oldest mirror record), so it stands here as a function: [`Mirrored::may_collect`].
    pub spares_pending: bool,
    /// The relay leaves out records whose keys are about to be collected.
    pub minds_expiry: bool,
    /// Commits wait for the standby (until somebody cancels the wait).
    pub synchronous: bool,
    /// A standby is promoted only when every answer of the old primary is older than the worker's trust.
    pub slow_promotion: bool,
    /// Nothing is delivered while there is no primary.
    pub quiet_outage: bool,
    pub failovers: u8,
    pub relay_crashes: u8,
    pub evictions: u8,
    pub retention_ends: bool,
    pub believing: Believing,
    /// How often a stranger who sees all that goes to Redis writes there.
    pub forgeries: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Deliver(u8),
    Commit(u8),
    Replicate,
    CancelSyncWait,
    CutOff,
    Die,
    Promote,
    Take(usize, u8),
    Write(usize),
    Delete(usize),
    CrashRelay(usize),
    Evict(u8, u8),
    /// The handler fails, and the transaction is rolled back.
    Fail(u8),
    /// The stranger writes to Redis.
    Forge(Entry),
    Ask,
    TimePasses,
    RetentionEnds(u8),
    Collect(u8),
}

impl Mirrored {
    pub fn start(&self) -> State {
        State {
            timeline: 0,
            is_up: true,
            log: Vec::new(),
            visible: 0,
            flushed: 0,
            is_standby_connected: true,
            open: Vec::new(),
            next_id: 1,
            is_past: vec![false; self.keys.into()],
            redis: Vec::new(),
            seen_tags: Vec::new(),
            seen_proofs: Vec::new(),
            forgeries: self.forgeries,
            relays: vec![Relay::Idle; self.relays],
            cursor: 0,
            standing: None,
            deliveries: vec![2; self.keys.into()],
            failovers: self.failovers,
            relay_crashes: self.relay_crashes,
            evictions: self.evictions,
            hit: false,
            false_hit: false,
            collected_pending: false,
            deleted_unwritten: false,
        }
    }

    /// The epoch as it stands in a tag.
    fn tagged(&self, epoch: u8) -> u8 {
        if self.with_epoch { epoch } else { 0 }
    }

    /// Does an entry say anything?
    pub fn believes(&self, entry: &Entry) -> bool {
        match self.believing {
            Believing::AnyValue => true,
            Believing::AnyProof => entry.proof.is_some(),
            Believing::Undated => entry.proof.is_some_and(|proof| proof.is_of(entry)),
            Believing::Evidence => entry.proof.is_some_and(|proof| proof.is_of(entry) && !proof.is_over),
        }
    }

    /// All that a stranger who sees everything and has no key can write under a tag that he has seen.
    fn forgeries(&self, state: &State, actions: &mut Vec<Action>) {
        if state.forgeries == 0 {
            return;
        }
        for (epoch, key) in &state.seen_tags {
            let proofs = state.seen_proofs.iter().copied().map(Some);
            for proof in std::iter::once(None).chain(proofs) {
                let entry = Entry { epoch: *epoch, key: *key, proof };
                if !state.redis.contains(&entry) {
                    actions.push(Action::Forge(entry));
                }
            }
        }
    }

    /// The relay's choice.
    fn may_take(&self, state: &State, key: u8) -> bool {
        let row = state.row(key);
        row.pending
            // A deletion that waits for the standby holds its lock.
            && Row::of(&state.log, key).pending
            && !state.relays.iter().any(|relay| relay.holds(key))
            && match self.relaying {
                Relaying::SkipLocked | Relaying::DeletesFirst => true,
                Relaying::Flushed => Row::of(&state.log[..state.flushed.min(state.visible)], key).done,
                Relaying::IdCursor => {
                    let above = (0..self.keys).map(|key| state.row(key)).filter(|row| row.pending);
                    let lowest = above.map(|row| row.id).filter(|id| *id > state.cursor).min();
                    lowest == Some(row.id)
                }
            }
    }

    /// Never a key whose mirror record is pending.
    fn may_collect(&self, state: &State, key: u8) -> bool {
        let row = state.row(key);
        state.is_past[usize::from(key)]
            && row.done
            && Row::of(&state.log, key).done
            && !(self.spares_pending && row.pending)
    }

    pub fn choices(&self, state: &State, actions: &mut Vec<Action>) {
        for key in 0..self.keys {
            let is_past = state.is_past[usize::from(key)];
            let is_claimed = state.open.iter().any(|(open, _)| *open == key)
                || (Row::of(&state.log, key).done && !state.row(key).done);
            let waits = is_claimed || (!state.is_up && self.quiet_outage);
            if state.deliveries[usize::from(key)] > 0 && !waits && !is_past {
                actions.push(Action::Deliver(key));
            }
            if !state.is_up {
                continue;
            }
            if state.open.iter().any(|(open, _)| *open == key) {
                actions.push(Action::Commit(key));
                if self.forgeries > 0 {
                    actions.push(Action::Fail(key));
                }
            }
            if self.may_collect(state, key) {
                actions.push(Action::Collect(key));
            }
            // A relay's transaction is ended long before an entry's time to live has passed.
            let is_held = state.relays.iter().any(|relay| relay.holds(key));
            if self.retention_ends && state.row(key).done && !is_past && !is_held {
                actions.push(Action::RetentionEnds(key));
            }
        }
        for (r, relay) in state.relays.iter().enumerate() {
            match relay {
                Relay::Idle if state.is_up => {
                    let takes = (0..self.keys).filter(|key| self.may_take(state, *key));
                    actions.extend(takes.map(|key| Action::Take(r, key)));
                }
                Relay::Idle => {}
                // Redis does not know what happened to the primary.
                Relay::Took { .. } if self.relaying != Relaying::DeletesFirst => {
                    actions.push(Action::Write(r))
                }
                Relay::Deleted { .. } => actions.push(Action::Write(r)),
                Relay::Took { .. } | Relay::Wrote { .. } => actions.push(Action::Delete(r)),
            }
            if *relay != Relay::Idle && state.relay_crashes > 0 {
                actions.push(Action::CrashRelay(r));
            }
        }
        if state.is_up {
            if state.is_standby_connected && state.flushed < state.log.len() {
                actions.push(Action::Replicate);
            }
            if state.visible < state.log.len() {
                actions.push(Action::CancelSyncWait);
            }
            if state.failovers > 0 {
                actions.push(Action::Die);
                if state.is_standby_connected && !self.synchronous {
                    actions.push(Action::CutOff);
                }
            }
            actions.push(Action::Ask);
        } else if !(self.slow_promotion && state.standing.is_some_and(|standing| standing.is_fresh)) {
            actions.push(Action::Promote);
        }
        if state.standing.is_some_and(|standing| standing.is_fresh) {
            actions.push(Action::TimePasses);
        }
        if state.evictions > 0 {
            actions.extend(state.redis.iter().map(|entry| Action::Evict(entry.epoch, entry.key)));
        }
        self.forgeries(state, actions);
    }

    /// `false`: nothing changes.
    pub fn step(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Deliver(key) => return self.deliver(state, key),
            Action::Commit(key) => {
                let at = state.open.iter().position(|(open, _)| *open == key).unwrap();
                let (_, id) = state.open.remove(at);
                let epoch = state.timeline;
                self.write(state, Written::Key { key, id, epoch });
            }
            Action::Replicate => {
                state.flushed += 1;
                state.visible = state.visible.max(state.flushed);
            }
            Action::CancelSyncWait => state.visible = state.log.len(),
            Action::CutOff => state.is_standby_connected = false,
            Action::Die => {
                state.failovers -= 1;
                state.is_up = false;
                state.open.clear();
            }
            Action::Promote => {
                state.is_up = true;
                state.timeline += 1;
                state.log.truncate(state.flushed);
                state.visible = state.log.len();
                state.is_standby_connected = true;
            }
            Action::Take(r, key) => {
                let row = state.row(key);
                state.cursor = state.cursor.max(row.id);
                if self.minds_expiry && state.is_past[usize::from(key)] {
                    self.write(state, Written::Relayed(key));
                } else {
                    state.relays[r] = Relay::Took { key, epoch: row.epoch };
                }
            }
            Action::Write(r) => {
                let (Relay::Took { key, epoch } | Relay::Deleted { key, epoch }) = state.relays[r] else {
                    return false;
                };
                let epoch = self.tagged(epoch);
                let proof = Proof { epoch, key, is_over: false };
                state.put(Entry { epoch, key, proof: Some(proof) });
                state.shown(epoch, key, Some(proof));
                state.relays[r] = match state.relays[r] {
                    Relay::Took { .. } => Relay::Wrote { key },
                    _ => Relay::Idle,
                };
            }
            Action::Delete(r) => {
                let (key, next) = match state.relays[r] {
                    Relay::Took { key, epoch } => (key, Relay::Deleted { key, epoch }),
                    Relay::Wrote { key } => (key, Relay::Idle),
                    _ => return false,
                };
                // The transaction of a primary that has died is nobody's.
                let alive = state.is_up && Row::of(&state.log, key).pending;
                state.relays[r] = if alive { next } else { Relay::Idle };
                if alive {
                    self.write(state, Written::Relayed(key));
                }
            }
            Action::CrashRelay(r) => {
                state.relay_crashes -= 1;
                state.deleted_unwritten |= matches!(state.relays[r], Relay::Deleted { .. });
                state.relays[r] = Relay::Idle;
            }
            Action::Evict(epoch, key) => {
                state.evictions -= 1;
                state.redis.retain(|entry| (entry.epoch, entry.key) != (epoch, key));
            }
            Action::Fail(key) => {
                state.open.retain(|(open, _)| *open != key);
            }
            Action::Forge(entry) => {
                state.forgeries -= 1;
                state.put(entry);
            }
            Action::Ask => {
                let standing = Some(Standing {
                    epoch: state.timeline,
                    may_lose_commits: state.is_standby_connected,
                    is_fresh: true,
                });
                if state.standing == standing {
                    return false;
                }
                state.standing = standing;
            }
            Action::TimePasses => {
                if let Some(standing) = &mut state.standing {
                    standing.is_fresh = false;
                }
            }
            Action::RetentionEnds(key) => {
                state.is_past[usize::from(key)] = true;
                // An entry lives no longer than its key: nobody looks into its bucket any more.
                state.redis.retain(|entry| entry.key != key);
                for proof in state.seen_proofs.iter_mut().filter(|proof| proof.key == key) {
                    proof.is_over = true;
                }
            }
            Action::Collect(key) => {
                state.collected_pending |= state.row(key).pending;
                self.write(state, Written::Collected(key));
            }
        }
        true
    }

    fn write(&self, state: &mut State, written: Written) {
        state.log.push(written);
        if !self.synchronous {
            state.visible = state.log.len();
        }
    }

    /// The worker's pre-check, and the claim behind it.
    fn deliver(&self, state: &mut State, key: u8) -> bool {
        let record = state.row(key).record();
        let hit = state.standing.filter(|standing| {
            let tag = (self.tagged(standing.epoch), key);
            state.redis.iter().any(|entry| (entry.epoch, entry.key) == tag && self.believes(entry))
        });
        if let Some(standing) = state.standing {
            state.shown(self.tagged(standing.epoch), key, None);
        }
        let decision = hit.map_or(HitDecision::Ignore, |standing| {
            decide_on_hit(self.mode, standing.may_lose_commits, standing.is_fresh || !self.with_freshness)
        });
        let confirmed = || state.is_up && is_hit_confirmed(record.as_ref(), None, OnConflict::DeadLetter);
        if decision == HitDecision::Believe || (decision == HitDecision::Confirm && confirmed()) {
            state.hit = true;
            // While there is no primary, the history that goes on is the standby's.
            let surviving = if state.is_up { &state.log[..] } else { &state.log[..state.flushed] };
            state.false_hit |= !Row::of(surviving, key).done;
        } else if !state.is_up {
            // The lane waits.
            return false;
        } else if !record.is_some_and(|record| {
            decide_on_key(&record, None, OnConflict::DeadLetter) == KeyDecision::Duplicate
        }) {
            state.open.push((key, state.next_id));
            state.open.sort_unstable();
            state.next_id += 1;
        }
        state.deliveries[usize::from(key)] -= 1;
        true
    }
}
