//! What a lane does with a batch.

use oncely_core::decide::KeyDecision;
use oncely_core::decide::{Suspicion, decide_on_suspect, find_leaders};
use oncely_core::fault::FaultClass;
use oncely_core::identity::Identity;
use oncely_core::outcome::Disposition;
use oncely_core::settlement::Ack;
use oncely_postgres::{PgFault, classify, classify_sqlstate};

use super::broker::take;
use super::policy::{Flaw, Isolation, MAX_CRASHES};
use super::steps::{Claims, identity};
use super::world::{Delivery, Fate, Kind, Phase, Portion, Row, State, Status, Why};

impl Claims {
    /// Divides a batch: what may have killed a process is kept from the rest.
    pub fn portions(&self, state: &State, batch: Vec<Delivery>) -> Vec<Portion> {
        let portion = |items, suspect, alone| Portion { items, suspect, alone, marked: false };
        let (mut normal, mut group, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for delivery in batch {
            let open = matches!(self.known(state, &delivery), None | Some(KeyDecision::Retake));
            let crashes = state.rows[usize::from(self.message(&delivery).key)].crashes;
            match self.isolation {
                Isolation::Never => normal.push(delivery),
                _ if !(delivery.redelivered && open) => normal.push(delivery),
                Isolation::GroupAlways => group.push(delivery),
                // As production decides; who is given up is found out when it would be marked.
                Isolation::GroupThenAlone | Isolation::AloneInItsLane
                    if decide_on_suspect(crashes.into(), MAX_CRASHES.into()) == Suspicion::Group =>
                {
                    group.push(delivery);
                }
                _ => alone.push(delivery),
            }
        }
        let mut portions = Vec::new();
        if !normal.is_empty() {
            portions.push(portion(normal, false, false));
        }
        if !group.is_empty() {
            portions.push(portion(group, true, false));
        }
        portions.extend(alone.into_iter().map(|one| portion(vec![one], true, true)));
        portions
    }

    /// One transaction up to its COMMIT. (That a failed batch runs again, each message in a subtransaction, is not seen
    /// from outside: only the second pass's results are modelled.)
    pub fn run(&self, state: &mut State, p: usize, l: usize, swallows: Option<u8>) {
        let mut portion = state.processes[p].lanes[l].todo.remove(0);
        if swallows.is_some() {
            state.faults.swallowed -= 1;
        }
        let identities: Vec<Identity> =
            portion.items.iter().map(|item| identity(self.message(item).key)).collect();
        let leader_of = find_leaders(&identities);
        let mut fates: Vec<Option<Fate>> = vec![None; portion.items.len()];
        let mut running = Vec::new();
        for (index, item) in portion.items.iter().enumerate() {
            if leader_of[index].is_some() {
                continue;
            }
            let attempt = match self.known(state, item) {
                Some(KeyDecision::Duplicate) => {
                    fates[index] = Some(Fate::Duplicate);
                    continue;
                }
                Some(KeyDecision::Reject(_)) => {
                    // The reason stands in the row.
                    let crashed = state.rows[usize::from(self.message(item).key)].crashes >= MAX_CRASHES;
                    let why = if crashed { Why::Crash } else { Why::Rejected };
                    fates[index] = Some(Fate::Dead { attempt: 0, why });
                    continue;
                }
                Some(KeyDecision::Leased) => unreachable!("nobody here holds a lease"),
                Some(KeyDecision::Retake) => state.rows[usize::from(self.message(item).key)].attempts + 1,
                None => 1,
            };
            if portion.suspect && !portion.marked {
                // In a short transaction of its own.
                let message = *self.message(item);
                let row = &mut state.rows[usize::from(message.key)];
                if decide_on_suspect(row.crashes.into(), MAX_CRASHES.into()) == Suspicion::GiveUp {
                    fates[index] = Some(Fate::Dead { attempt, why: Why::Crash });
                    continue;
                }
                row.crashes += 1;
                if row.status == Status::Absent {
                    *row = Row { status: Status::InProgress, payload: message.payload, ..*row };
                }
            }
            running.push((index, attempt));
        }
        portion.marked = portion.suspect && !running.is_empty();
        if running.iter().any(|(index, _)| self.message(&portion.items[*index]).kind == Kind::Killer) {
            self.give_back(state, p, true);
            return;
        }
        let mut aborted = false;
        for (index, attempt) in running {
            let item = &portion.items[index];
            let failed = match self.message(item).kind {
                Kind::Flaky if attempt == 1 => Some(FaultClass::Transient),
                // Divided by zero.
                Kind::Poison => classify_sqlstate("22012"),
                // Our own writes after the handler find the transaction aborted.
                _ if swallows == Some(item.id) && self.flaw != Flaw::TagIgnored => classify_sqlstate("25P02"),
                _ => None,
            };
            aborted |= swallows == Some(item.id) && self.flaw == Flaw::TagIgnored;
            fates[index] = Some(match failed {
                Some(class) => self.failed(class, attempt),
                None => Fate::Completed,
            });
        }
        for (index, leader) in leader_of.iter().enumerate() {
            let Some(leader) = *leader else { continue };
            let same =
                self.message(&portion.items[leader]).payload == self.message(&portion.items[index]).payload;
            fates[index] = match fates[leader] {
                Some(retried @ Fate::Retried { .. }) if same => Some(retried),
                Some(Fate::Completed | Fate::Duplicate) if same => Some(Fate::Duplicate),
                // Through another round.
                _ => None,
            };
        }
        if self.flaw == Flaw::AckBeforeCommit {
            self.acknowledge(state, p, &portion.items.clone());
        }
        state.processes[p].lanes[l].phase = Phase::Open { portion, fates, aborted };
    }

    pub fn close(&self, state: &mut State, p: usize, l: usize) -> (Portion, Vec<Option<Fate>>, bool) {
        match std::mem::replace(&mut state.processes[p].lanes[l].phase, Phase::Idle) {
            Phase::Open { portion, fates, aborted } => (portion, fates, aborted),
            other => panic!("no open transaction: {other:?}"),
        }
    }

    /// The transaction's writes become visible.
    pub fn apply(&self, state: &mut State, portion: &Portion, fates: &[Option<Fate>]) {
        for (item, fate) in portion.items.iter().zip(fates) {
            let message = *self.message(item);
            let row = &mut state.rows[usize::from(message.key)];
            let (status, attempts) = match fate {
                Some(Fate::Completed) => {
                    state.effects[usize::from(item.id)] += 1;
                    (Status::Completed, row.attempts + 1)
                }
                Some(Fate::Retried { attempt }) => (Status::InProgress, *attempt),
                Some(Fate::Dead { attempt: 1.., .. }) => (Status::Failed, row.attempts + 1),
                _ => continue,
            };
            *row = Row { status, payload: message.payload, attempts, crashes: row.crashes };
        }
    }

    /// The process has survived the run.
    pub fn unmark(&self, state: &mut State, portion: &Portion) {
        if portion.marked {
            for item in &portion.items {
                let row = &mut state.rows[usize::from(self.message(item).key)];
                row.crashes = row.crashes.saturating_sub(1);
            }
        }
    }

    pub fn lose_reply(&self, state: &mut State, p: usize, l: usize, applied: bool) {
        state.faults.lost_replies -= 1;
        let (portion, mut fates, _) = self.close(state, p, l);
        if applied {
            self.apply(state, &portion, &fates);
        }
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let unknown = matches!(classify(sqlx::Error::Io(reset)), PgFault::Outage(_));
        if self.flaw == Flaw::UnknownIsFailure || !unknown {
            for (item, fate) in portion.items.iter().zip(&mut fates) {
                if *fate == Some(Fate::Completed) {
                    let message = *self.message(item);
                    let row = &mut state.rows[usize::from(message.key)];
                    let failed = self.failed(FaultClass::Transient, row.attempts.max(1));
                    let status = match failed {
                        Fate::Retried { .. } => Status::InProgress,
                        _ => Status::Failed,
                    };
                    let attempts = row.attempts.max(1);
                    *row = Row { status, payload: message.payload, attempts, crashes: row.crashes };
                    *fate = Some(failed);
                }
            }
            self.settle(state, p, l, portion, fates);
            return;
        }
        let process = &mut state.processes[p];
        if portion.items.iter().all(|item| item.stale) {
            // Abandoned: all of it comes again, on another channel.
            process.lanes[l].todo.clear();
            self.unmark(state, &portion);
        } else {
            // Neither success nor failure: the claim of the next try will tell.
            process.lanes[l].todo.insert(0, portion);
        }
    }

    pub fn settle(&self, state: &mut State, p: usize, l: usize, portion: Portion, fates: Vec<Option<Fate>>) {
        let (mut acks, mut copies, mut again, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (item, fate) in portion.items.into_iter().zip(fates) {
            match fate {
                None => again.push(item),
                Some(fate) => {
                    all.push(item);
                    match fate.outcome().disposition() {
                        Disposition::Ack => acks.push(item),
                        // What came on a channel that is gone comes again, and its copy then.
                        _ if item.stale => {}
                        _ => copies.push((item, fate)),
                    }
                }
            }
        }
        if self.flaw == Flaw::AckBeforeCommit {
            acks.clear();
        }
        let lane = &mut state.processes[p].lanes[l];
        if !again.is_empty() {
            let Portion { suspect, alone, .. } = portion;
            lane.todo.insert(0, Portion { items: again, suspect, alone, marked: false });
        }
        lane.phase = Phase::Settling { acks, copies, published: false, all };
        self.finish(state, p, l);
    }

    /// Is everything settled? Then the lane is free.
    pub fn finish(&self, state: &mut State, p: usize, l: usize) {
        let Phase::Settling { acks, copies, all, .. } = &state.processes[p].lanes[l].phase else { return };
        if !(acks.is_empty() && copies.is_empty()) {
            return;
        }
        if self.flaw == Flaw::AckTwice {
            let all = all.clone();
            let process = &mut state.processes[p];
            for delivery in all.iter().filter(|delivery| !delivery.stale) {
                let tag = u64::from(delivery.tag);
                state.acked_twice |= !take(&mut process.unacked, Ack::One(tag));
            }
        }
        state.processes[p].lanes[l].phase = Phase::Idle;
    }
}
