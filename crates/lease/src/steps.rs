//! The steps in a key's record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::check::{MAX_RESULT_BYTES, MAX_STEPS};
use super::error::StoreError;
use super::lease_id::{BegunStep, RefusedCall, StepState};
use super::micros::to_micros;
use super::step::{Repeat, Step};
use oncely_core::identity::Identity;

/// Computes the key of a step for the other side, like `oncely.step_key`: the same in every run, store and language.
#[must_use]
pub fn step_key(identity: &Identity, step: &str, round: u32) -> Uuid {
    let mut hash = Sha256::new();
    for part in [identity.tenant.as_str(), identity.consumer.as_str(), identity.key.as_str(), step] {
        hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.update(round.to_be_bytes());
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// The stored state of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRecord {
    state: StepProgress,
    round: u32,
    token: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum StepProgress {
    Started {
        /// The time before the first call, in microseconds since 1970.
        at: i64,
        rule: Rule,
        /// The id of the call for which it began; `None` for a repetition.
        call: Option<Uuid>,
        /// The last lease for which the outcome of that call was unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        doubted_by: Option<i64>,
    },
    Done {
        result: Value,
    },
    Refused,
}

/// The rule under which the step was called.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Rule {
    Always,
    Within(i64),
    Ask,
    Never,
}

impl From<Repeat> for Rule {
    fn from(repeat: Repeat) -> Self {
        match repeat {
            Repeat::Always => Self::Always,
            Repeat::Within(window) => Self::Within(to_micros(window)),
            Repeat::Ask => Self::Ask,
            Repeat::Never => Self::Never,
        }
    }
}

impl Rule {
    /// Returns whether the call may be repeated. The window counts from the first call and is a tenth shorter than stated, because the
    /// other side has another clock. A call dated in the future was recorded by a clock that was ahead, and its time is unknown.
    fn may_repeat(self, started_at: i64, at: i64) -> bool {
        match self {
            Self::Always => true,
            Self::Within(window) => started_at <= at && at < started_at.saturating_add(window / 10 * 9),
            Self::Ask | Self::Never => false,
        }
    }
}

impl StepProgress {
    fn new_started(at: i64, rule: Rule, call: Uuid) -> Self {
        Self::Started { at, rule, call: Some(call), doubted_by: None }
    }
}

/// The steps of a key, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Steps(BTreeMap<String, StepRecord>);

/// The result of a refusal.
pub(super) struct RefusalResult {
    pub(super) round: u32,
    pub(super) has_changed: bool,
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that a step is about to be called; returns how to go on with it.
    pub(super) fn begin(
        &mut self,
        (identity, token): (&Identity, i64),
        step: &Step,
        call: Uuid,
        at: i64,
    ) -> Result<BegunStep, StoreError> {
        let rule = Rule::from(step.repeat());
        let (round, state) = match self.0.get_mut(step.name()) {
            Some(record) => (record.round, record.begin(token, rule, call, at)),
            None => {
                self.check_limits()?;
                let progress = StepProgress::new_started(at, rule, call);
                self.0.insert(step.name().to_owned(), StepRecord { state: progress, round: 0, token });
                (0, StepState::Run)
            }
        };
        Ok(BegunStep { state, call_key: step_key(identity, step.name(), round), round })
    }

    /// Refuses another step of a key that has too many, or too large results.
    fn check_limits(&self) -> Result<(), StoreError> {
        if self.0.len() >= MAX_STEPS {
            return Err(StoreError::Refused(format!("the key has {MAX_STEPS} steps, and may have no more")));
        }
        let results = self.0.values().map(|step| match &step.state {
            StepProgress::Done { result } => result.to_string().len(),
            StepProgress::Started { .. } | StepProgress::Refused => 0,
        });
        if results.sum::<usize>() > MAX_RESULT_BYTES {
            let why = format!("the steps of the key have more than {MAX_RESULT_BYTES} bytes");
            return Err(StoreError::Refused(why));
        }
        Ok(())
    }

    /// Returns whether any call may have happened.
    pub(super) fn is_any_in_doubt(&self) -> bool {
        self.0.values().any(StepRecord::is_in_doubt)
    }

    /// Returns whether a step is a call of this lease that may have happened. With `refused`, also whether it is the refused call.
    pub(super) fn is_in_doubt(&self, token: i64, step: &str, refused: Option<RefusedCall>) -> bool {
        self.0.get(step).is_some_and(|record| {
            let is_refused = match (refused, &record.state) {
                (None, _) => true,
                // The refusal of a repeated call says nothing of the first.
                (Some(_), StepProgress::Started { call: None, .. }) => false,
                (Some(RefusedCall::Round(round)), _) => record.round == round,
                (Some(RefusedCall::Begun(call)), _) => record.is_begun_by(call),
            };
            record.is_in_doubt() && record.token == token && is_refused
        })
    }

    /// Returns whether this lease has stored this result of a step.
    pub(super) fn has_stored(&self, token: i64, step: &str, result: &Value) -> bool {
        let record = self.0.get(step).filter(|record| record.token == token);
        record.is_some_and(
            |record| matches!(&record.state, StepProgress::Done { result: stored } if stored == result),
        )
    }

    /// Returns the next round; `None` unless this lease has refused this call of a step.
    pub(super) fn round_after_refusal(&self, token: i64, step: &str, refused: RefusedCall) -> Option<u32> {
        let record = self.0.get(step)?;
        let is_refused = record.token == token
            && record.state == StepProgress::Refused
            && match refused {
                RefusedCall::Round(round) => Some(record.round) == round.checked_add(1),
                RefusedCall::Begun(_) => true,
            };
        is_refused.then_some(record.round)
    }

    /// Returns the last lease for which the outcome of a step was unknown; `None` if no outcome was, or the step is no longer in doubt.
    pub(super) fn doubting_token(&self, step: &str) -> Option<i64> {
        match self.0.get(step)?.state {
            StepProgress::Started { doubted_by, .. } => doubted_by,
            StepProgress::Done { .. } | StepProgress::Refused => None,
        }
    }

    /// Stores a result; returns false if it is stored already.
    pub(super) fn store(&mut self, token: i64, step: &str, result: &Value) -> Result<bool, StoreError> {
        match self.0.get_mut(step) {
            Some(StepRecord { state: StepProgress::Done { result: stored }, .. }) if stored == result => {
                Ok(false)
            }
            Some(record) if matches!(record.state, StepProgress::Started { .. }) => {
                record.state = StepProgress::Done { result: result.clone() };
                record.token = token;
                Ok(true)
            }
            _ => Err(build_not_begun_error(step)),
        }
    }

    /// Records that a call of a step did not happen.
    pub(super) fn refuse(
        &mut self,
        token: i64,
        step: &str,
        refused: RefusedCall,
    ) -> Result<RefusalResult, StoreError> {
        let Some(record) = self.0.get_mut(step) else {
            return match refused {
                RefusedCall::Round(_) => Err(build_not_begun_error(step)),
                RefusedCall::Begun(_) => Ok(RefusalResult { round: 0, has_changed: false }),
            };
        };
        let unchanged = RefusalResult { round: record.round, has_changed: false };
        let is_over = match refused {
            RefusedCall::Round(round) => record.round > round,
            RefusedCall::Begun(call) => !record.is_begun_by(call),
        };
        // Repeated after a lost reply; or of a round that is over, or of a call that did not begin.
        if (record.state == StepProgress::Refused && record.token == token) || is_over {
            return Ok(unchanged);
        }
        match record.state {
            // A repeated call was refused, which says nothing of the first. If the other side was asked instead, the token is an older one.
            StepProgress::Started { call: None, .. } if record.token == token => Ok(unchanged),
            StepProgress::Started { .. } => {
                let next = record.round.saturating_add(1);
                *record = StepRecord { state: StepProgress::Refused, round: next, token };
                Ok(RefusalResult { round: next, has_changed: true })
            }
            StepProgress::Done { .. } | StepProgress::Refused => Err(build_not_begun_error(step)),
        }
    }
}

impl StepRecord {
    fn is_in_doubt(&self) -> bool {
        matches!(self.state, StepProgress::Started { .. })
    }

    fn is_begun_by(&self, call: Uuid) -> bool {
        matches!(self.state, StepProgress::Started { call: Some(begun_call), .. } if begun_call == call)
    }

    /// Begins a step that has a record: by its state and the rules it runs, is repeated, is done or is unknown.
    fn begin(&mut self, token: i64, rule: Rule, call: Uuid, at: i64) -> StepState {
        match &mut self.state {
            StepProgress::Done { result } => StepState::Done(result.clone()),
            // The reply to this same call was lost: the external call was not made.
            StepProgress::Started { call: begun_call, .. }
                if *begun_call == Some(call) && self.token == token =>
            {
                StepState::Run
            }
            // Both the rule of that call and the current one must allow it: the program may have changed the rule.
            StepProgress::Started { at: started_at, rule: first_rule, call: begun_call, .. }
                if rule.may_repeat(*started_at, at) && first_rule.may_repeat(*started_at, at) =>
            {
                *begun_call = None;
                self.token = token;
                StepState::Repeat
            }
            StepProgress::Started { doubted_by, .. } => {
                *doubted_by = Some(token);
                StepState::Unknown
            }
            StepProgress::Refused => {
                self.state = StepProgress::new_started(at, rule, call);
                self.token = token;
                StepState::Run
            }
        }
    }
}

/// Builds the error of an outcome that fits no call of the step.
fn build_not_begun_error(step: &str) -> StoreError {
    StoreError::Refused(format!("the step {step} has not begun, or is done with another result"))
}
