//! A key's record and what each call makes of it: the state machine, without I/O and without a clock. Times are microseconds since 1970, by
//! the store's clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::check::{DAY, kept};
use super::claim::{Claim, Claimed, Grant};
use super::error::StoreError;
use super::held::{BegunStep, Failed, Failure, Known, Renewed};
use super::micros::{micros, time};
use super::steps::Steps;
use crate::decide::{EARLY, KeyDecision, KeyRecord, KeyStatus, OnConflict, decide};
use crate::fingerprint::Fingerprint;
use crate::handler::lease::Step;
use crate::identity::Identity;
use crate::reason::Reason;

/// What a store of [`Cells`](super::Cells) keeps of a key. Opaque: it is written and read as it serialises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    state: State,
    #[serde(with = "print")]
    fingerprint: Fingerprint,
    token: i64,
    attempts: u32,
    crashes: u32,
    retention: i64,
    expires_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Steps::is_empty")]
    steps: Steps,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum State {
    Free {
        not_before: i64,
    },
    Held {
        owner: String,
        until: i64,
        run_until: i64,
    },
    Completed {
        // Left out where there is none: a response may be null.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
        response: Option<Value>,
    },
    Failed {
        #[serde(with = "code")]
        reason: Reason,
    },
}

/// A moment, and how long beyond its end a lease is left to its holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) at: i64,
    pub(super) grace: i64,
}

impl Record {
    /// After this moment (microseconds since 1970) nobody needs it any more.
    #[must_use]
    pub fn expires_at(&self) -> i64 {
        self.expires_at
    }

    fn status(&self) -> KeyStatus {
        match self.state {
            State::Free { .. } | State::Held { .. } => KeyStatus::InProgress,
            State::Completed { .. } => KeyStatus::Completed,
            State::Failed { .. } => KeyStatus::Failed,
        }
    }

    /// As [`decide`] looks at it.
    fn key_record(&self) -> KeyRecord {
        let reason = match self.state {
            State::Failed { reason } => Some(reason),
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

    /// A claim: the record that it leaves, where it changes anything.
    pub(super) fn claim(known: Option<&Self>, claim: &Claim<'_>, now: Now) -> (Option<Self>, Claimed) {
        let print = Fingerprint::of_digest(&claim.fingerprint);
        let held = State::Held {
            owner: claim.owner.to_owned(),
            until: now.at.saturating_add(micros(claim.lease)),
            run_until: now.at.saturating_add(micros(claim.max_run)),
        };
        let retention = micros(claim.retention);
        let expires_at = now.at.saturating_add(retention);
        let known = match known {
            // Nobody remembers it any more.
            None => None,
            Some(known) if known.expires_at <= now.at => None,
            Some(known) => Some(known),
        };
        let Some(known) = known else {
            let token = now.at;
            let fresh = Self {
                state: held,
                fingerprint: print,
                token,
                attempts: 0,
                crashes: 0,
                retention,
                expires_at,
                error: None,
                steps: Steps::default(),
            };
            return (Some(fresh), Claimed::Granted(Grant { token, attempt: 1, is_takeover: false }));
        };
        match decide(&known.key_record(), Some(&print), OnConflict::DeadLetter) {
            KeyDecision::Reject(rejection) if rejection.reason == Reason::KeyConflict => {
                return (None, Claimed::Conflict);
            }
            KeyDecision::Reject(rejection) => {
                let (reason, detail) = (rejection.reason, rejection.detail);
                return (None, Claimed::GivenUp { reason, detail });
            }
            KeyDecision::Duplicate => {
                let response = match &known.state {
                    State::Completed { response } => response.clone(),
                    _ => None,
                };
                return (None, Claimed::Done(response));
            }
            KeyDecision::Retake | KeyDecision::Leased => {}
        }
        let was_held = match &known.state {
            // The same acquisition, whose reply was lost: its run has not begun, and gets its whole time.
            State::Held { owner, until, .. } if owner == claim.owner => {
                let run_until = now.at.saturating_add(micros(claim.max_run));
                let (owner, until) = (owner.clone(), *until);
                let mut renewed = Self { state: State::Held { owner, until, run_until }, ..known.clone() };
                renewed.extend(claim.lease, now.at);
                return (Some(renewed), Claimed::Granted(known.grant()));
            }
            State::Held { until, .. } => {
                let left = until.saturating_add(now.grace).saturating_sub(now.at);
                // No lease is longer than a day: one that is was granted by a clock that was ahead.
                if left > 0 && left <= micros(DAY).saturating_add(now.grace) {
                    return (None, Claimed::InFlight(time(left)));
                }
                true
            }
            State::Free { not_before } => {
                let left = not_before.saturating_sub(now.at);
                if left > micros(EARLY) {
                    return (None, Claimed::Wait(time(left)));
                }
                false
            }
            State::Completed { .. } | State::Failed { .. } => false,
        };
        let mut taken = Self {
            token: now.at.max(known.token.saturating_add(1)),
            crashes: known.crashes.saturating_add(u32::from(was_held)),
            state: held,
            retention,
            expires_at,
            ..known.clone()
        };
        if was_held && taken.crashes >= claim.max_crashes {
            let detail = format!("{} runs under a lease ended without a word", taken.crashes);
            taken.error = Some(detail.clone());
            taken.state = State::Failed { reason: Reason::Crash };
            return (Some(taken), Claimed::GivenUp { reason: Reason::Crash, detail });
        }
        let grant = taken.grant();
        (Some(taken), Claimed::Granted(grant))
    }

    fn grant(&self) -> Grant {
        Grant { token: self.token, attempt: self.attempts.saturating_add(1), is_takeover: self.crashes > 0 }
    }

    /// Makes the lease end later, never beyond its run.
    fn extend(&mut self, lease: Duration, at: i64) {
        if let State::Held { until, run_until, .. } = &mut self.state {
            *until = (*until).max(at.saturating_add(micros(lease))).min(*run_until);
        }
    }

    /// Does somebody hold the key?
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    fn is_held(&self, token: i64) -> bool {
        matches!(self.state, State::Held { .. }) && self.token == token
    }

    /// The record as its holder may change it, its lease renewed. `beginning`: past its time a run begins nothing any more, though nobody has
    /// taken the key over yet.
    fn hold(&self, token: i64, lease: Duration, at: i64, beginning: bool) -> Result<Self, StoreError> {
        let runs = match self.state {
            State::Held { run_until, .. } => run_until > at,
            _ => false,
        };
        if !self.is_held(token) || (beginning && !runs) {
            return Err(StoreError::Lost);
        }
        let mut renewed = self.clone();
        renewed.extend(lease, at);
        Ok(renewed)
    }

    pub(super) fn renew(&self, token: i64, lease: Duration, at: i64) -> (Option<Self>, Renewed) {
        match self.hold(token, lease, at, true) {
            Ok(renewed) => {
                let left = match renewed.state {
                    State::Held { until, .. } => time(until.saturating_sub(at)),
                    _ => Duration::ZERO,
                };
                (Some(renewed), Renewed::Until(left))
            }
            Err(_) => (None, Renewed::Lost),
        }
    }

    /// `None`: this very lease has completed it already.
    pub(super) fn complete(
        &self,
        token: i64,
        response: Option<&Value>,
        at: i64,
    ) -> Result<Option<Self>, StoreError> {
        if self.token == token && matches!(self.state, State::Completed { .. }) {
            return Ok(None);
        }
        if !self.is_held(token) {
            return Err(StoreError::Lost);
        }
        Ok(Some(Self {
            state: State::Completed { response: response.cloned() },
            attempts: self.attempts.saturating_add(1),
            error: None,
            expires_at: at.saturating_add(self.retention),
            ..self.clone()
        }))
    }

    pub(super) fn fail(&self, token: i64, failure: &Failure<'_>, at: i64) -> (Option<Self>, Failed) {
        let attempts = self.attempts;
        if self.token != token {
            return (None, Failed::Lost);
        }
        match self.state {
            // Said again, after a lost reply; or the key was given back by this very run.
            State::Free { .. } => return (None, Failed::Retry { attempts }),
            State::Failed { reason } => return (None, Failed::GivenUp { attempts, reason }),
            State::Completed { .. } => return (None, Failed::Completed),
            State::Held { .. } => {}
        }
        let attempts = attempts.saturating_add(1);
        let exhausted = (attempts >= failure.max_attempts).then_some(Reason::AttemptsExhausted);
        let mut failed = Self { attempts, error: Some(kept(failure.error)), ..self.clone() };
        failed.expires_at = at.saturating_add(micros(failure.delay)).saturating_add(self.retention);
        match failure.reason.or(exhausted) {
            Some(reason) => {
                failed.state = State::Failed { reason };
                (Some(failed), Failed::GivenUp { attempts, reason })
            }
            None => {
                failed.state = State::Free { not_before: at.saturating_add(micros(failure.delay)) };
                // The process lives: it reports this failure.
                failed.crashes = 0;
                (Some(failed), Failed::Retry { attempts })
            }
        }
    }

    pub(super) fn release(&self, token: i64) -> (Option<Self>, bool) {
        if self.is_held(token) {
            return (Some(Self { state: State::Free { not_before: 0 }, ..self.clone() }), true);
        }
        (None, self.token == token && matches!(self.state, State::Free { .. }))
    }

    /// Says that a step is about to be called.
    pub(super) fn begin_step(
        &self,
        (identity, token): (&Identity, i64),
        step: &Step,
        call: Uuid,
        (lease, at): (Duration, i64),
    ) -> Result<(Self, BegunStep), StoreError> {
        let mut held = self.hold(token, lease, at, true)?;
        let begun = held.steps.begin((identity, token), step, call, at)?;
        Ok((held, begun))
    }

    /// Stores a result. `None`: it is stored already.
    pub(super) fn checkpoint(
        &self,
        token: i64,
        step: &str,
        result: &Value,
        (lease, at): (Duration, i64),
    ) -> Result<Option<Self>, StoreError> {
        let mut held = self.hold(token, lease, at, false)?;
        let changed = held.steps.store(token, step, result)?;
        Ok(changed.then_some(held))
    }

    /// Says that a step's call did not happen: the round that comes next.
    pub(super) fn refuse_step(
        &self,
        token: i64,
        step: &str,
        round: u32,
        (lease, at): (Duration, i64),
    ) -> Result<(Option<Self>, u32), StoreError> {
        let mut held = self.hold(token, lease, at, false)?;
        let next = held.steps.refuse(token, step, round)?;
        Ok((next.has_changed.then_some(held), next.round))
    }

    pub(super) fn known(&self) -> Known {
        let owner = match &self.state {
            State::Held { owner, .. } => Some(owner.clone()),
            _ => None,
        };
        let response = match &self.state {
            State::Completed { response } => response.clone(),
            _ => None,
        };
        Known {
            status: self.status(),
            owner,
            token: self.token,
            attempts: self.attempts,
            crashes: self.crashes,
            reason: self.key_record().reason,
            response,
        }
    }
}

fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A fingerprint as hexadecimal digits.
mod print {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::fingerprint::Fingerprint;

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
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::reason::Reason;

    pub(super) fn serialize<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(reason.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Reason, D::Error> {
        let text = String::deserialize(deserializer)?;
        Reason::from_code(&text).ok_or_else(|| D::Error::custom("no such reason"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::lease::Repeat;
    use crate::identity::IdentityPart;

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
        let (held, _) = Record::claim(None, &claim, Now { at, grace: 0 });
        let mut held = held.unwrap();
        for repeat in [Repeat::Always, Repeat::Within(day), Repeat::Ask, Repeat::Never] {
            let name: &'static str = repeat.rule().0;
            let who = (&identity, held.token);
            held = held.begin_step(who, &Step::new(name, repeat), Uuid::new_v4(), (day, at)).unwrap().0;
        }
        held = held.checkpoint(held.token, "always", &Value::Null, (day, at)).unwrap().unwrap();
        held = held.refuse_step(held.token, "never", 0, (day, at)).unwrap().0.unwrap();
        let failure = |reason| Failure { error: "away", reason, max_attempts: 9, delay: day };
        let mut records = vec![
            held.release(held.token).0.unwrap(),
            held.fail(held.token, &failure(None), at).0.unwrap(),
            held.fail(held.token, &failure(Some(Reason::Poison)), at).0.unwrap(),
        ];
        for response in [None, Some(Value::Null), Some(Value::from("done"))] {
            records.push(held.complete(held.token, response.as_ref(), at).unwrap().unwrap());
        }
        records.push(held);
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record, "{text}");
        }
        assert!(serde_json::from_str::<Record>("{}").is_err());
    }
}
