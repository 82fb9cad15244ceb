//! What happens: each statement is a step of its own, and so is each call.

use chrono::{DateTime, Utc};
use oncely_core::decide::{KeyDecision, KeyRecord, OnConflict, decide_on_key, remaining_wait};

use super::world::{
    At, Budget, Copy, LEASE, MAX_CRASHES, MAX_RUN, Policy, Row, Rule, Run, Seen, State, Status, Step, WINDOW,
    Wrong, moment,
};

/// Microseconds of a tick: tokens are times.
const MICROS: u8 = 16;

/// A world.
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    pub policy: Policy,
    pub rule: Rule,
    pub ticks: u8,
    pub budget: Budget,
    /// A worker without leases reads the queue, too.
    pub plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Claim(usize, usize),
    /// It is committed, and its answer is lost.
    ClaimUnheard(usize, usize),
    /// The same, said again.
    ClaimAgain(usize),
    /// What it saw to be over it takes over.
    Take(usize),
    Begin(usize),
    Send(usize),
    /// Without an answer: whether it arrives.
    Tear(usize, bool),
    Checkpoint(usize),
    /// Gives the key up: the outcome of an earlier call is unknown.
    GiveUp(usize),
    SaveFails(usize),
    Finish(usize),
    FinishUnheard(usize),
    Ack(usize),
    Renew(usize),
    Release(usize),
    Freeze(usize),
    Thaw(usize),
    Crash(usize),
    LoseChannel(usize),
    /// A worker without leases gets this copy.
    Plain(usize),
    Collect,
    Tick,
    Jump,
    /// The last commit is lost.
    Failover,
}

/// Is there nothing left to wait for?
fn is_over(record: &KeyRecord, now: DateTime<Utc>) -> bool {
    remaining_wait(record, now).is_none()
}

impl Leased {
    pub fn start(&self) -> State {
        State {
            clock: 1,
            row: Row::ABSENT,
            standby: Row::ABSENT,
            lost_commit: false,
            runs: [None; 2],
            copies: [Copy::Ready; 2],
            calls: 0,
            effects: 0,
            known: Vec::new(),
            excuses: 0,
            greatest: 0,
            completions: 0,
            deaths: 0,
            left: self.budget,
            wrong: Wrong::default(),
            seen: Seen::default(),
        }
    }

    pub fn choices(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for (index, run) in state.runs.iter().enumerate() {
            let Some(run) = run else {
                for (copy, _) in state.copies.iter().enumerate().filter(|(_, copy)| **copy == Copy::Ready) {
                    actions.push(Action::Claim(index, copy));
                    if left.lost_replies > 0 {
                        actions.push(Action::ClaimUnheard(index, copy));
                    }
                }
                continue;
            };
            if left.crashes > 0 {
                actions.push(Action::Crash(index));
            }
            if left.channels > 0 && run.has_copy {
                actions.push(Action::LoseChannel(index));
            }
            if run.is_frozen {
                actions.push(Action::Thaw(index));
                continue;
            }
            if left.freezes > 0 {
                actions.push(Action::Freeze(index));
            }
            actions.push(match run.at {
                At::Saw(_) => Action::Take(index),
                At::Claimed => Action::ClaimAgain(index),
                At::Begins => Action::Begin(index),
                At::Sends(_) => Action::Send(index),
                At::Called => Action::Checkpoint(index),
                At::Doubts => Action::GiveUp(index),
                At::Ends => Action::Finish(index),
                At::Settles => Action::Ack(index),
            });
            if matches!(run.at, At::Sends(_)) && left.tears > 0 {
                actions.extend([true, false].map(|arrives| Action::Tear(index, arrives)));
            }
            if run.at == At::Called && left.lost_replies > 0 {
                actions.push(Action::SaveFails(index));
            }
            if run.at == At::Ends && left.lost_replies > 0 {
                actions.push(Action::FinishUnheard(index));
            }
            if matches!(run.at, At::Begins | At::Sends(_) | At::Called | At::Doubts | At::Ends) {
                actions.push(Action::Renew(index));
                if left.releases > 0 && run.at != At::Called {
                    actions.push(Action::Release(index));
                }
            }
        }
        if self.plain && state.row.status != Status::Absent {
            let ready = |(_, copy): &(usize, &Copy)| **copy == Copy::Ready;
            actions
                .extend(state.copies.iter().enumerate().filter(ready).map(|(copy, _)| Action::Plain(copy)));
        }
        if self.policy == Policy::CollectHeld && state.row.status == Status::InProgress {
            actions.push(Action::Collect);
        }
        if state.clock < self.ticks {
            // Whoever is well renews in time.
            let lags = state.runs.iter().flatten().any(|run| {
                !run.is_frozen
                    && state.row.is_held_by(run.token)
                    && !matches!(run.at, At::Saw(_) | At::Settles)
                    && state.row.ends <= state.clock + 1
                    && state.row.ends < state.row.run_ends
            });
            if !lags {
                actions.push(Action::Tick);
            }
            if left.jumps > 0 {
                actions.push(Action::Jump);
            }
            if left.failovers > 0 && state.row != state.standby {
                actions.push(Action::Failover);
            }
        }
    }

    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Claim(index, copy) => self.claim(state, index, copy, true),
            Action::ClaimUnheard(index, copy) => {
                state.left.lost_replies -= 1;
                self.claim(state, index, copy, false);
            }
            Action::ClaimAgain(index) => {
                let Some(run) = state.runs[index] else { return };
                if state.row.is_held_by(run.token) {
                    at(state, index, At::Begins);
                } else {
                    give_up(state, index);
                }
            }
            Action::Take(index) => self.take(state, index),
            Action::Begin(index) => self.begin(state, index),
            Action::Send(index) => {
                self.send(state, index);
                at(state, index, At::Called);
            }
            Action::Tear(index, arrives) => {
                state.left.tears -= 1;
                if arrives {
                    self.send(state, index);
                }
                free(state, index, true);
            }
            Action::Checkpoint(index) => self.checkpoint(state, index),
            Action::GiveUp(index) => self.give_up_unknown(state, index),
            Action::SaveFails(index) => {
                state.left.lost_replies -= 1;
                if self.policy == Policy::ReleaseWhenSavingFailed {
                    let row = state.row;
                    commit(state, Row { step: Step::Open, round: row.round + 1, ..row });
                    free(state, index, true);
                }
            }
            Action::Finish(index) => {
                if self.finish(state, index) {
                    at(state, index, At::Settles);
                }
            }
            Action::FinishUnheard(index) => {
                state.left.lost_replies -= 1;
                self.finish(state, index);
            }
            Action::Ack(index) => {
                let Some(run) = state.runs[index].take() else { return };
                if run.has_copy {
                    settle(state, run.copy, Copy::Acked);
                }
            }
            Action::Renew(index) => self.renew(state, index),
            Action::Release(index) => {
                state.left.releases -= 1;
                free(state, index, false);
            }
            Action::Freeze(index) => {
                state.left.freezes -= 1;
                state.deaths += 1;
                if let Some(run) = &mut state.runs[index] {
                    run.is_frozen = true;
                }
            }
            Action::Thaw(index) => {
                if let Some(run) = &mut state.runs[index] {
                    run.is_frozen = false;
                }
            }
            Action::Crash(index) => {
                state.left.crashes -= 1;
                state.deaths += 1;
                give_up(state, index);
            }
            Action::LoseChannel(index) => {
                state.left.channels -= 1;
                if let Some(run) = &mut state.runs[index] {
                    run.has_copy = false;
                    state.copies[run.copy] = Copy::Ready;
                }
            }
            Action::Plain(copy) => self.plain(state, copy),
            Action::Collect => {
                state.wrong.trespassed |= state.row.is_held;
                commit(state, Row::ABSENT);
            }
            Action::Tick => pass(state, 1),
            Action::Jump => {
                state.left.jumps -= 1;
                state.deaths += 1;
                pass(state, LEASE + 1);
            }
            Action::Failover => {
                state.left.failovers -= 1;
                state.row = state.standby;
                state.lost_commit = true;
                pass(state, 1);
            }
        }
    }

    fn claim(&self, state: &mut State, index: usize, copy: usize, is_heard: bool) {
        let row = state.row;
        let Some(record) = row.record(true) else {
            return self.grant(state, index, copy, is_heard);
        };
        match decide_on_key(&record, None, OnConflict::DeadLetter) {
            KeyDecision::Duplicate => settle(state, copy, Copy::Acked),
            KeyDecision::Reject(_) => settle(state, copy, Copy::Dead),
            // No key here ran without a lease.
            KeyDecision::Retake => {}
            KeyDecision::Leased if !row.is_held => self.grant(state, index, copy, is_heard),
            KeyDecision::Leased => {
                let ahead = u8::from(self.policy == Policy::WorkerClockExpiry);
                if is_over(&record, moment(state.clock + ahead)) {
                    state.copies[copy] = Copy::Unacked;
                    state.runs[index] = Some(run(At::Saw(row), copy, 0));
                } else if self.policy == Policy::InFlightIsDuplicate {
                    settle(state, copy, Copy::Acked);
                } else if self.policy == Policy::ReentrantByProcess {
                    let is_at_work = state.runs.iter().flatten().any(|run| run.token == row.token);
                    state.wrong.token_again |= is_at_work;
                    state.copies[copy] = Copy::Unacked;
                    state.runs[index] = Some(run(At::Begins, copy, row.token));
                }
            }
        }
    }

    /// What nobody holds, or what is taken over.
    fn grant(&self, state: &mut State, index: usize, copy: usize, is_heard: bool) {
        let row = state.row;
        let token = (row.token + u8::from(row.status != Status::Absent)).max(state.clock * MICROS);
        state.wrong.token_again |= token <= state.greatest;
        state.greatest = token.max(state.greatest);
        state.wrong.taken_early |= row.is_held && row.ends > state.clock;
        let crashes = row.crashes + u8::from(row.is_held);
        if row.is_held {
            state.seen.takeover = true;
            state.excuses += 1;
        }
        let taken = Row {
            status: Status::InProgress,
            token,
            is_held: true,
            ends: state.clock + LEASE,
            run_ends: state.clock + MAX_RUN,
            crashes,
            ..row
        };
        state.copies[copy] = Copy::Unacked;
        if row.is_held && crashes >= MAX_CRASHES {
            state.wrong.killed_nobody |= state.deaths < MAX_CRASHES;
            commit(state, Row { status: Status::Failed, is_held: false, ..taken });
            state.runs[index] = None;
            settle(state, copy, Copy::Dead);
            return;
        }
        commit(state, taken);
        state.runs[index] = Some(run(if is_heard { At::Begins } else { At::Claimed }, copy, token));
        if self.policy == Policy::AckAtClaim {
            settle(state, copy, Copy::Acked);
            if let Some(run) = &mut state.runs[index] {
                run.has_copy = false;
            }
        }
    }

    fn take(&self, state: &mut State, index: usize) {
        let Some(Run { at: At::Saw(seen), copy, has_copy, .. }) = state.runs[index] else { return };
        let row = state.row;
        let ahead = u8::from(self.policy == Policy::WorkerClockExpiry);
        let is_same = (row.token, row.is_held) == (seen.token, seen.is_held);
        let is_over = row.record(true).is_some_and(|record| is_over(&record, moment(state.clock + ahead)));
        let takes = row.status == Status::InProgress
            && (self.policy == Policy::TakeoverFromSnapshot || (is_same && is_over));
        // Whose copy is gone meanwhile has nothing to run.
        if !takes || !has_copy {
            return give_up(state, index);
        }
        self.grant(state, index, copy, true);
    }

    fn begin(&self, state: &mut State, index: usize) {
        let Some(run) = state.runs[index] else { return };
        let row = state.row;
        if !row.is_held_by(run.token) || row.run_ends <= state.clock {
            return lose(state, index);
        }
        let key = if self.policy == Policy::StepKeyPerAttempt { run.token } else { row.round };
        let may_repeat = |since: u8| match self.rule {
            Rule::Pay | Rule::Mail => true,
            Rule::Charge => self.policy == Policy::WindowIgnored || state.clock - since < WINDOW,
            Rule::Once => self.policy == Policy::UnknownRepeated,
        };
        let step = match row.step {
            Step::Done if self.policy != Policy::StoredIgnored => {
                state.seen.replay = true;
                return at(state, index, At::Ends);
            }
            Step::Started { since, token, .. } if !may_repeat(since) => {
                state.seen.unknown = true;
                let step = Step::Started { since, token, doubted_by: run.token };
                commit(state, Row { step, ends: renewed(&row, state.clock), ..row });
                return at(state, index, At::Doubts);
            }
            Step::Open => Step::Started { since: state.clock, token: run.token, doubted_by: 0 },
            Step::Started { since, .. } => Step::Started { since, token: run.token, doubted_by: 0 },
            Step::Done => Step::Done,
        };
        commit(state, Row { step, ends: renewed(&row, state.clock), ..row });
        at(state, index, At::Sends(key));
        if let Some(run) = &mut state.runs[index] {
            run.is_late = false;
        }
    }

    /// It comes to the provider.
    fn send(&self, state: &mut State, index: usize) {
        let Some(Run { at: At::Sends(key), is_late, .. }) = state.runs[index] else { return };
        let is_late = is_late || state.lost_commit;
        state.calls += 1;
        let since = state.known.iter().find(|(known, _)| *known == key).map(|(_, since)| *since);
        let is_forgotten = |since: u8| state.clock - since >= WINDOW;
        let is_known = since.is_some_and(|since| match self.rule {
            Rule::Pay => true,
            Rule::Charge => !is_forgotten(since),
            Rule::Mail | Rule::Once => false,
        });
        state.wrong.past_window |= self.rule == Rule::Charge && since.is_some_and(is_forgotten) && !is_late;
        state.wrong.stored_called |= state.row.step == Step::Done && !is_late;
        state.effects += u8::from(!is_known);
        if since.is_none() {
            state.known.push((key, state.clock));
        }
    }

    fn checkpoint(&self, state: &mut State, index: usize) {
        let Some(run) = state.runs[index] else { return };
        let row = state.row;
        let is_holder = row.is_held_by(run.token);
        let passes = self.policy == Policy::CheckpointWithoutToken && row.status == Status::InProgress;
        if !is_holder && !passes {
            return self.tell_late(state, index, run.token);
        }
        state.wrong.not_holder |= !is_holder;
        commit(state, Row { step: Step::Done, ends: renewed(&row, state.clock), ..row });
        at(state, index, At::Ends);
    }

    /// Stores the outcome of a call after its lease is lost.
    fn tell_late(&self, state: &mut State, index: usize, token: u8) {
        let row = state.row;
        match row.step {
            Step::Started { token: of, doubted_by, .. }
                if of == token && row.status != Status::Done && self.policy != Policy::LateOutcomeLost =>
            {
                state.seen.late_outcome = true;
                let is_doubted = doubted_by == row.token && self.policy != Policy::DoubterKeepsItsLease;
                // Given up for that alone, or held by a run that was told so.
                let row = match row.status {
                    Status::Failed if is_doubted => Row { status: Status::InProgress, ends: 0, ..row },
                    _ if is_doubted => Row { is_held: false, ends: 0, ..row },
                    _ => row,
                };
                commit(state, Row { step: Step::Done, ..row });
            }
            Step::Started { token: of, .. } if of == token => state.wrong.outcome_lost = true,
            _ => {}
        }
        lose(state, index);
    }

    fn give_up_unknown(&self, state: &mut State, index: usize) {
        let Some(run) = state.runs[index] else { return };
        let row = state.row;
        if !row.is_held_by(run.token) {
            return lose(state, index);
        }
        state.wrong.outcome_lost |= row.step == Step::Done;
        commit(state, Row { status: Status::Failed, is_held: false, ..row });
        state.runs[index] = None;
        if run.has_copy {
            settle(state, run.copy, Copy::Dead);
        }
    }

    /// False: it is lost.
    fn finish(&self, state: &mut State, index: usize) -> bool {
        let Some(run) = state.runs[index] else { return false };
        let row = state.row;
        if row.status == Status::Done && row.token == run.token {
            return true;
        }
        let is_holder = row.is_held_by(run.token);
        let passes = self.policy == Policy::CompleteWithoutToken && row.status == Status::InProgress;
        if !is_holder && !passes {
            lose(state, index);
            return false;
        }
        state.wrong.not_holder |= !is_holder;
        state.seen.late_finish |= is_holder && row.ends <= state.clock;
        state.completions += 1;
        state.wrong.completed_twice |= state.completions > 1 && !state.lost_commit;
        commit(state, Row { status: Status::Done, is_held: false, ..row });
        true
    }

    fn renew(&self, state: &mut State, index: usize) {
        let Some(run) = state.runs[index] else { return };
        let row = state.row;
        let is_holder = row.is_held_by(run.token);
        let passes = self.policy == Policy::RenewByOwnerName && row.is_held;
        let is_bounded = self.policy != Policy::NoRunCeiling;
        if (!is_holder && !passes) || (is_bounded && row.run_ends <= state.clock) {
            // A call in progress goes on to its end.
            if matches!(run.at, At::Sends(_) | At::Called) {
                return;
            }
            return lose(state, index);
        }
        state.wrong.not_holder |= !is_holder;
        let ends = if is_bounded { renewed(&row, state.clock) } else { state.clock + LEASE };
        state.wrong.too_long |= ends > row.run_ends;
        if ends != row.ends {
            commit(state, Row { ends, ..row });
        }
    }

    /// By the rules for consumers without leases.
    fn plain(&self, state: &mut State, copy: usize) {
        let Some(record) = state.row.record(self.policy != Policy::RetakeHeld) else { return };
        match decide_on_key(&record, None, OnConflict::DeadLetter) {
            KeyDecision::Duplicate => settle(state, copy, Copy::Acked),
            KeyDecision::Reject(_) => settle(state, copy, Copy::Dead),
            KeyDecision::Leased if is_over(&record, moment(state.clock)) => settle(state, copy, Copy::Dead),
            // It waits.
            KeyDecision::Leased => {}
            KeyDecision::Retake => state.wrong.trespassed = true,
        }
    }
}

fn run(at: At, copy: usize, token: u8) -> Run {
    Run { at, copy, token, is_frozen: false, is_late: false, has_copy: true }
}

fn at(state: &mut State, index: usize, at: At) {
    if let Some(run) = &mut state.runs[index] {
        run.at = at;
    }
}

fn renewed(row: &Row, clock: u8) -> u8 {
    row.ends.max(clock + LEASE).min(row.run_ends)
}

fn commit(state: &mut State, row: Row) {
    state.standby = std::mem::replace(&mut state.row, row);
}

/// The broker is told.
fn settle(state: &mut State, copy: usize, becomes: Copy) {
    let is_open = !matches!(state.row.status, Status::Done | Status::Failed);
    state.wrong.acked_open |= becomes == Copy::Acked && is_open && !state.lost_commit;
    state.copies[copy] = becomes;
}

/// The run ends; its copy comes again.
fn give_up(state: &mut State, index: usize) {
    if let Some(run) = state.runs[index].take()
        && run.has_copy
    {
        state.copies[run.copy] = Copy::Ready;
    }
}

fn lose(state: &mut State, index: usize) {
    state.seen.fenced = true;
    give_up(state, index);
}

/// It ends in order: nobody has to wait for its lease.
fn free(state: &mut State, index: usize, has_failed: bool) {
    let Some(run) = state.runs[index] else { return };
    let row = state.row;
    if !row.is_held_by(run.token) {
        return lose(state, index);
    }
    state.excuses += 1;
    let crashes = if has_failed { 0 } else { row.crashes };
    commit(state, Row { is_held: false, crashes, ends: 0, ..row });
    give_up(state, index);
}

fn pass(state: &mut State, ticks: u8) {
    let before = state.clock;
    state.clock += ticks;
    for run in state.runs.iter_mut().flatten() {
        run.is_late |= matches!(run.at, At::Sends(_));
    }
    // Past its time a run is as good as dead.
    if state.row.is_held && (before + 1..=state.clock).contains(&state.row.run_ends) {
        state.deaths += 1;
    }
}
