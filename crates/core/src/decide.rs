//! Decisions, without I/O and without a clock: the meaning of a look-up's answer, and the consequences of a failure.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::fault::{Fault, FaultClass};
use crate::fingerprint::{Fingerprint, Likeness};
use crate::identity::Identity;
use crate::reason::{Reason, Rejection};
use crate::retry::RetryPolicy;

crate::words! {
    array;
    /// The state of a key in PostgreSQL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum KeyStatus {
        /// Failed so far; may run again.
        InProgress = "IN_PROGRESS",
        /// Took effect.
        Completed = "COMPLETED",
        /// Given up and dead-lettered.
        Failed = "FAILED",
    }
}

impl KeyStatus {
    /// Parses a key's state from its column; `None` for an unknown one.
    #[must_use]
    pub fn from_column(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// A key's row in PostgreSQL.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRecord {
    /// Its state.
    pub status: KeyStatus,
    /// Fingerprint of the first payload; `None` if nothing is compared.
    pub fingerprint: Option<Fingerprint>,
    /// Runs with a known result.
    pub attempts: u32,
    /// Runs that began after a redelivery and have not reported their end.
    pub crash_attempts: u32,
    /// Reason code, if it was given up.
    pub reason: Option<Reason>,
    /// Text of the last failure.
    pub last_error: Option<String>,
    /// SQLSTATE of the last failure that was attributed to it.
    pub error_code: Option<String>,
    /// No copy runs before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// Whether the run counted last in `crash_attempts` is still at work, so that it is no crash.
    pub is_running: bool,
    /// Whether it ran under a lease (`oncely.claim_lease`): `not_before` is then the end of its lease.
    pub is_leased: bool,
}

/// Treatment of a key that comes back with another payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// Dead-letters it as `key_conflict`.
    #[default]
    DeadLetter,
    /// Treats it as a duplicate.
    Duplicate,
}

/// Meaning of a known key for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyDecision {
    /// It failed before and may run again.
    Retake,
    /// It ran under a lease, so a consumer without leases must not run it: see [`build_leased_rejection`].
    Leased,
    /// It took effect; no handler runs.
    Duplicate,
    /// It must not run: the key belongs to another payload, or was given up before.
    Reject(Rejection),
}

/// Decides from a key's row whether a delivery with this fingerprint runs, is a duplicate, or is rejected.
#[must_use]
pub fn decide_on_key(
    record: &KeyRecord,
    fingerprint: Option<&Fingerprint>,
    on_conflict: OnConflict,
) -> KeyDecision {
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

/// Builds the rejection by a consumer without leases of a message that ran under one, after the wait for its end ([`remaining_wait`]).
/// Outside calls of that run may have happened, and this consumer can't query them.
#[must_use]
pub fn build_leased_rejection() -> Rejection {
    Rejection::new(
        Reason::OutcomeUnknown,
        "runs under leases (oncely.claim_lease) began this message: it runs under one only",
    )
}

/// Tolerance for a copy that comes early: clocks of two processes differ by about a round trip.
pub const EARLY_TOLERANCE: Duration = Duration::from_millis(100);

/// Returns the remaining wait of a copy; `None` if it may run. The wait belongs to the key: copies neither shorten it nor use attempts.
#[must_use]
pub fn remaining_wait(record: &KeyRecord, now: DateTime<Utc>) -> Option<Duration> {
    let wait = record.not_before?.signed_duration_since(now);
    let tolerance = TimeDelta::from_std(EARLY_TOLERANCE).unwrap_or_default();
    if wait <= tolerance { None } else { wait.to_std().ok() }
}

/// Whether the mirror is queried, and how far a hit is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrecheckMode {
    /// `trust` if no standby could take over without a mirrored commit, otherwise `verify`.
    Auto,
    /// A hit is acknowledged without a query of PostgreSQL, if its epoch was confirmed within a second.
    Trust,
    /// The hits of a batch are confirmed by one look-up in PostgreSQL.
    Verify,
    /// The mirror is not queried.
    Off,
}

/// Use of a mirror hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitDecision {
    /// It took effect: acknowledge without a query of PostgreSQL.
    Believe,
    /// Acknowledge if PostgreSQL confirms it ([`is_hit_confirmed`]).
    Confirm,
    /// Treat it as a miss.
    Ignore,
}

/// Decides on a mirror hit: `may_lose_commits` is whether a failover could lose reported commits, `is_fresh` whether the database's epoch
/// was just confirmed. If not, a failover may have happened since.
#[must_use]
pub fn decide_on_hit(mode: PrecheckMode, may_lose_commits: bool, is_fresh: bool) -> HitDecision {
    match (mode, is_fresh) {
        (PrecheckMode::Off, _) => HitDecision::Ignore,
        (PrecheckMode::Verify, _) => HitDecision::Confirm,
        (PrecheckMode::Auto, _) if may_lose_commits => HitDecision::Confirm,
        (PrecheckMode::Auto | PrecheckMode::Trust, true) => HitDecision::Believe,
        (PrecheckMode::Auto | PrecheckMode::Trust, false) => HitDecision::Ignore,
    }
}

/// Returns whether PostgreSQL's answer confirms a mirror hit.
#[must_use]
pub fn is_hit_confirmed(
    record: Option<&KeyRecord>,
    fingerprint: Option<&Fingerprint>,
    on_conflict: OnConflict,
) -> bool {
    record.is_some_and(|record| {
        record.status == KeyStatus::Completed
            && decide_on_key(record, fingerprint, on_conflict) == KeyDecision::Duplicate
    })
}

/// Finds for each message of a batch the position of the first earlier one with the same identity; `None` for the first itself. Only the
/// first is claimed, and the others get its result.
#[must_use]
pub fn find_leaders<'a>(identities: impl IntoIterator<Item = &'a Identity>) -> Vec<Option<usize>> {
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

/// Isolation of a redelivered message: it came before without a reported result, so it may have crashed a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Together with other suspects: nearly always none of them is the cause, and only their channel was lost.
    Group,
    /// Alone in its process, so that a crash has no other cause, and affects no other message.
    Alone,
    /// Not at all: it was at work in too many crashes.
    GiveUp,
}

/// Decides how a suspect may run, from its runs that were marked before and never reported. A message that crashes its process does so
/// once among all messages, once among suspects, and then alone: no neighbour is ever marked more than once because of it.
#[must_use]
pub fn decide_on_suspect(crash_attempts: u32, max_crashes: u32) -> Suspicion {
    match crash_attempts {
        marks if marks >= max_crashes => Suspicion::GiveUp,
        0 => Suspicion::Group,
        _ => Suspicion::Alone,
    }
}

/// Consequence of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureDecision {
    /// Run again, after this delay.
    Retry(Duration),
    /// Never run again.
    GiveUp(Rejection),
    /// Complete the key with this refusal.
    Refuse(String),
}

/// Decides after the `attempt`-th run (counted from 1) failed, and the failure is attributed to the message ([`crate::blame`]).
#[must_use]
pub fn decide_after_failure(fault: &Fault, attempt: u32, retry: &RetryPolicy) -> FailureDecision {
    let give_up = |reason| FailureDecision::GiveUp(Rejection::new(reason, fault.to_string()));
    match fault.class {
        FaultClass::Refused => FailureDecision::Refuse(fault.message.clone()),
        FaultClass::Rejected => give_up(Reason::HandlerRejected),
        FaultClass::Poison => give_up(Reason::Poison),
        FaultClass::NotJson => give_up(Reason::InvalidJson),
        FaultClass::Crashed => give_up(Reason::Crash),
        FaultClass::Transient | FaultClass::Environment | FaultClass::Contention | FaultClass::Session => {
            match retry.delay_after(attempt) {
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
        let of = |status| decide_on_key(&record(status, Some(1)), Some(&print), OnConflict::DeadLetter);
        assert_eq!(of(KeyStatus::Completed), KeyDecision::Duplicate);
        assert_eq!(of(KeyStatus::InProgress), KeyDecision::Retake);
        assert_eq!(reason(&of(KeyStatus::Failed)), Some(Reason::Poison));
    }

    #[test]
    fn another_payload_never_runs_and_is_never_dropped_unless_the_consumer_says_so() {
        let other = print(2);
        for status in [KeyStatus::Completed, KeyStatus::InProgress, KeyStatus::Failed] {
            let decision = decide_on_key(&record(status, Some(1)), Some(&other), OnConflict::DeadLetter);
            assert_eq!(reason(&decision), Some(Reason::KeyConflict));
        }
        let lenient =
            decide_on_key(&record(KeyStatus::Completed, Some(1)), Some(&other), OnConflict::Duplicate);
        assert_eq!(lenient, KeyDecision::Duplicate);
    }

    #[test]
    fn no_fingerprint_on_either_side_means_the_key_alone_decides() {
        let print = print(1);
        let completed = |known| record(KeyStatus::Completed, known);
        assert_eq!(
            decide_on_key(&completed(None), Some(&print), OnConflict::DeadLetter),
            KeyDecision::Duplicate
        );
        assert_eq!(decide_on_key(&completed(Some(9)), None, OnConflict::DeadLetter), KeyDecision::Duplicate);
    }

    #[test]
    fn a_payload_under_another_policy_is_not_another_payload() {
        let other = Fingerprint::new([1; 4], [2; 12]);
        let of = |status| decide_on_key(&record(status, Some(1)), Some(&other), OnConflict::DeadLetter);
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
            assert_eq!(decide_on_hit(mode, may_lose_commits, is_fresh), expected, "{mode:?}");
        }
    }

    #[test]
    fn only_a_key_that_took_effect_with_this_payload_confirms_a_hit() {
        let print = print(1);
        let of = |record: Option<KeyRecord>| {
            is_hit_confirmed(record.as_ref(), Some(&print), OnConflict::DeadLetter)
        };
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
        assert_eq!(find_leaders(&batch), [None, None, Some(0), Some(0)]);
    }

    #[test]
    fn a_copy_waits_as_long_as_its_key() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let of = |not_before| {
            remaining_wait(&KeyRecord { not_before, ..record(KeyStatus::InProgress, None) }, now)
        };
        assert_eq!(of(None), None);
        assert_eq!(of(Some(now)), None);
        assert_eq!(of(Some(now + EARLY_TOLERANCE)), None, "as good as due");
        assert_eq!(of(Some(now + Duration::from_secs(60))), Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_suspect_runs_with_others_once_then_alone_then_never() {
        let of = |marks| decide_on_suspect(marks, 3);
        assert_eq!(
            [0, 1, 2, 3, 9].map(of),
            [Suspicion::Group, Suspicion::Alone, Suspicion::Alone, Suspicion::GiveUp, Suspicion::GiveUp]
        );
        assert_eq!(decide_on_suspect(0, 1), Suspicion::Group);
        assert_eq!(decide_on_suspect(1, 1), Suspicion::GiveUp);
    }

    #[test]
    fn each_class_of_fault_has_one_consequence() {
        let retry = RetryPolicy { delays: vec![Duration::from_secs(1)], max_attempts: 2, max_crashes: 3 };
        let of = |class, attempt| decide_after_failure(&Fault::new(class, None, "x"), attempt, &retry);
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
