//! Decisions, without I/O and without a clock: what a look-up's answer means, and what follows from a failure.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::fault::{Fault, FaultClass};
use crate::fingerprint::{Fingerprint, Likeness};
use crate::identity::Identity;
use crate::reason::{Reason, Rejection};
use crate::retry::RetryPolicy;

/// The state of a key in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStatus {
    /// Failed so far; may run again.
    InProgress,
    /// Took effect.
    Completed,
    /// Given up and dead-lettered.
    Failed,
}

impl KeyStatus {
    /// As it stands in the column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "IN_PROGRESS",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }

    /// From the column's text.
    #[must_use]
    pub fn from_column(text: &str) -> Option<Self> {
        [Self::InProgress, Self::Completed, Self::Failed].into_iter().find(|status| status.as_str() == text)
    }
}

/// What PostgreSQL knows of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRecord {
    /// Its state.
    pub status: KeyStatus,
    /// Fingerprint of the payload that came first; `None` where nothing is compared.
    pub fingerprint: Option<Fingerprint>,
    /// Runs whose result is known.
    pub attempts: u32,
    /// Runs that began after a redelivery and whose end nobody reported.
    pub crash_attempts: u32,
    /// Why it was given up.
    pub reason: Option<Reason>,
    /// Text of the last failure.
    pub last_error: Option<String>,
    /// SQLSTATE of the last failure that it answered for.
    pub error_code: Option<String>,
    /// No copy runs before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// The run that was counted last in `crash_attempts` is still at work: it is no death.
    pub is_running: bool,
    /// It ran under a lease (`oncely.claim_lease`): `not_before` is when the lease ends that holds it.
    pub is_leased: bool,
}

/// What to do with a key that comes back with another payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Dead-letter it as `key_conflict`.
    #[default]
    DeadLetter,
    /// Take it for a duplicate.
    Duplicate,
}

/// What a known key means for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyDecision {
    /// It failed before and may run again.
    Retake,
    /// It ran under a lease, and whoever has none leaves it alone: see [`leased`].
    Leased,
    /// It took effect; nothing runs.
    Duplicate,
    /// It must not run: the key is another payload's, or it was given up before.
    Reject(Rejection),
}

/// Decides from what PostgreSQL knows of the key.
#[must_use]
pub fn decide(record: &KeyRecord, fingerprint: Option<&Fingerprint>, on_conflict: OnConflict) -> KeyDecision {
    let is_other = match (&record.fingerprint, fingerprint) {
        (Some(known), Some(new)) => known.compare(new) == Likeness::Other,
        // One side compares nothing.
        _ => false,
    };
    if is_other && on_conflict == OnConflict::DeadLetter {
        let detail = "this key came before with another payload";
        return KeyDecision::Reject(Rejection::new(Reason::KeyConflict, detail));
    }
    match record.status {
        KeyStatus::Completed => KeyDecision::Duplicate,
        KeyStatus::InProgress if record.is_leased => KeyDecision::Leased,
        KeyStatus::InProgress => KeyDecision::Retake,
        KeyStatus::Failed => KeyDecision::Reject(Rejection::new(
            record.reason.unwrap_or(Reason::AttemptsExhausted),
            match &record.last_error {
                Some(error) => format!("given up before: {error}"),
                None => "given up before".to_owned(),
            },
        )),
    }
}

/// What a consumer without leases makes of a message that ran under one, once it need not wait for its end ([`wait`]). What that run has
/// called outside may have happened, and here nobody would ask.
#[must_use]
pub fn leased() -> Rejection {
    Rejection::new(
        Reason::OutcomeUnknown,
        "runs under leases (oncely.claim_lease) began this message: it runs under one only",
    )
}

/// How much too early a copy may come and run all the same: clocks of two processes differ by about a round trip.
pub const EARLY: Duration = Duration::from_millis(100);

/// How long a copy that may run still has to wait. The wait is the key's, so that copies neither shorten it nor spend attempts.
#[must_use]
pub fn wait(record: &KeyRecord, now: DateTime<Utc>) -> Option<Duration> {
    let wait = record.not_before?.signed_duration_since(now);
    let early = TimeDelta::from_std(EARLY).unwrap_or_default();
    if wait <= early { None } else { wait.to_std().ok() }
}

/// Whether the mirror is asked, and how much a hit in it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrecheckMode {
    /// `trust` where no standby could take over without a mirrored commit, else `verify`.
    Auto,
    /// A hit is acknowledged without a question to PostgreSQL, as long as its epoch was confirmed within a second.
    Trust,
    /// The hits of a batch are confirmed by one look-up in PostgreSQL.
    Verify,
    /// The mirror is not asked.
    Off,
}

/// What a mirror hit is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitDecision {
    /// It took effect: acknowledge without a question to PostgreSQL.
    Believe,
    /// Acknowledge if PostgreSQL confirms it ([`confirms`]).
    Confirm,
    /// As good as none.
    Ignore,
}

/// Decides from what the database said of itself: may it lose commits that it reported, and was it asked a moment ago?
/// Else a failover may lie in between.
#[must_use]
pub fn on_hit(mode: PrecheckMode, may_lose_commits: bool, is_fresh: bool) -> HitDecision {
    match (mode, is_fresh) {
        (PrecheckMode::Off, _) => HitDecision::Ignore,
        (PrecheckMode::Verify, _) => HitDecision::Confirm,
        (PrecheckMode::Auto, _) if may_lose_commits => HitDecision::Confirm,
        (PrecheckMode::Auto | PrecheckMode::Trust, true) => HitDecision::Believe,
        (PrecheckMode::Auto | PrecheckMode::Trust, false) => HitDecision::Ignore,
    }
}

/// Does PostgreSQL's answer confirm a mirror hit?
#[must_use]
pub fn confirms(
    record: Option<&KeyRecord>,
    fingerprint: Option<&Fingerprint>,
    on_conflict: OnConflict,
) -> bool {
    record.is_some_and(|record| {
        record.status == KeyStatus::Completed
            && decide(record, fingerprint, on_conflict) == KeyDecision::Duplicate
    })
}

/// For each message of a batch the earlier one with the same identity, if there is one: only the first is claimed, the
/// others follow its fate.
#[must_use]
pub fn leaders<'a>(identities: impl IntoIterator<Item = &'a Identity>) -> Vec<Option<usize>> {
    let mut first: HashMap<&Identity, usize> = HashMap::new();
    identities
        .into_iter()
        .enumerate()
        .map(|(index, identity)| match first.get(identity) {
            Some(&leader) => Some(leader),
            None => {
                first.insert(identity, index);
                None
            }
        })
        .collect()
}

/// How a redelivered message may run: it came before, and nobody reported what became of it, so it may be what killed a
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Together with other suspects: nearly always all of them are innocent, and lost their channel only.
    Group,
    /// Alone in its process, so that nothing else can be what kills it, and nothing else dies with it.
    Alone,
    /// Not at all: it was at work too often when its process died.
    GiveUp,
}

/// Decides from the runs that were marked before and never reported. A message that kills its process dies once among
/// strangers, once among suspects, and then alone: no neighbour is ever marked more than once on its account.
#[must_use]
pub fn suspicion(crash_attempts: u32, max_crashes: u32) -> Suspicion {
    match crash_attempts {
        marks if marks >= max_crashes => Suspicion::GiveUp,
        0 => Suspicion::Group,
        _ => Suspicion::Alone,
    }
}

/// What follows from a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureDecision {
    /// Again, after this delay.
    Retry(Duration),
    /// Never again.
    GiveUp(Rejection),
    /// It is done: this is the answer.
    Refuse(String),
}

/// Decides after the `attempt`-th run (counted from 1) failed, and the message answers for it ([`crate::blame`]).
#[must_use]
pub fn after_failure(fault: &Fault, attempt: u32, retry: &RetryPolicy) -> FailureDecision {
    let give_up = |reason| FailureDecision::GiveUp(Rejection::new(reason, fault.to_string()));
    match fault.class {
        FaultClass::Refused => FailureDecision::Refuse(fault.message.clone()),
        FaultClass::Rejected => give_up(Reason::HandlerRejected),
        FaultClass::Poison => give_up(Reason::Poison),
        FaultClass::NotJson => give_up(Reason::InvalidJson),
        FaultClass::Crashed => give_up(Reason::Crash),
        FaultClass::Transient | FaultClass::Environment | FaultClass::Contention | FaultClass::Session => {
            match retry.after(attempt) {
                Some(delay) => FailureDecision::Retry(delay),
                None => give_up(Reason::AttemptsExhausted),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityPart;

    fn print(byte: u8) -> Fingerprint {
        Fingerprint::new([0; 4], [byte; 12])
    }

    fn record(status: KeyStatus, fingerprint: Option<u8>) -> KeyRecord {
        KeyRecord {
            status,
            fingerprint: fingerprint.map(print),
            attempts: 1,
            crash_attempts: 0,
            reason: (status == KeyStatus::Failed).then_some(Reason::Poison),
            last_error: None,
            error_code: None,
            not_before: None,
            is_running: false,
            is_leased: false,
        }
    }

    fn reason(decision: &KeyDecision) -> Option<Reason> {
        match decision {
            KeyDecision::Reject(rejection) => Some(rejection.reason),
            _ => None,
        }
    }

    #[test]
    fn the_same_payload_follows_the_state_of_its_key() {
        let print = print(1);
        let of = |status| decide(&record(status, Some(1)), Some(&print), OnConflict::DeadLetter);
        assert_eq!(of(KeyStatus::Completed), KeyDecision::Duplicate);
        assert_eq!(of(KeyStatus::InProgress), KeyDecision::Retake);
        assert_eq!(reason(&of(KeyStatus::Failed)), Some(Reason::Poison));
    }

    #[test]
    fn another_payload_never_runs_and_is_never_dropped_unless_the_consumer_says_so() {
        let other = print(2);
        for status in [KeyStatus::Completed, KeyStatus::InProgress, KeyStatus::Failed] {
            let decision = decide(&record(status, Some(1)), Some(&other), OnConflict::DeadLetter);
            assert_eq!(reason(&decision), Some(Reason::KeyConflict));
        }
        let lenient = decide(&record(KeyStatus::Completed, Some(1)), Some(&other), OnConflict::Duplicate);
        assert_eq!(lenient, KeyDecision::Duplicate);
    }

    #[test]
    fn no_fingerprint_on_either_side_means_the_key_alone_decides() {
        let print = print(1);
        let completed = |known| record(KeyStatus::Completed, known);
        assert_eq!(decide(&completed(None), Some(&print), OnConflict::DeadLetter), KeyDecision::Duplicate);
        assert_eq!(decide(&completed(Some(9)), None, OnConflict::DeadLetter), KeyDecision::Duplicate);
    }

    #[test]
    fn a_payload_under_another_policy_is_not_another_payload() {
        let other = Fingerprint::new([1; 4], [2; 12]);
        let of = |status| decide(&record(status, Some(1)), Some(&other), OnConflict::DeadLetter);
        assert_eq!(of(KeyStatus::Completed), KeyDecision::Duplicate);
        assert_eq!(of(KeyStatus::InProgress), KeyDecision::Retake);
        assert_eq!(reason(&of(KeyStatus::Failed)), Some(Reason::Poison));
    }

    #[test]
    fn a_hit_is_believed_only_of_an_epoch_that_was_confirmed_a_moment_ago() {
        use HitDecision::{Believe, Confirm, Ignore};
        for (mode, may_lose_commits, is_fresh, expected) in [
            (PrecheckMode::Trust, true, true, Believe),
            (PrecheckMode::Trust, false, false, Ignore),
            (PrecheckMode::Auto, false, true, Believe),
            (PrecheckMode::Auto, false, false, Ignore),
            (PrecheckMode::Auto, true, true, Confirm),
            (PrecheckMode::Auto, true, false, Confirm),
            (PrecheckMode::Verify, false, true, Confirm),
            (PrecheckMode::Off, false, true, Ignore),
        ] {
            assert_eq!(on_hit(mode, may_lose_commits, is_fresh), expected, "{mode:?}");
        }
    }

    #[test]
    fn only_a_key_that_took_effect_with_this_payload_confirms_a_hit() {
        let print = print(1);
        let of = |record: Option<KeyRecord>| confirms(record.as_ref(), Some(&print), OnConflict::DeadLetter);
        assert!(of(Some(record(KeyStatus::Completed, Some(1)))));
        assert!(!of(Some(record(KeyStatus::Completed, Some(2)))));
        assert!(!of(Some(record(KeyStatus::InProgress, Some(1)))));
        assert!(!of(Some(record(KeyStatus::Failed, Some(1)))));
        assert!(!of(None));
    }

    #[test]
    fn the_first_of_equal_identities_leads() {
        let identity = |key: &str| Identity {
            tenant: IdentityPart::new(b"t").unwrap(),
            consumer: IdentityPart::new(b"c").unwrap(),
            key: IdentityPart::new(key.as_bytes()).unwrap(),
        };
        let batch = [identity("a"), identity("b"), identity("a"), identity("a")];
        assert_eq!(leaders(&batch), [None, None, Some(0), Some(0)]);
    }

    #[test]
    fn a_copy_waits_as_long_as_its_key() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let of = |not_before| wait(&KeyRecord { not_before, ..record(KeyStatus::InProgress, None) }, now);
        assert_eq!(of(None), None);
        assert_eq!(of(Some(now)), None);
        assert_eq!(of(Some(now + EARLY)), None, "as good as due");
        assert_eq!(of(Some(now + Duration::from_secs(60))), Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_suspect_runs_with_others_once_then_alone_then_never() {
        let of = |marks| suspicion(marks, 3);
        assert_eq!(
            [0, 1, 2, 3, 9].map(of),
            [Suspicion::Group, Suspicion::Alone, Suspicion::Alone, Suspicion::GiveUp, Suspicion::GiveUp]
        );
        assert_eq!(suspicion(0, 1), Suspicion::Group);
        assert_eq!(suspicion(1, 1), Suspicion::GiveUp);
    }

    #[test]
    fn each_class_of_fault_has_one_consequence() {
        let retry = RetryPolicy { delays: vec![Duration::from_secs(1)], max_attempts: 2, max_crashes: 3 };
        let of = |class, attempt| after_failure(&Fault::new(class, None, "x"), attempt, &retry);
        assert_eq!(of(FaultClass::Transient, 1), FailureDecision::Retry(Duration::from_secs(1)));
        assert_eq!(of(FaultClass::Environment, 1), FailureDecision::Retry(Duration::from_secs(1)));
        assert_eq!(of(FaultClass::Refused, 99), FailureDecision::Refuse("x".to_owned()));
        for (class, attempt, expected) in [
            (FaultClass::Transient, 2, Reason::AttemptsExhausted),
            (FaultClass::Poison, 1, Reason::Poison),
            (FaultClass::Rejected, 1, Reason::HandlerRejected),
            (FaultClass::NotJson, 1, Reason::InvalidJson),
            (FaultClass::Crashed, 1, Reason::Crash),
        ] {
            match of(class, attempt) {
                FailureDecision::GiveUp(rejection) => assert_eq!(rejection.reason, expected),
                other => panic!("{class:?}: {other:?}"),
            }
        }
    }
}
