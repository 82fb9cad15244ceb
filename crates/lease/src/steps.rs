//! The steps in a key's record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::check::{MAX_STEP_BYTES, MAX_STEPS};
use super::error::StoreError;
use super::lease_id::{BegunStep, RefusedCall, StepState};
use super::micros::micros;
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
            Repeat::Within(window) => Self::Within(micros(window)),
            Repeat::Ask => Self::Ask,
            Repeat::Never => Self::Never,
        }
    }
}

impl Rule {
    /// Returns whether the call may be repeated. The window counts from the first call and is a tenth shorter than stated, because the
    /// other side has another clock. A call dated in the future was recorded by a clock that was ahead, and its time is unknown.
    fn may_repeat(self, started: i64, at: i64) -> bool {
        match self {
            Self::Always => true,
            Self::Within(window) => started <= at && at < started.saturating_add(window / 10 * 9),
            Self::Ask | Self::Never => false,
        }
    }
}

impl StepProgress {
    fn started(at: i64, rule: Rule, call: Uuid) -> Self {
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

    /// Records that a step is about to be called.
    pub(super) fn begin(
        &mut self,
        (identity, token): (&Identity, i64),
        step: &Step,
        call: Uuid,
        at: i64,
    ) -> Result<BegunStep, StoreError> {
        let rule = Rule::from(step.repeat());
        let (round, state) = match self.0.get_mut(step.name()) {
            Some(known) => (known.round, known.begin(token, rule, call, at)),
            None => {
                self.have_room()?;
                let begun = StepProgress::started(at, rule, call);
                self.0.insert(step.name().to_owned(), StepRecord { state: begun, round: 0, token });
                (0, StepState::Run)
            }
        };
        Ok(BegunStep { state, call_key: step_key(identity, step.name(), round), round })
    }

    fn have_room(&self) -> Result<(), StoreError> {
        if self.0.len() >= MAX_STEPS {
            return Err(StoreError::Refused(format!("the key has {MAX_STEPS} steps, and may have no more")));
        }
        let results = self.0.values().map(|step| match &step.state {
            StepProgress::Done { result } => result.to_string().len(),
            StepProgress::Started { .. } | StepProgress::Refused => 0,
        });
        if results.sum::<usize>() > MAX_STEP_BYTES {
            let why = format!("the steps of the key have more than {MAX_STEP_BYTES} bytes");
            return Err(StoreError::Refused(why));
        }
        Ok(())
    }

    /// Returns whether any call may have happened.
    pub(super) fn is_any_in_doubt(&self) -> bool {
        self.0.values().any(StepRecord::is_in_doubt)
    }

    /// Returns whether a step is one of this lease's calls that may have happened, and the refused one, if any is refused.
    pub(super) fn is_in_doubt(&self, token: i64, step: &str, refused: Option<RefusedCall>) -> bool {
        self.0.get(step).is_some_and(|known| {
            let is_refused = match (refused, &known.state) {
                (None, _) => true,
                // The refusal of a repeated call says nothing of the first.
                (Some(_), StepProgress::Started { call: None, .. }) => false,
                (Some(RefusedCall::Round(round)), _) => known.round == round,
                (Some(RefusedCall::Begun(call)), _) => known.is_begun_by(call),
            };
            known.is_in_doubt() && known.token == token && is_refused
        })
    }

    /// Returns whether this lease has stored this result of a step.
    pub(super) fn has_stored(&self, token: i64, step: &str, result: &Value) -> bool {
        let known = self.0.get(step).filter(|known| known.token == token);
        known.is_some_and(
            |known| matches!(&known.state, StepProgress::Done { result: stored } if stored == result),
        )
    }

    /// Returns the next round if this lease has refused this call of a step.
    pub(super) fn round_after_refusal(&self, token: i64, step: &str, refused: RefusedCall) -> Option<u32> {
        let known = self.0.get(step)?;
        let is_refused = known.token == token
            && known.state == StepProgress::Refused
            && match refused {
                RefusedCall::Round(round) => Some(known.round) == round.checked_add(1),
                RefusedCall::Begun(_) => true,
            };
        is_refused.then_some(known.round)
    }

    /// Returns the last lease for which the outcome of a step was unknown.
    pub(super) fn doubted_by(&self, step: &str) -> Option<i64> {
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
            Some(known) if matches!(known.state, StepProgress::Started { .. }) => {
                known.state = StepProgress::Done { result: result.clone() };
                known.token = token;
                Ok(true)
            }
            _ => Err(not_begun(step)),
        }
    }

    /// Records that a call of a step did not happen.
    pub(super) fn refuse(
        &mut self,
        token: i64,
        step: &str,
        refused: RefusedCall,
    ) -> Result<RefusalResult, StoreError> {
        let Some(known) = self.0.get_mut(step) else {
            return match refused {
                RefusedCall::Round(_) => Err(not_begun(step)),
                RefusedCall::Begun(_) => Ok(RefusalResult { round: 0, has_changed: false }),
            };
        };
        let as_it_is = RefusalResult { round: known.round, has_changed: false };
        let is_over = match refused {
            RefusedCall::Round(round) => known.round > round,
            RefusedCall::Begun(call) => !known.is_begun_by(call),
        };
        // Repeated after a lost reply; or of a round that is over, or of a call that did not begin.
        if (known.state == StepProgress::Refused && known.token == token) || is_over {
            return Ok(as_it_is);
        }
        match known.state {
            // A repeated call was refused, which says nothing of the first. If the other side was asked instead, the token is an older one.
            StepProgress::Started { call: None, .. } if known.token == token => Ok(as_it_is),
            StepProgress::Started { .. } => {
                let next = known.round.saturating_add(1);
                *known = StepRecord { state: StepProgress::Refused, round: next, token };
                Ok(RefusalResult { round: next, has_changed: true })
            }
            StepProgress::Done { .. } | StepProgress::Refused => Err(not_begun(step)),
        }
    }
}

impl StepRecord {
    fn is_in_doubt(&self) -> bool {
        matches!(self.state, StepProgress::Started { .. })
    }

    fn is_begun_by(&self, call: Uuid) -> bool {
        matches!(self.state, StepProgress::Started { call: Some(begun), .. } if begun == call)
    }

    /// Begins a step that has a record.
    fn begin(&mut self, token: i64, rule: Rule, call: Uuid, at: i64) -> StepState {
        match &mut self.state {
            StepProgress::Done { result } => StepState::Done(result.clone()),
            // The reply to this same call was lost: the external call was not made.
            StepProgress::Started { call: begun, .. } if *begun == Some(call) && self.token == token => {
                StepState::Run
            }
            // Both the rule of that call and the current one must allow it: the program may have changed the rule.
            StepProgress::Started { at: started, rule: then, call: begun, .. }
                if rule.may_repeat(*started, at) && then.may_repeat(*started, at) =>
            {
                *begun = None;
                self.token = token;
                StepState::Repeat
            }
            StepProgress::Started { doubted_by, .. } => {
                *doubted_by = Some(token);
                StepState::Unknown
            }
            StepProgress::Refused => {
                self.state = StepProgress::started(at, rule, call);
                self.token = token;
                StepState::Run
            }
        }
    }
}

fn not_begun(step: &str) -> StoreError {
    StoreError::Refused(format!("the step {step} has not begun, or is done with another result"))
}
