//! Findings: the invariants, each by its name, and how they are broken.

use std::fmt;

use super::ledger::Key;

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

const EXAMPLES: usize = 5;

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Violation>);

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

/// A key as findings name it.
pub(super) fn name(key: &Key) -> String {
    format!("{}/{}", key.0, key.1)
}
