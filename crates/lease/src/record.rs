//! A key's record and its transitions: the state machine, without I/O and without a clock. Times are microseconds since 1970, by the
//! store's clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::check::{DAY, truncate_error};
use super::claim::{Claim, ClaimOutcome, Grant};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, RefusedCall, RenewOutcome};
use super::micros::{from_micros, to_micros};
use super::step::Step;
use super::steps::Steps;
use oncely_core::decide::{EARLY_TOLERANCE, KeyDecision, KeyRecord, KeyStatus, OnConflict, decide_on_key};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;

/// The record of a key in a store of [`Cells`](super::Cells). Opaque: it is stored in its serialised form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    state: RecordState,
    #[serde(with = "print")]
    fingerprint: Fingerprint,
    token: i64,
    attempts: u32,
    crashes: u32,
    retention: i64,
    #[doc(hidden)]
    pub expires_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Steps::is_empty")]
    steps: Steps,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RecordState {
    Free {
        not_before: i64,
    },
    Held {
        owner: String,
        until: i64,
        run_until: i64,
    },
    Completed {
        // Omitted if there is no response: a response may be null.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "deserialize_some")]
        response: Option<Value>,
    },
    Failed {
        #[serde(with = "code")]
        reason: Reason,
    },
}

/// The current time, and the time beyond its end that a lease is left to its holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordTime {
    pub(super) at: i64,
    pub(super) grace: i64,
}

impl Record {
    /// Returns the time (microseconds since 1970) from which the record is no longer needed.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        self.expires_at
    }

    fn status(&self) -> KeyStatus {
        match self.state {
            RecordState::Free { .. } | RecordState::Held { .. } => KeyStatus::InProgress,
            RecordState::Completed { .. } => KeyStatus::Completed,
            RecordState::Failed { .. } => KeyStatus::Failed,
        }
    }

    /// Converts the record for [`decide_on_key`].
    fn to_key_record(&self) -> KeyRecord {
        let reason = match self.state {
            RecordState::Failed { reason } => Some(reason),
            _ => None,
        };
        KeyRecord {
            status: self.status(),
            fingerprint: Some(self.fingerprint),
            attempts: self.attempts,
            crash_attempts: self.crashes,
            reason,
            last_error: self.error.clone(),
            error_code: None,
            not_before: None,
            is_running: false,
            is_leased: false,
        }
    }

    /// Applies a claim to the stored record, `None` if the key has none. Returns the new record, `None` if it does not change, and the
    /// outcome.
    pub(super) fn claim(
        record: Option<&Self>,
        claim: &Claim<'_>,
        now: RecordTime,
    ) -> (Option<Self>, ClaimOutcome) {
        let fingerprint = Fingerprint::from_digest(&claim.fingerprint);
        let held_state = RecordState::Held {
            owner: claim.owner.to_owned(),
            until: now.at.saturating_add(to_micros(claim.lease)),
            run_until: now.at.saturating_add(to_micros(claim.max_run)),
        };
        let retention = to_micros(claim.retention);
        let expires_at = now.at.saturating_add(retention);
        let record = match record {
            // An expired record counts as absent.
            None => None,
            Some(record) if record.expires_at <= now.at => None,
            Some(record) => Some(record),
        };
        let Some(record) = record else {
            let token = now.at;
            let record = Self {
                state: held_state,
                fingerprint,
                token,
                attempts: 0,
                crashes: 0,
                retention,
                expires_at,
                error: None,
                steps: Steps::default(),
            };
            return (Some(record), ClaimOutcome::Granted(Grant { token, attempt: 1, is_takeover: false }));
        };
        match decide_on_key(&record.to_key_record(), Some(&fingerprint), OnConflict::DeadLetter) {
            KeyDecision::Reject(rejection) if rejection.reason == Reason::KeyConflict => {
                return (None, ClaimOutcome::Conflict);
            }
            KeyDecision::Reject(rejection) => {
                let (reason, detail) = (rejection.reason, rejection.detail);
                return (None, ClaimOutcome::GivenUp { reason, detail });
            }
            KeyDecision::Duplicate => {
                let response = match &record.state {
                    RecordState::Completed { response } => response.clone(),
                    _ => None,
                };
                return (None, ClaimOutcome::Done(response));
            }
            KeyDecision::Retake | KeyDecision::Leased => {}
        }
        record.take(claim, now, held_state)
    }

    /// Takes a key that is neither completed nor given up for a claim, unless another run holds it or its delay is not over. A key with too
    /// many crashed runs is given up. Returns the new record, `None` if it does not change, and the outcome.
    fn take(
        &self,
        claim: &Claim<'_>,
        now: RecordTime,
        held_state: RecordState,
    ) -> (Option<Self>, ClaimOutcome) {
        let was_held = match &self.state {
            // The same acquisition after a lost reply: its run has not begun, and gets its full time.
            RecordState::Held { owner, until, .. } if owner == claim.owner => {
                let run_until = now.at.saturating_add(to_micros(claim.max_run));
                let (owner, until) = (owner.clone(), *until);
                let mut record =
                    Self { state: RecordState::Held { owner, until, run_until }, ..self.clone() };
                record.extend(claim.lease, now.at);
                return (Some(record), ClaimOutcome::Granted(self.grant()));
            }
            RecordState::Held { until, .. } => {
                let remaining = until.saturating_add(now.grace).saturating_sub(now.at);
                // No lease is longer than a day: a longer one was granted by a clock that was ahead.
                if remaining > 0 && remaining <= to_micros(DAY).saturating_add(now.grace) {
                    return (None, ClaimOutcome::InFlight(from_micros(remaining)));
                }
                true
            }
            RecordState::Free { not_before } => {
                let remaining = not_before.saturating_sub(now.at);
                if remaining > to_micros(EARLY_TOLERANCE) {
                    return (None, ClaimOutcome::Wait(from_micros(remaining)));
                }
                false
            }
            RecordState::Completed { .. } | RecordState::Failed { .. } => false,
        };
        let mut record = Self {
            token: now.at.max(self.token.saturating_add(1)),
            crashes: self.crashes.saturating_add(u32::from(was_held)),
            state: held_state,
            retention: to_micros(claim.retention),
            expires_at: now.at.saturating_add(to_micros(claim.retention)),
            ..self.clone()
        };
        if was_held && record.crashes >= claim.max_crashes {
            let detail = format!("{} runs under a lease ended without a word", record.crashes);
            record.error = Some(detail.clone());
            record.state = RecordState::Failed { reason: Reason::Crash };
            return (Some(record), ClaimOutcome::GivenUp { reason: Reason::Crash, detail });
        }
        let grant = record.grant();
        (Some(record), ClaimOutcome::Granted(grant))
    }

    fn grant(&self) -> Grant {
        Grant { token: self.token, attempt: self.attempts.saturating_add(1), is_takeover: self.crashes > 0 }
    }

    /// Extends the lease, but never beyond its run.
    fn extend(&mut self, lease: Duration, at: i64) {
        if let RecordState::Held { until, run_until, .. } = &mut self.state {
            *until = (*until).max(at.saturating_add(to_micros(lease))).min(*run_until);
        }
    }

    /// Returns whether a run holds the key.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, RecordState::Held { .. })
    }

    fn is_held(&self, token: i64) -> bool {
        matches!(self.state, RecordState::Held { .. }) && self.token == token
    }

    /// Returns the record with the lease renewed, for a change by its holder; [`StoreError::Lost`] for any other run. `is_beginning`:
    /// the change is refused after the time of the run, even if no other run has taken the key over yet.
    fn renew_as_holder(
        &self,
        token: i64,
        lease: Duration,
        at: i64,
        is_beginning: bool,
    ) -> Result<Self, StoreError> {
        let is_in_time = match self.state {
            RecordState::Held { run_until, .. } => run_until > at,
            _ => false,
        };
        if !self.is_held(token) || (is_beginning && !is_in_time) {
            return Err(StoreError::Lost);
        }
        let mut record = self.clone();
        record.extend(lease, at);
        Ok(record)
    }

    /// Renews the lease. Returns the changed record, `None` if the lease is lost, and the outcome.
    pub(super) fn renew(&self, token: i64, lease: Duration, at: i64) -> (Option<Self>, RenewOutcome) {
        match self.renew_as_holder(token, lease, at, true) {
            Ok(record) => {
                let remaining = match record.state {
                    RecordState::Held { until, .. } => from_micros(until.saturating_sub(at)),
                    _ => Duration::ZERO,
                };
                (Some(record), RenewOutcome::Until(remaining))
            }
            Err(_) => (None, RenewOutcome::Lost),
        }
    }

    /// Completes the key; `None` if this same lease has completed it already.
    pub(super) fn complete(
        &self,
        token: i64,
        response: Option<&Value>,
        at: i64,
    ) -> Result<Option<Self>, StoreError> {
        if self.token == token && matches!(self.state, RecordState::Completed { .. }) {
            return Ok(None);
        }
        if !self.is_held(token) {
            return Err(StoreError::Lost);
        }
        Ok(Some(Self {
            state: RecordState::Completed { response: response.cloned() },
            attempts: self.attempts.saturating_add(1),
            error: None,
            expires_at: at.saturating_add(self.retention),
            ..self.clone()
        }))
    }

    /// Applies a failure. Returns the changed record, `None` if it does not change, and the outcome.
    pub(super) fn fail(&self, token: i64, failure: &Failure<'_>, at: i64) -> (Option<Self>, FailOutcome) {
        let attempts = self.attempts;
        if self.token != token {
            return (None, FailOutcome::Lost);
        }
        match self.state {
            // Repeated after a lost reply; or this same run has released the key.
            RecordState::Free { .. } => return (None, FailOutcome::Retry { attempts }),
            RecordState::Failed { reason } => return (None, FailOutcome::GivenUp { attempts, reason }),
            RecordState::Completed { .. } => return (None, FailOutcome::Completed),
            RecordState::Held { .. } => {}
        }
        let attempts = attempts.saturating_add(1);
        let exhausted_reason = (attempts >= failure.max_attempts).then_some(Reason::AttemptsExhausted);
        let mut record = Self { attempts, error: Some(truncate_error(failure.error)), ..self.clone() };
        record.expires_at = at.saturating_add(to_micros(failure.delay)).saturating_add(self.retention);
        match failure.reason.or(exhausted_reason) {
            Some(reason) => {
                record.state = RecordState::Failed { reason };
                (Some(record), FailOutcome::GivenUp { attempts, reason })
            }
            None => {
                record.state = RecordState::Free { not_before: at.saturating_add(to_micros(failure.delay)) };
                // The process is alive: it reports this failure.
                record.crashes = 0;
                (Some(record), FailOutcome::Retry { attempts })
            }
        }
    }

    /// Releases the key. Returns the changed record, `None` if it does not change, and whether the key is free by this lease.
    pub(super) fn release(&self, token: i64) -> (Option<Self>, bool) {
        if self.is_held(token) {
            return (Some(Self { state: RecordState::Free { not_before: 0 }, ..self.clone() }), true);
        }
        (None, self.token == token && matches!(self.state, RecordState::Free { .. }))
    }

    /// Records that a step is about to be called.
    pub(super) fn begin_step(
        &self,
        (identity, token): (&Identity, i64),
        step: &Step,
        call: Uuid,
        (lease, at): (Duration, i64),
    ) -> Result<(Self, BegunStep), StoreError> {
        let mut record = self.renew_as_holder(token, lease, at, true)?;
        let begun_step = record.steps.begin((identity, token), step, call, at)?;
        Ok((record, begun_step))
    }

    /// Stores a result; `None` if it is stored already.
    pub(super) fn checkpoint(
        &self,
        token: i64,
        step: &str,
        result: &Value,
        (lease, at): (Duration, i64),
    ) -> Result<Option<Self>, StoreError> {
        let Ok(mut record) = self.renew_as_holder(token, lease, at, false) else {
            // Repeated after a lost reply.
            if self.steps.has_stored(token, step, result) {
                return Ok(None);
            }
            let resolution = self.resolve(token, step, None, |steps| steps.store(token, step, result))?;
            return Ok(Some(resolution.0));
        };
        let has_changed = record.steps.store(token, step, result)?;
        Ok(has_changed.then_some(record))
    }

    /// Records that a call of a step did not happen. Returns the changed record, `None` if it does not change, and the next round.
    pub(super) fn refuse_step(
        &self,
        token: i64,
        step: &str,
        refused: RefusedCall,
        (lease, at): (Duration, i64),
    ) -> Result<(Option<Self>, u32), StoreError> {
        let Ok(mut record) = self.renew_as_holder(token, lease, at, false) else {
            if let Some(next) = self.steps.round_after_refusal(token, step, refused) {
                return Ok((None, next));
            }
            let (record, next) =
                self.resolve(token, step, Some(refused), |steps| steps.refuse(token, step, refused))?;
            return Ok((Some(record), next.round));
        };
        let next = record.steps.refuse(token, step, refused)?;
        Ok((next.has_changed.then_some(record), next.round))
    }

    /// Stores the outcome of a call after the end of its lease, unless another run has repeated the call. The key may run again if it was
    /// given up only because this outcome was unknown, or if the run that holds it has learned from its step that it is.
    fn resolve<T>(
        &self,
        token: i64,
        step: &str,
        refused: Option<RefusedCall>,
        store: impl FnOnce(&mut Steps) -> Result<T, StoreError>,
    ) -> Result<(Self, T), StoreError> {
        if matches!(self.state, RecordState::Completed { .. })
            || !self.steps.is_in_doubt(token, step, refused)
        {
            return Err(StoreError::Lost);
        }
        let mut record = self.clone();
        let value = store(&mut record.steps)?;
        let may_run = match self.state {
            RecordState::Held { .. } => self.steps.doubting_token(step) == Some(self.token),
            RecordState::Failed { reason: Reason::OutcomeUnknown } => !record.steps.is_any_in_doubt(),
            RecordState::Free { .. } | RecordState::Completed { .. } | RecordState::Failed { .. } => false,
        };
        if may_run {
            record.state = RecordState::Free { not_before: 0 };
        }
        Ok((record, value))
    }

    /// Converts the record to the state that operators see.
    pub(super) fn to_snapshot(&self) -> KeySnapshot {
        let owner = match &self.state {
            RecordState::Held { owner, .. } => Some(owner.clone()),
            _ => None,
        };
        let response = match &self.state {
            RecordState::Completed { response } => response.clone(),
            _ => None,
        };
        KeySnapshot {
            status: self.status(),
            owner,
            token: self.token,
            attempts: self.attempts,
            crashes: self.crashes,
            reason: self.to_key_record().reason,
            response,
        }
    }
}

/// Reads a response that is present, `null` included, as `Some`.
fn deserialize_some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A fingerprint as hexadecimal digits.
mod print {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use oncely_core::fingerprint::Fingerprint;

    pub(super) fn serialize<S: Serializer>(print: &Fingerprint, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", u128::from_be_bytes(print.0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fingerprint, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).map_err(D::Error::custom)?;
        Ok(Fingerprint(number.to_be_bytes()))
    }
}

/// A reason as its code.
mod code {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use oncely_core::reason::Reason;

    pub(super) fn serialize<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(reason.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Reason, D::Error> {
        Ok(Reason::from_stored_code(&String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Repeat;
    use oncely_core::identity::IdentityPart;

    #[test]
    fn a_record_in_every_state_is_read_as_it_was_written() {
        let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
        let identity = Identity { tenant: part("acme"), consumer: part("payments"), key: part("order 1") };
        let day = Duration::from_secs(86_400);
        let claim = Claim {
            identity: &identity,
            fingerprint: [0; 32],
            owner: "first",
            lease: day,
            max_run: day,
            retention: day,
            max_crashes: 3,
        };
        let at = 1_800_000_000_000_000;
        let (record, _) = Record::claim(None, &claim, RecordTime { at, grace: 0 });
        let mut record = record.unwrap();
        for repeat in [Repeat::Always, Repeat::Within(day), Repeat::Ask, Repeat::Never] {
            let name: &'static str = repeat.rule().0;
            let holder = (&identity, record.token);
            record =
                record.begin_step(holder, &Step::new(name, repeat), Uuid::new_v4(), (day, at)).unwrap().0;
        }
        record = record.checkpoint(record.token, "always", &Value::Null, (day, at)).unwrap().unwrap();
        record =
            record.refuse_step(record.token, "never", RefusedCall::Round(0), (day, at)).unwrap().0.unwrap();
        let failure = |reason| Failure { error: "away", reason, max_attempts: 9, delay: day };
        let mut records = vec![
            record.release(record.token).0.unwrap(),
            record.fail(record.token, &failure(None), at).0.unwrap(),
            record.fail(record.token, &failure(Some(Reason::Poison)), at).0.unwrap(),
        ];
        for response in [None, Some(Value::Null), Some(Value::from("done"))] {
            records.push(record.complete(record.token, response.as_ref(), at).unwrap().unwrap());
        }
        records.push(record);
        let held_and_given_up = serde_json::to_string(&records[2]).unwrap();
        assert!(held_and_given_up.contains("\"poison\""), "{held_and_given_up}");
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record, "{text}");
        }
        assert!(serde_json::from_str::<Record>("{}").is_err());
        let given_up = held_and_given_up.replace("\"poison\"", "\"of_a_later_release\"");
        assert!(serde_json::from_str::<Record>(&given_up).is_ok(), "{given_up}");
    }
}
