//! The invariants, each by its name.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::evidence::{Evidence, pairs};
use super::ledger::{Act, Class, FORGOTTEN, FRAGILE, Key, Sent, comes_back};
use super::verdicts;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// A confirmed key has one effect, or none and is in the dead-letter queue for a reason that its traffic explains; one
    /// whose confirm is unknown has one or none; a refused one has none.
    I1,
    /// What was confirmed is processed, in the dead-letter queue or in a queue.
    I2,
    /// What is processed is not in the dead-letter queue, but for another payload's copies.
    I3,
    /// A completed key has one effect and one audit row, and nothing is left without the others.
    I4,
    /// An entry of the mirror belongs to a completed row.
    I5,
    /// The events that arrive are those whose transactions committed, in the order of the commits within an ordering key; an
    /// event may arrive again.
    I6,
    /// Of several payloads under one key one takes effect at most.
    I8,
    /// Outbox, mirror queue and memory are bounded.
    I10,
    /// After a fault the work goes on, and ends.
    I11,
    /// Who is not to blame does not wait: every healthy tenant with work makes progress, and no message that updates a hot row waits for long.
    I12,
    /// A verdict is justified: attempts lie on their ladder, a death stands behind each `crash`, a second payload behind each conflict, and no
    /// attempt is spent on locks.
    I13,
    /// No role does to others what its rights don't say.
    I14,
    /// Who watches survives whatever happens, and is told soon and honestly how it stands.
    I15,
    /// Under leases: a key is completed once, with its own writes.
    L1,
    /// Under leases: tokens never fall, neither in the row nor as the provider sees them, and no lease is taken before its end.
    L2,
    /// Under leases: one effect a step where the other side knows its key again.
    L3,
    /// Under leases: a run calls a step once, and there is a reason for each run.
    L4,
    /// Under leases: what must not be repeated is not.
    L5,
    /// Under leases: no call past the time in which the other side knows its key.
    L6,
    /// Under leases: a step whose result is stored is not called again.
    L7,
    /// Under leases: nothing is lost, and nothing is acknowledged while another run holds it.
    L8,
    /// Under leases: an outage spends no attempt, and nobody is taken for a killer without a death.
    L9,
    /// Over HTTP: whoever is told that a request took effect is told the same each time, and it has; a message of the same key takes no second one.
    L10,
    /// Under leases: no lease goes beyond its run's longest time.
    L11,
    /// Behind a gateway: a request is carried out once, unless a person says that it was not; no answer that broke off looks whole; and what
    /// became of a request stays unknown only where the service broke off, or a gateway died.
    L12,
    /// Beside another consumer: an observer sees each message, takes each key for new once, and does nothing.
    L13,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Confirmed, and nowhere.
    Lost,
    /// More than one effect.
    Doubled,
    /// An effect without a completed key, or of a message that nobody sent.
    OrphanEffect,
    /// A completed key without an effect.
    OrphanKey,
    /// Not one audit row for a completed key, or one without a key.
    OrphanAudit,
    /// The sum and the log of the effects say different things.
    Books,
    /// An effect of a message that was to fail.
    WrongEffect,
    /// An effect of a message that the broker refused.
    RefusedEffect,
    /// A dead letter that the traffic does not explain.
    UnexplainedDeadLetter,
    /// Processed and dead-lettered.
    ProcessedAndDead,
    /// Two payloads of one key took effect.
    ConflictRan,
    /// A mirror entry without a completed row.
    StaleMirror,
    /// A completed row without a mirror entry, where nothing has emptied the mirror.
    MissingMirror,
    /// An event that committed, and neither arrived nor waits.
    EventLost,
    /// An event that arrived and did not commit, or with another body.
    EventUnowed,
    /// An event that arrived for the first time after a later one of its ordering key.
    EventOrder,
    /// Events left in the outbox.
    Outbox,
    /// Records left in the mirror queue.
    MirrorQueue,
    /// Too much memory.
    Memory,
    /// The work did not go on in time.
    NotRecovered,
    /// Still in a queue at the end.
    NotDrained,
    /// A healthy tenant waited too long.
    Starved,
    /// A dead letter whose attempts, deaths or payloads don't bear its verdict out.
    UnjustifiedDeadLetter,
    /// An attempt that was spent on a lock or a deadlock.
    ContentionCharged,
    /// Somebody ran what a stranger had left lying about.
    Trespass,
    /// A key that is long past its retention.
    Uncollected,
    /// Rows of the trail in no partition of their own: they can't be dropped by the week.
    Unpartitioned,
    /// A console, `top`, `doctor` or `status` ended as it should not, or did not end.
    WatcherEnded,
    /// One of them panicked.
    WatcherPanicked,
    /// A page, or what one of them printed, that says nothing.
    WatcherWrong,
    /// A page that took too long.
    WatcherSlow,
    /// Not one completion for a completed key, or not one commit of its writes.
    Completions,
    /// A token smaller than one before.
    TokenFell,
    /// A lease that was taken over before its end.
    TakenEarly,
    /// Two effects of a step.
    EffectRepeated,
    /// A call that no new run and no refusal explains.
    CallRepeated,
    /// A call of what must not be repeated.
    NeverRepeated,
    /// A call that came when its key was no longer known.
    PastWindow,
    /// A call of a step whose result was stored.
    StoredCalled,
    /// An attempt that no failed call explains, or a verdict without a death.
    OutageCharged,
    /// A lease that lasted too long, or that nobody gave up.
    LeaseTooLong,
    /// Two answers to one request.
    AnswersDiffer,
    /// An answer that says that there is an effect where there is none.
    AnsweredInVain,
    /// An answer that nothing explains.
    AnswerUnexpected,
    /// An answer that a browser keeps from the page that has asked.
    AnswerWithheld,
    /// A part of an answer that a client took for the whole.
    AnswerHalf,
    /// A body that was stored as it is, where it was to be encrypted.
    Plaintext,
    /// A message that an observer has not seen, or one that nobody sent.
    Unseen,
    /// One that it took for what it is not: first, twice; a conflict.
    SeenWrong,
}

impl What {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::OrphanEffect => "orphan_effect",
            Self::OrphanKey => "orphan_key",
            Self::OrphanAudit => "orphan_audit",
            Self::Books => "books_disagree",
            Self::WrongEffect => "effect_of_a_failure",
            Self::RefusedEffect => "effect_of_a_refused_message",
            Self::UnexplainedDeadLetter => "unexplained_dead_letter",
            Self::ProcessedAndDead => "processed_and_dead",
            Self::ConflictRan => "two_payloads_ran",
            Self::StaleMirror => "stale_mirror",
            Self::MissingMirror => "missing_mirror",
            Self::EventLost => "event_lost",
            Self::EventUnowed => "event_unowed",
            Self::EventOrder => "event_order",
            Self::Outbox => "outbox_not_drained",
            Self::MirrorQueue => "mirror_queue_not_drained",
            Self::Memory => "memory",
            Self::NotRecovered => "not_recovered",
            Self::NotDrained => "not_drained",
            Self::Starved => "starved",
            Self::UnjustifiedDeadLetter => "unjustified_dead_letter",
            Self::ContentionCharged => "contention_charged",
            Self::Trespass => "trespass",
            Self::Uncollected => "uncollected",
            Self::Unpartitioned => "unpartitioned",
            Self::WatcherEnded => "watcher_ended",
            Self::WatcherPanicked => "watcher_panicked",
            Self::WatcherWrong => "watcher_wrong",
            Self::WatcherSlow => "watcher_slow",
            Self::Completions => "completions_disagree",
            Self::TokenFell => "token_fell",
            Self::TakenEarly => "taken_early",
            Self::EffectRepeated => "effect_repeated",
            Self::CallRepeated => "call_repeated",
            Self::NeverRepeated => "never_repeated",
            Self::PastWindow => "call_past_its_window",
            Self::StoredCalled => "stored_step_called",
            Self::OutageCharged => "outage_charged",
            Self::LeaseTooLong => "lease_too_long",
            Self::AnswersDiffer => "answers_differ",
            Self::AnsweredInVain => "answered_in_vain",
            Self::AnswerUnexpected => "answer_unexpected",
            Self::AnswerWithheld => "answer_withheld",
            Self::AnswerHalf => "answer_half",
            Self::Plaintext => "stored_in_plaintext",
            Self::Unseen => "not_observed",
            Self::SeenWrong => "observed_wrong",
        }
    }
}

/// A broken invariant, with some of the keys that show it (never bodies).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// How.
    pub what: What,
    /// How often.
    pub count: u64,
    /// Some of them.
    pub examples: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (invariant, what, count) = (self.invariant, self.what.name(), self.count);
        write!(f, "{invariant:?} {what}: {count} ({})", self.examples.join("; "))
    }
}

/// Longest time from a fault's end until the work goes on.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
/// Most resident memory of a worker or relay, whatever is sent.
const MEMORY_LIMIT: u64 = 200_000_000;
const EXAMPLES: usize = 5;

#[derive(Default)]
pub(super) struct Findings(Vec<Violation>);

impl Findings {
    pub(super) fn add(&mut self, invariant: Invariant, what: What, example: impl fmt::Display) {
        let found = self.0.iter_mut().find(|v| v.invariant == invariant && v.what == what);
        match found {
            Some(violation) => {
                violation.count += 1;
                if violation.examples.len() < EXAMPLES {
                    violation.examples.push(example.to_string());
                }
            }
            None => self.0.push(Violation { invariant, what, count: 1, examples: vec![example.to_string()] }),
        }
    }
}

/// How often any of these was found.
#[must_use]
pub fn count(violations: &[Violation], what: &[What]) -> u64 {
    violations
        .iter()
        .filter(|violation| what.contains(&violation.what))
        .map(|violation| violation.count)
        .sum()
}

/// Compares what was sent with what is found; empty where all is well.
#[must_use]
pub fn judge(sent: &Sent, evidence: &Evidence) -> Vec<Violation> {
    let mut found = Findings::default();
    effects(sent, evidence, &mut found);
    whereabouts(sent, evidence, &mut found);
    dead_letters(sent, evidence, &mut found);
    rows(evidence, &mut found);
    verdicts::judge(sent, evidence, &mut found);
    evidence.events.judge(&mut found);
    evidence.watched.judge(&mut found);
    evidence.leases.judge(&mut found);
    evidence.proxied.judge(&mut found);
    evidence.observed.judge(&mut found);
    evidence.requests.judge(sent, evidence, &mut found);
    bounds(evidence, &mut found);
    found.0.sort_by_key(|violation| (violation.invariant, violation.what));
    found.0
}

pub(super) fn name(key: &Key) -> String {
    format!("{}/{}", key.0, key.1)
}

/// I1, I8: how often each key took effect, and which of its payloads.
fn effects(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    let none = Vec::new();
    for (key, sum) in &evidence.effects {
        let runs = evidence.runs.get(key).unwrap_or(&none);
        let payloads: BTreeSet<&str> = runs.iter().map(|(digest, _, _)| digest.as_str()).collect();
        let most = if comes_back(&key.0) { payloads.len() } else { 1 };
        if i64::try_from(most).is_ok_and(|most| *sum > most) || runs.len() > most {
            let who: Vec<String> =
                runs.iter().map(|(_, attempt, who)| format!("attempt {attempt} by {who}")).collect();
            found.add(Invariant::I1, What::Doubled, format!("{} {sum} times: {}", name(key), who.join(", ")));
        }
    }
    for key in evidence.effects.keys().chain(evidence.runs.keys()).collect::<BTreeSet<_>>() {
        let (sum, runs) = (evidence.effects.get(key).copied().unwrap_or(0), evidence.runs.get(key));
        let logged = runs.map_or(0, Vec::len);
        if i64::try_from(logged) != Ok(sum) {
            found.add(Invariant::I1, What::Books, format!("{}: sum {sum}, log {logged}", name(key)));
        }
        let digests: BTreeSet<&str> =
            runs.unwrap_or(&none).iter().map(|(digest, _, _)| digest.as_str()).collect();
        if digests.len() > 1 && !comes_back(&key.0) {
            found.add(Invariant::I8, What::ConflictRan, name(key));
        }
        for digest in digests {
            match sent.versions(key).iter().find(|version| version.digest == digest) {
                None => {
                    found.add(Invariant::I4, What::OrphanEffect, format!("{} (nobody sent it)", name(key)))
                }
                Some(version) => {
                    if !version.act.takes_effect() {
                        found.add(Invariant::I1, What::WrongEffect, name(key));
                    }
                    if version.class == Class::Refused {
                        found.add(Invariant::I1, What::RefusedEffect, name(key));
                    }
                }
            }
        }
    }
}

/// I2: nothing confirmed is nowhere; I11: nothing is still under way.
fn whereabouts(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    let (dead, queued) = (pairs(&evidence.dead), pairs(&evidence.queued));
    for (key, versions) in sent.keys() {
        for version in versions.iter().filter(|version| version.class == Class::Confirmed) {
            let here = (key, version.digest.as_str());
            if evidence.ran(key, &version.digest)
                || dead.contains(&here)
                || evidence.discarded.contains(key)
                || (version.act == Act::Refuse && evidence.answered.contains(key))
                || evidence.took_effect_alike(key)
            {
                continue;
            }
            if queued.contains(&here) {
                found.add(Invariant::I11, What::NotDrained, name(key));
            } else {
                let status = evidence.status.get(key).map_or("no row", String::as_str);
                found.add(
                    Invariant::I2,
                    What::Lost,
                    format!("{} ({}, {status})", name(key), version.act.word()),
                );
            }
        }
    }
}

/// I1, I3: why each dead letter is there.
fn dead_letters(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    for letter in &evidence.dead {
        let versions = sent.versions(&letter.key);
        let sent_as = versions.iter().find(|version| version.digest == letter.digest);
        let explained = sent_as.is_some_and(|version| {
            // Who comes back does so when nobody remembers the key.
            let conflict =
                versions.len() > 1 && letter.reason == "key_conflict" && !comes_back(&letter.key.0);
            let missing = version.act == Act::Branch
                && FRAGILE.contains(&letter.key.0.as_str())
                && letter.reason == "attempts_exhausted"
                && evidence.meanwhile.missing.iter().any(|(tenant, _, _)| *tenant == letter.key.0);
            conflict || missing || version.act.reason() == Some(letter.reason.as_str())
        });
        if !explained {
            let what = sent_as.map_or("nobody sent it", |version| version.act.word());
            found.add(
                Invariant::I1,
                What::UnexplainedDeadLetter,
                format!("{} ({what}): {}", name(&letter.key), letter.reason),
            );
        }
        if evidence.ran(&letter.key, &letter.digest) {
            found.add(
                Invariant::I3,
                What::ProcessedAndDead,
                format!("{}: {}", name(&letter.key), letter.reason),
            );
        }
    }
}

/// I4: effects, keys and audit rows belong together.
fn rows(evidence: &Evidence, found: &mut Findings) {
    let completed = |key: &Key| evidence.status.get(key).is_some_and(|status| status == "COMPLETED");
    // What is past its retention may be forgotten.
    let forgotten = |key: &Key| {
        evidence
            .retention
            .is_some_and(|(kept, _)| evidence.day_of.get(key).is_some_and(|day| evidence.days - day >= kept))
    };
    for key in evidence.effects.keys().filter(|key| !completed(key) && !forgotten(key)) {
        found.add(Invariant::I4, What::OrphanEffect, format!("{} (no completed key)", name(key)));
    }
    for (key, status) in &evidence.status {
        if status != "COMPLETED" {
            continue;
        }
        let refused = evidence.refused.get(key).copied().unwrap_or(0);
        if !evidence.effects.contains_key(key) && refused == 0 {
            found.add(Invariant::I4, What::OrphanKey, name(key));
        }
        // An answer, too, is given once.
        let audited = evidence.completed.get(key).copied().unwrap_or(0) + refused;
        // The trail remembers for longer than the key.
        let runs = evidence.runs.get(key).map_or(0, Vec::len);
        let is_known =
            key.0 == FORGOTTEN && audited >= 1 && usize::try_from(audited).is_ok_and(|all| all <= runs);
        if audited != 1 && !is_known {
            found.add(Invariant::I4, What::OrphanAudit, format!("{} has {audited} audit rows", name(key)));
        }
    }
    for key in evidence.completed.keys().filter(|key| !completed(key) && !forgotten(key)) {
        found.add(Invariant::I4, What::OrphanAudit, format!("{} has no completed key", name(key)));
    }
    for entry in &evidence.stale_mirror {
        found.add(Invariant::I5, What::StaleMirror, entry);
    }
    for key in &evidence.missing_mirror {
        found.add(Invariant::I5, What::MissingMirror, key);
    }
}

/// I10, I11, I12, I14.
fn bounds(evidence: &Evidence, found: &mut Findings) {
    for text in evidence.fairness.starved() {
        found.add(Invariant::I12, What::Starved, text);
    }
    for text in &evidence.plaintext {
        found.add(Invariant::I14, What::Plaintext, text);
    }
    for text in &evidence.trespasses {
        found.add(Invariant::I14, What::Trespass, text);
    }
    for text in &evidence.books {
        found.add(Invariant::I1, What::Books, text);
    }
    if let Some((_, collected)) = evidence.retention {
        // The collection may be a day late.
        for (key, day) in &evidence.day_of {
            let age = evidence.days - day;
            if age > collected + 1 && evidence.status.get(key).is_some_and(|status| status == "COMPLETED") {
                found.add(Invariant::I10, What::Uncollected, format!("{} after {age} days", name(key)));
            }
        }
    }
    if evidence.unpartitioned != 0 {
        found.add(Invariant::I10, What::Unpartitioned, format!("{} rows", evidence.unpartitioned));
    }
    if evidence.mirror_queue != 0 {
        found.add(Invariant::I10, What::MirrorQueue, format!("{} records", evidence.mirror_queue));
    }
    if let Some((who, bytes)) = &evidence.memory
        && *bytes > MEMORY_LIMIT
    {
        found.add(Invariant::I10, What::Memory, format!("{who}: {} MiB", bytes >> 20));
    }
    for (fault, recovery) in &evidence.recoveries {
        match recovery {
            Some(took) if *took <= RECOVERY_LIMIT => {}
            Some(took) => found.add(Invariant::I11, What::NotRecovered, format!("{fault}: {took:.1?}")),
            None => found.add(Invariant::I11, What::NotRecovered, format!("{fault}: never")),
        }
    }
}
