//! Runs under leases: what was sent, what stands in the key's row and in the trail, what the provider saw. A call outside is in no
//! transaction, so it is judged by the lease's token, by its step's rule, and by what the other side remembers.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{PgConnection, Row as _};

use super::calls::{Call, Memory, Side};
use super::finding::{Findings, Invariant, What, name};
use super::ledger::{Class, Key, Sent};
use super::letter::{Letter, pairs};
use super::requests::Requests;

/// The consumer whose messages run under leases.
pub const LEASED: &str = "charges";

/// A key's row at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseRow {
    /// Its state.
    pub status: String,
    /// The lease that held it last.
    pub token: i64,
    /// A run holds it still.
    pub is_held: bool,
    /// Steps whose result is stored, and by which lease.
    pub stored: BTreeMap<String, i64>,
    /// A request completed it: its end is no transaction of its own.
    pub by_request: bool,
}

/// A row of the trail.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseStep {
    /// `completed`, `taken_over`, `fenced`, …
    pub outcome: String,
    /// Which run.
    pub attempt: i32,
    /// Why, in a dead letter.
    pub reason: String,
    /// The same for people.
    pub detail: String,
    /// Seconds since 1970, the days that went by at once included.
    pub at: f64,
}

/// Everything that the judgement of leases is made of.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// What was published.
    pub sent: Sent,
    /// Rows by key.
    pub rows: BTreeMap<Key, LeaseRow>,
    /// The trail by key, in the order of time.
    pub trail: BTreeMap<Key, Vec<LeaseStep>>,
    /// By which leases a run's step in PostgreSQL was committed.
    pub reserved: BTreeMap<Key, Vec<i64>>,
    /// By which leases its end was committed.
    pub finished: BTreeMap<Key, Vec<i64>>,
    /// The provider's books, in the order in which calls came.
    pub calls: Vec<Call>,
    /// What was in the dead-letter queue.
    pub dead: BTreeSet<Letter>,
    /// What was left in the other queues.
    pub queued: BTreeSet<Letter>,
    /// What those were answered who asked over HTTP.
    pub requests: Requests,
    /// When a lease may have run out though its process was well, or its process was not: deaths, freezes, clocks. As [`LeaseStep::at`].
    pub interruptions: Vec<f64>,
    /// From when to when a process stood still, by the provider's clock.
    pub freezes: Vec<(f64, f64)>,
    /// How often runs may have been given back: a process that was told to stop, an outage.
    pub gave_back: usize,
    /// Leases that lasted too long, as they were seen meanwhile.
    pub overlong: BTreeSet<String>,
    /// When stored times were moved, or a clock set. As [`LeaseStep::at`].
    pub clocks: Vec<f64>,
    /// How many runs of a key failed without a verdict, because no message had succeeded beside them: they are in no trail.
    pub undecided: BTreeMap<Key, usize>,
    /// How often a person let a key that was given up as unknown run again.
    pub leaves: BTreeMap<Key, usize>,
    /// Those of them of which the person said that the call did not happen; the calls of the others are repeated.
    pub settled: BTreeSet<Key>,
    /// How long a lease is, in seconds.
    pub lease: f64,
    /// After how many runs without a word a message is given up.
    pub max_crashes: usize,
}

/// So long after a process went on its calls may be late: by its clocks it has just asked.
const LATE: f64 = 3.0;
/// So long a key is remembered, at the least, in seconds.
const REMEMBERED: f64 = 29.0 * 86_400.0;
/// So long before and after a clock is moved nobody's times are compared, in seconds.
const CLOCK: f64 = 30.0;
/// Of clocks and of a busy machine: between the announcement of a call and the call, in seconds.
const GRAIN: f64 = 0.5;

impl Leases {
    /// Reads the tables.
    pub async fn read(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let key = |row: &sqlx::postgres::PgRow| -> Key { (row.get(0), row.get(1)) };
        let rows = sqlx::query(
            "select tenant, key, status::text, coalesce(fencing_token, 0), owner is not null,
                (select coalesce(jsonb_object_agg(s.key, s.value -> 'token'), '{}')
                 from jsonb_each(coalesce(i.steps, '{}')) as s where s.value ->> 'state' = 'done'),
                coalesce(response ? 'http', false)
             from oncely.idempotency_keys as i where consumer = $1",
        )
        .bind(LEASED)
        .fetch_all(&mut *connection)
        .await?;
        self.rows.clear();
        for row in &rows {
            let stored: serde_json::Value = row.get(5);
            let stored = stored.as_object().into_iter().flatten();
            let stored = stored.filter_map(|(step, token)| Some((step.clone(), token.as_i64()?)));
            let (status, token, is_held, by_request) = (row.get(2), row.get(3), row.get(4), row.get(6));
            let row_of = LeaseRow { status, token, is_held, stored: stored.collect(), by_request };
            self.rows.insert(key(row), row_of);
        }
        sqlx::query("select judge.note()").execute(&mut *connection).await?;
        let rows = sqlx::query(
            "select tenant, key, outcome, attempt, coalesce(reason, ''), coalesce(detail, ''), at::double precision
             from judge.lease_trail order by place",
        )
        .fetch_all(&mut *connection)
        .await?;
        self.trail.clear();
        for row in &rows {
            let (outcome, attempt, reason) = (row.get(2), row.get(3), row.get(4));
            let step = LeaseStep { outcome, attempt, reason, detail: row.get(5), at: row.get(6) };
            self.trail.entry(key(row)).or_default().push(step);
        }
        let reserved = "select tenant, key, token from judge.reserved";
        let finished = "select tenant, key, token from judge.finished";
        for (query, into) in [(reserved, &mut self.reserved), (finished, &mut self.finished)] {
            into.clear();
            for row in sqlx::query(query).fetch_all(&mut *connection).await? {
                into.entry(key(&row)).or_default().push(row.get(2));
            }
        }
        Ok(())
    }

    /// Looks for leases that last too long: `lease` and `max_run` in seconds. Nobody's clock is compared with another one's.
    pub async fn look(
        &mut self,
        connection: &mut PgConnection,
        lease: f64,
        max_run: f64,
    ) -> anyhow::Result<()> {
        // The clock may have been set back by three seconds, and the token is the time of the claim.
        let rows = sqlx::query(
            "select tenant, key from oncely.idempotency_keys
             where consumer = $1 and owner is not null and (
                not_before > run_ends_at
                or not_before > clock_timestamp() + make_interval(secs => $2 + 4)
                or (not_before > clock_timestamp()
                    and clock_timestamp() > to_timestamp(fencing_token / 1000000.0) + make_interval(secs => $2 + $3 + 4)))",
        )
        .bind(LEASED)
        .bind(lease)
        .bind(max_run)
        .fetch_all(connection)
        .await?;
        self.overlong.extend(rows.iter().map(|row| name(&(row.get(0), row.get(1)))));
        Ok(())
    }

    /// How often the trail says this.
    #[must_use]
    pub fn count(&self, outcome: &str) -> u64 {
        self.trail.values().flatten().filter(|step| step.outcome == outcome).count() as u64
    }

    /// Runs that were given up because nobody knew what they had done.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        let of = |step: &&LeaseStep| step.outcome == "dead_lettered" && step.reason == "outcome_unknown";
        self.trail.values().flatten().filter(of).filter(|step| step.attempt > 0).count() as u64
    }

    /// Keys of confirmed messages that have come to no end yet.
    #[must_use]
    pub fn open(&self) -> Vec<&Key> {
        let ended = |key: &Key| {
            self.rows.get(key).map_or_else(|| self.is_forgotten(key), |row| row.status != "IN_PROGRESS")
        };
        let confirmed = self
            .sent
            .keys()
            .filter(|(_, versions)| versions.iter().any(|version| version.class == Class::Confirmed));
        confirmed.map(|(key, _)| key).filter(|key| !ended(key)).collect()
    }

    pub(super) fn judge(&self, found: &mut Findings) {
        self.judge_completions(found);
        self.judge_tokens(found);
        self.judge_takeovers(found);
        let mut by_step: BTreeMap<(&Key, Side), Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_step.entry((&call.key, call.side)).or_default().push(call);
        }
        for ((key, side), calls) in &by_step {
            self.judge_step(key, *side, calls, found);
        }
        self.judge_whereabouts(found);
        self.judge_verdicts(found);
        let is_done = |key: &Key| {
            self.is_forgotten(key) || self.rows.get(key).is_some_and(|row| row.status == "COMPLETED")
        };
        self.requests.judge_by(|key, _| is_done(key), |_, _| false, found);
        for key in &self.overlong {
            found.add(Invariant::L11, What::LeaseTooLong, key);
        }
    }

    fn steps(&self, key: &Key) -> &[LeaseStep] {
        self.trail.get(key).map_or(&[], Vec::as_slice)
    }

    /// Has it come to its end so long ago that its row may be gone?
    fn is_forgotten(&self, key: &Key) -> bool {
        let last = |steps: &[LeaseStep]| steps.iter().map(|step| step.at).fold(0.0, f64::max);
        let now = self.trail.values().map(|steps| last(steps)).fold(0.0, f64::max);
        let is_over = |step: &LeaseStep| matches!(step.outcome.as_str(), "completed" | "dead_lettered");
        !self.rows.contains_key(key)
            && self.steps(key).iter().any(is_over)
            && now - last(self.steps(key)) > REMEMBERED
    }

    /// Did a result come after it was given up because nobody knew one?
    fn is_resolved(&self, key: &Key) -> bool {
        self.steps(key)
            .iter()
            .any(|step| step.outcome == "fenced" && step.detail.contains("knows what became of its call"))
    }

    fn count_outcome(&self, key: &Key, outcome: &str) -> usize {
        self.steps(key).iter().filter(|step| step.outcome == outcome).count()
    }

    /// L1.
    fn judge_completions(&self, found: &mut Findings) {
        let keys: BTreeSet<&Key> =
            self.rows.keys().chain(self.finished.keys()).chain(self.reserved.keys()).collect();
        for key in keys.into_iter().filter(|key| !self.is_forgotten(key)) {
            let is_completed = self.rows.get(key).is_some_and(|row| row.status == "COMPLETED");
            let (audited, finished) =
                (self.count_outcome(key, "completed"), self.finished.get(key).map_or(0, Vec::len));
            let by_request = self.rows.get(key).is_some_and(|row| row.by_request);
            if (audited, finished) != (usize::from(is_completed), usize::from(is_completed && !by_request)) {
                let status = self.rows.get(key).map_or("no row", |row| row.status.as_str());
                let text = format!("{} ({status}) has {audited} completions and {finished} ends", name(key));
                found.add(Invariant::L1, What::Completions, text);
            }
            let reserved = self.reserved.get(key).map_or(0, Vec::len);
            if reserved > 1 || (is_completed && reserved == 0 && !by_request) {
                found.add(
                    Invariant::L1,
                    What::Completions,
                    format!("{}: its step in PostgreSQL {reserved} times", name(key)),
                );
            }
        }
    }

    /// L2.
    fn judge_tokens(&self, found: &mut Findings) {
        let mut highest: BTreeMap<&Key, i64> = BTreeMap::new();
        for call in &self.calls {
            let highest = highest.entry(&call.key).or_insert(call.token);
            if call.token < *highest && !self.may_be_late(call.at) {
                let text = format!(
                    "{}: {} called with {} after {highest}",
                    name(&call.key),
                    call.side.name(),
                    call.token
                );
                found.add(Invariant::L2, What::TokenFell, text);
            }
            *highest = call.token.max(*highest);
        }
        for (key, row) in &self.rows {
            let finished = self.finished.get(key).into_iter().flatten();
            let seen = finished.clone().chain(highest.get(key)).max().copied().unwrap_or(row.token);
            if seen > row.token || finished.clone().any(|token| *token != row.token) {
                let text = format!("{}: {} in the row, and {seen} was there", name(key), row.token);
                found.add(Invariant::L2, What::TokenFell, text);
            }
        }
    }

    /// L2: nobody's lease is taken before its end, and nobody who is well lets it come to that.
    fn judge_takeovers(&self, found: &mut Findings) {
        for (key, steps) in &self.trail {
            let taken: Vec<f64> =
                steps.iter().filter(|step| step.outcome == "taken_over").map(|step| step.at).collect();
            for pair in taken.windows(2) {
                let moved = |at: &f64| *at >= pair[0] - CLOCK && *at <= pair[1] + CLOCK;
                let gap = pair[1] - pair[0];
                if gap < self.lease - GRAIN && !self.clocks.iter().any(moved) {
                    let text = format!("{}: again after {gap:.1} s", name(key));
                    found.add(Invariant::L2, What::TakenEarly, text);
                }
            }
            if !taken.is_empty() && self.interruptions.is_empty() && self.gave_back == 0 {
                found.add(Invariant::L2, What::TakenEarly, format!("{}: all were well", name(key)));
            }
        }
    }

    /// Was a process frozen, or has it just gone on? What it sends then it had begun before.
    fn may_be_late(&self, at: f64) -> bool {
        self.freezes.iter().any(|(from, to)| at >= *from && at <= to + LATE)
    }

    /// L3 to L7: one step of one message.
    fn judge_step(&self, key: &Key, side: Side, calls: &[&Call], found: &mut Findings) {
        let step = format!("{} {}", name(key), side.name());
        let effects = calls.iter().filter(|call| call.has_effect()).count();
        if side.memory() == Memory::Ever && effects > 1 {
            found.add(Invariant::L3, What::EffectRepeated, format!("{step}: {effects} effects"));
        }
        let mut seen: BTreeSet<(&str, i64)> = BTreeSet::new();
        for call in calls {
            if !seen.insert((&call.call_key, call.token)) {
                let text = format!("{step}: twice by {} under {}", call.call_key, call.token);
                found.add(Invariant::L4, What::CallRepeated, text);
            }
        }
        let runs: BTreeSet<i64> = calls.iter().map(|call| call.token).collect();
        let leaves = self.leaves.get(key).copied().unwrap_or(0);
        let explained = 1
            + self.gave_back
            + leaves
            + self.undecided.get(key).copied().unwrap_or(0)
            + self.count_outcome(key, "taken_over")
            + self.count_outcome(key, "retried")
            + self.count_outcome(key, "dead_lettered");
        if runs.len() > explained {
            let text = format!("{step}: {} runs called it, of {explained} that there may be", runs.len());
            found.add(Invariant::L4, What::CallRepeated, text);
        }
        let unsure = calls.iter().filter(|call| call.answer != super::Answer::Refused).count();
        if side == Side::Once && unsure > 1 + leaves {
            found.add(Invariant::L5, What::NeverRepeated, format!("{step}: {unsure} calls"));
        }
        // Until it is known what became of it a call is made by one key, also where a person lets it be repeated, and it is refused then.
        if leaves > 0 && !self.settled.contains(key) && matches!(side, Side::Once | Side::Charge) {
            let doubted = calls.iter().skip_while(|call| call.answer == super::Answer::Refused);
            let keys: BTreeSet<&str> = doubted.map(|call| call.call_key.as_str()).collect();
            if keys.len() > 1 {
                let text = format!("{step}: repeated by {} keys", keys.len());
                found.add(Invariant::L5, What::NeverRepeated, text);
            }
        }
        if let Memory::For(window) = side.memory()
            && leaves == 0
        {
            let mut first: BTreeMap<&str, f64> = BTreeMap::new();
            for call in calls {
                let since = call.at - *first.entry(&call.call_key).or_insert(call.at);
                if since > window.as_secs_f64() + GRAIN && !self.may_be_late(call.at) {
                    found.add(
                        Invariant::L6,
                        What::PastWindow,
                        format!("{step}: {since:.1} s after its first call"),
                    );
                }
            }
        }
        let stored = self.rows.get(key).and_then(|row| row.stored.get(side.name()));
        if let Some(stored) = stored
            && let Some(call) = calls.iter().find(|call| call.token > *stored)
        {
            let text = format!("{step}: called by {}, and {stored} had stored it", call.token);
            found.add(Invariant::L7, What::StoredCalled, text);
        }
    }

    /// L8.
    fn judge_whereabouts(&self, found: &mut Findings) {
        let (dead, queued) = (pairs(&self.dead), pairs(&self.queued));
        for (key, versions) in self.sent.keys().filter(|(key, _)| !self.is_forgotten(key)) {
            let row = self.rows.get(key);
            let is_completed = row.is_some_and(|row| row.status == "COMPLETED");
            for version in versions.iter().filter(|version| version.class == Class::Confirmed) {
                let here = (key, version.digest.as_str());
                let status = row.map_or("no row", |row| row.status.as_str());
                match (is_completed, dead.contains(&here)) {
                    // Its letter waits until a person looks at it.
                    (true, true) if self.is_resolved(key) => {}
                    (true, true) => found.add(Invariant::L8, What::ProcessedAndDead, name(key)),
                    (false, false) if queued.contains(&here) => {
                        found.add(Invariant::L8, What::NotDrained, format!("{} ({status})", name(key)));
                    }
                    (false, false) => {
                        found.add(Invariant::L8, What::Lost, format!("{} ({status})", name(key)));
                    }
                    _ => {}
                }
            }
        }
        for key in &self.settled {
            if self.rows.get(key).is_some_and(|row| row.status == "IN_PROGRESS") {
                found.add(
                    Invariant::L8,
                    What::NotDrained,
                    format!("{} is settled and does not run", name(key)),
                );
            }
        }
        for (key, _) in self.rows.iter().filter(|(_, row)| row.is_held) {
            found.add(Invariant::L8, What::NotDrained, format!("{} is held", name(key)));
        }
    }

    /// L9, and whether each verdict is justified.
    fn judge_verdicts(&self, found: &mut Findings) {
        for (key, steps) in &self.trail {
            let calls = || self.calls.iter().filter(|call| call.key == *key);
            let failed = calls().filter(|call| call.fails()).count();
            let charged = steps.iter().filter(|step| {
                let counts = step.reason.is_empty() || step.reason == "attempts_exhausted";
                step.attempt > 0 && counts && matches!(step.outcome.as_str(), "retried" | "dead_lettered")
            });
            let charged = charged.count();
            if charged > failed {
                let text = format!("{}: {charged} failed runs, and {failed} calls that failed", name(key));
                found.add(Invariant::L9, What::OutageCharged, text);
            }
            for step in steps.iter().filter(|step| step.outcome == "dead_lettered" && step.attempt > 0) {
                let doubt = match step.reason.as_str() {
                    "crash" => {
                        let before = self.interruptions.iter().filter(|at| **at <= step.at + 1.0).count();
                        let taken = self.count_outcome(key, "taken_over");
                        (before.min(taken) < self.max_crashes)
                            .then(|| format!("after {taken} takeovers and {before} deaths"))
                    }
                    "outcome_unknown" => {
                        let may = calls().any(|call| matches!(call.side, Side::Once | Side::Charge));
                        let died = self.count_outcome(key, "taken_over") > 0 || self.gave_back > 0;
                        (!may && !died).then(|| "of nothing that may be unknown".to_owned())
                    }
                    "attempts_exhausted" => None,
                    other => Some(format!("with a reason that nothing explains: {other}")),
                };
                if let Some(doubt) = doubt {
                    let text = format!("{}: {} {doubt} ({})", name(key), step.reason, step.detail);
                    found.add(Invariant::L9, What::UnjustifiedDeadLetter, text);
                }
            }
        }
    }
}
