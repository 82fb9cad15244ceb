//! What can happen next.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use oncely_core::decide::{FailureDecision, KeyDecision, OnConflict, decide_after_failure, decide_on_key};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::Disposition;
use oncely_core::retry::RetryPolicy;
use oncely_core::settlement::Settlement;

use super::policy::{Flaw, Isolation, MAX_CRASHES};
use super::world::{
    Delivery, Fate, Faults, Lane, Phase, Process, Published, Queued, Row, State, Status, Why, print,
};

/// A world to explore.
#[derive(Clone)]
pub struct Claims {
    pub messages: Vec<Published>,
    pub processes: usize,
    pub lanes: usize,
    pub faults: Faults,
    pub flaw: Flaw,
    pub isolation: Isolation,
    /// A message that came back more often is dead-lettered by the broker.
    pub delivery_limit: u8,
    pub max_attempts: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The broker delivers a message to a process.
    Deliver(usize, Queued),
    /// A lane takes what there is.
    Take(usize, usize),
    /// It claims and runs the handlers; the one of this message swallows an error.
    Run(usize, usize, Option<u8>),
    Commit(usize, usize),
    /// COMMIT's reply is lost; it was applied, or not.
    LoseReply(usize, usize, bool),
    /// Acknowledges what needs no copy.
    Acknowledge(usize, usize),
    /// Publishes copies, which are confirmed.
    Publish(usize, usize),
    /// Acknowledges the originals of copies.
    AcknowledgeCopied(usize, usize),
    Crash(usize),
    /// The channel ends; the process lives and opens another.
    ResetChannel(usize),
}

/// Who a key is.
pub fn identity(key: u8) -> Identity {
    let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
    Identity { tenant: part("t"), consumer: part("c"), key: part(&key.to_string()) }
}

impl Claims {
    pub fn message(&self, delivery: &Delivery) -> &Published {
        &self.messages[usize::from(delivery.id)]
    }

    pub fn fingerprint(&self, delivery: &Delivery) -> oncely_core::fingerprint::Fingerprint {
        print(self.message(delivery).payload)
    }

    /// As production decides from what the table says; `None` where the key is nobody's.
    pub fn known(&self, state: &State, delivery: &Delivery) -> Option<KeyDecision> {
        let record = state.rows[usize::from(self.message(delivery).key)].record()?;
        Some(decide_on_key(&record, Some(&self.fingerprint(delivery)), OnConflict::DeadLetter))
    }

    /// What follows from a failed run.
    pub fn failed(&self, class: FaultClass, attempt: u8) -> Fate {
        let retry = RetryPolicy {
            delays: vec![std::time::Duration::from_secs(1)],
            max_attempts: self.max_attempts.into(),
            max_crashes: MAX_CRASHES.into(),
        };
        match decide_after_failure(&Fault::new(class, None, "model"), attempt.into(), &retry) {
            FailureDecision::Retry(_) => Fate::Retried { attempt },
            FailureDecision::GiveUp(_) => Fate::Dead { attempt, why: Why::Rejected },
            FailureDecision::Refuse(_) => Fate::Completed,
        }
    }

    /// Keys that a lane's open transaction holds.
    fn holds(&self, lane: &Lane, key: u8) -> bool {
        let Phase::Open { portion, .. } = &lane.phase else { return false };
        portion.items.iter().any(|item| self.message(item).key == key)
    }

    /// Would this portion wait for another transaction, or for its turn in the process?
    pub fn waits(&self, state: &State, p: usize, l: usize) -> bool {
        let lanes = &state.processes[p].lanes;
        let Some(portion) = lanes[l].todo.first() else { return false };
        let locked = portion.items.iter().any(|item| {
            let key = self.message(item).key;
            state.lanes().any(|lane| self.holds(lane, key))
        });
        let others = lanes.iter().enumerate().filter(|(other, _)| *other != l);
        // A lane that waits for its next try keeps its turn, as it keeps its mark.
        let busy = |lane: &Lane| {
            matches!(lane.phase, Phase::Open { .. }) || lane.todo.first().is_some_and(|first| first.marked)
        };
        let excluded = self.isolation != Isolation::AloneInItsLane
            && others.into_iter().any(|(_, lane)| {
                let exclusive = portion.alone
                    || lane.todo.first().is_some_and(|first| first.marked && first.alone)
                    || matches!(&lane.phase, Phase::Open { portion, .. } if portion.alone);
                exclusive && busy(lane)
            });
        locked || excluded
    }

    /// What can happen without a fault.
    pub fn work(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, process) in state.processes.iter().enumerate() {
            let mut last = None;
            for queued in &state.ready {
                if last != Some(queued) {
                    actions.push(Action::Deliver(p, *queued));
                }
                last = Some(queued);
            }
            for (l, lane) in process.lanes.iter().enumerate() {
                match &lane.phase {
                    Phase::Idle if lane.todo.is_empty() => {
                        if !process.intake.is_empty() {
                            actions.push(Action::Take(p, l));
                        }
                    }
                    Phase::Idle => {
                        if !self.waits(state, p, l) {
                            actions.push(Action::Run(p, l, None));
                        }
                    }
                    Phase::Open { .. } => actions.push(Action::Commit(p, l)),
                    Phase::Settling { acks, published, .. } => actions.push(if !acks.is_empty() {
                        Action::Acknowledge(p, l)
                    } else if *published {
                        Action::AcknowledgeCopied(p, l)
                    } else {
                        Action::Publish(p, l)
                    }),
                }
            }
        }
    }

    /// Faults, as far as there are any left.
    pub fn trouble(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, process) in state.processes.iter().enumerate() {
            // Where a process holds nothing, its end changes nothing.
            if !process.unacked.is_empty() || process.lanes.iter().any(|lane| lane.phase != Phase::Idle) {
                if state.faults.crashes > 0 {
                    actions.push(Action::Crash(p));
                }
                if state.faults.resets > 0 {
                    actions.push(Action::ResetChannel(p));
                }
            }
            for (l, lane) in process.lanes.iter().enumerate() {
                match &lane.phase {
                    Phase::Idle => {
                        if let Some(portion) = lane.todo.first()
                            && state.faults.swallowed > 0
                            && !self.waits(state, p, l)
                        {
                            actions.extend(portion.items.iter().map(|i| Action::Run(p, l, Some(i.id))));
                        }
                    }
                    Phase::Open { aborted, .. } if state.faults.lost_replies > 0 => {
                        actions.extend(
                            [false, true]
                                .into_iter()
                                .filter(|applied| !(*applied && *aborted))
                                .map(|applied| Action::LoseReply(p, l, applied)),
                        );
                    }
                    _ => {}
                }
            }
        }
    }

    /// States that differ only in what nothing depends on become one: which process or lane is the first, and what the
    /// next tag of a channel is on which nothing is outstanding.
    pub fn fold(&self, state: &mut State) {
        let digest = |value: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            value(&mut hasher);
            hasher.finish()
        };
        for process in &mut state.processes {
            if process.unacked.is_empty() && process.in_hand().all(|delivery| delivery.stale) {
                process.next_tag = 1;
                process.settlement = Settlement::new(self.prefetch());
            }
            process.lanes.sort_by_cached_key(|lane| digest(&|hasher| lane.hash(hasher)));
        }
        state.processes.sort_by_cached_key(|process| digest(&|hasher| process.hash(hasher)));
    }

    pub fn prefetch(&self) -> u16 {
        u16::try_from(self.messages.len()).unwrap() * 2
    }

    pub fn start(&self) -> State {
        let keys = self.messages.iter().map(|message| message.key).max().unwrap_or(0) + 1;
        let row = Row { status: Status::Absent, payload: 0, attempts: 0, crashes: 0 };
        let process = Process {
            next_tag: 1,
            unacked: Vec::new(),
            intake: Vec::new(),
            settlement: Settlement::new(self.prefetch()),
            lanes: vec![Lane { todo: Vec::new(), phase: Phase::Idle }; self.lanes],
        };
        let ids = 0..u8::try_from(self.messages.len()).unwrap();
        State {
            ready: ids.map(|id| Queued { id, redelivered: false, returned: 0 }).collect(),
            dead: Vec::new(),
            rows: vec![row; keys.into()],
            effects: vec![0; self.messages.len()],
            processes: vec![process; self.processes],
            faults: self.faults,
            acked_twice: false,
        }
    }

    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Deliver(p, queued) => {
                let at = state.ready.iter().position(|ready| *ready == queued).unwrap();
                state.ready.remove(at);
                let process = &mut state.processes[p];
                let tag = process.next_tag;
                process.next_tag += 1;
                process.unacked.push((tag, queued));
                process.settlement.add_delivery(tag.into());
                let Queued { id, redelivered, .. } = queued;
                process.intake.push(Delivery { id, redelivered, tag, stale: false });
            }
            Action::Take(p, l) => {
                let batch = std::mem::take(&mut state.processes[p].intake);
                state.processes[p].lanes[l].todo = self.portions(state, batch);
            }
            Action::Run(p, l, swallows) => self.run(state, p, l, swallows),
            Action::Commit(p, l) => {
                let (portion, fates, aborted) = self.close(state, p, l);
                if !aborted {
                    self.apply(state, &portion, &fates);
                }
                self.unmark(state, &portion);
                self.settle(state, p, l, portion, fates);
            }
            Action::LoseReply(p, l, applied) => self.lose_reply(state, p, l, applied),
            Action::Acknowledge(p, l) => {
                let Phase::Settling { acks, .. } = &mut state.processes[p].lanes[l].phase else { return };
                let acks = std::mem::take(acks);
                self.acknowledge(state, p, &acks);
                self.finish(state, p, l);
            }
            Action::Publish(p, l) => {
                let Phase::Settling { copies, published, .. } = &mut state.processes[p].lanes[l].phase else {
                    return;
                };
                *published = true;
                for (delivery, fate) in copies.clone() {
                    match fate.outcome().disposition() {
                        Disposition::Retry(_) => {
                            state.ready.push(Queued { id: delivery.id, redelivered: false, returned: 0 })
                        }
                        Disposition::DeadLetter(_) => {
                            let Fate::Dead { why, .. } = fate else { continue };
                            // A second copy of a dead letter is a dead letter.
                            if !state.dead.contains(&(delivery.id, why)) {
                                state.dead.push((delivery.id, why));
                            }
                        }
                        Disposition::Ack | Disposition::Keep => {}
                    }
                }
                state.ready.sort_unstable();
                state.dead.sort_unstable();
            }
            Action::AcknowledgeCopied(p, l) => {
                let Phase::Settling { copies, .. } = &mut state.processes[p].lanes[l].phase else { return };
                let copied: Vec<Delivery> = copies.drain(..).map(|(delivery, _)| delivery).collect();
                self.acknowledge(state, p, &copied);
                self.finish(state, p, l);
            }
            Action::Crash(p) => {
                state.faults.crashes -= 1;
                self.give_back(state, p, true);
            }
            Action::ResetChannel(p) => {
                state.faults.resets -= 1;
                self.give_back(state, p, false);
            }
        }
    }
}
