//! The steps in a key's record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::check::{MAX_STEP_BYTES, MAX_STEPS};
use super::error::StoreError;
use super::held::{BegunStep, StepState};
use super::micros::micros;
use crate::handler::lease::{Repeat, Step};
use crate::identity::Identity;

/// The key of a step for the other side, as `oncely.step_key` computes it: the same in every run, store and language.
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

/// What is known of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRecord {
    state: Progress,
    round: u32,
    token: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Progress {
    Started {
        /// When the first call may have gone out.
        at: i64,
        rule: Rule,
        /// The call that it began for; none for one that is repeated.
        call: Option<Uuid>,
    },
    Done {
        result: Value,
    },
    Refused,
}

/// Under which rule it was called.
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
    /// From the first call on, and a tenth less than the other side says: its clock is not ours. A call of tomorrow was noted by a clock that
    /// was ahead, and nobody knows when it was.
    fn may_repeat(self, started: i64, at: i64) -> bool {
        match self {
            Self::Always => true,
            Self::Within(window) => started <= at && at < started.saturating_add(window / 10 * 9),
            Self::Ask | Self::Never => false,
        }
    }
}

/// The steps of a key, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Steps(BTreeMap<String, StepRecord>);

/// What a refusal leads to.
pub(super) struct Next {
    pub(super) round: u32,
    pub(super) has_changed: bool,
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says that a step is about to be called.
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
                let begun = Progress::Started { at, rule, call: Some(call) };
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
            Progress::Done { result } => result.to_string().len(),
            Progress::Started { .. } | Progress::Refused => 0,
        });
        if results.sum::<usize>() > MAX_STEP_BYTES {
            let why = format!("the steps of the key have more than {MAX_STEP_BYTES} bytes");
            return Err(StoreError::Refused(why));
        }
        Ok(())
    }

    /// Stores a result. False: it is stored already.
    pub(super) fn store(&mut self, token: i64, step: &str, result: &Value) -> Result<bool, StoreError> {
        match self.0.get_mut(step) {
            Some(StepRecord { state: Progress::Done { result: stored }, .. }) if stored == result => {
                Ok(false)
            }
            Some(known) if matches!(known.state, Progress::Started { .. }) => {
                known.state = Progress::Done { result: result.clone() };
                known.token = token;
                Ok(true)
            }
            _ => Err(not_begun(step)),
        }
    }

    /// Says that a step's call did not happen.
    pub(super) fn refuse(&mut self, token: i64, step: &str, round: u32) -> Result<Next, StoreError> {
        let known = self.0.get_mut(step).ok_or_else(|| not_begun(step))?;
        let as_it_is = Next { round: known.round, has_changed: false };
        // Said again, after a lost reply; or of a round that is over.
        if (known.state == Progress::Refused && known.token == token) || known.round > round {
            return Ok(as_it_is);
        }
        match known.state {
            // The call that was refused is a repeated one: that says nothing of the first. Where the other side was asked instead, the token is
            // an older one.
            Progress::Started { call: None, .. } if known.token == token => Ok(as_it_is),
            Progress::Started { .. } => {
                let next = known.round.saturating_add(1);
                *known = StepRecord { state: Progress::Refused, round: next, token };
                Ok(Next { round: next, has_changed: true })
            }
            Progress::Done { .. } | Progress::Refused => Err(not_begun(step)),
        }
    }
}

impl StepRecord {
    /// A step that is known begins.
    fn begin(&mut self, token: i64, rule: Rule, call: Uuid, at: i64) -> StepState {
        match &mut self.state {
            Progress::Done { result } => StepState::Done(result.clone()),
            // The reply to this very call was lost: the call outside was not made.
            Progress::Started { call: begun, .. } if *begun == Some(call) && self.token == token => {
                StepState::Run
            }
            // By the rule under which it was called, and by that of now: a program may have changed its mind.
            Progress::Started { at: started, rule: then, call: begun }
                if rule.may_repeat(*started, at) && then.may_repeat(*started, at) =>
            {
                *begun = None;
                self.token = token;
                StepState::Repeat
            }
            Progress::Started { .. } => StepState::Unknown,
            Progress::Refused => {
                self.state = Progress::Started { at, rule, call: Some(call) };
                self.token = token;
                StepState::Run
            }
        }
    }
}

fn not_begun(step: &str) -> StoreError {
    StoreError::Refused(format!("the step {step} has not begun, or is done with another result"))
}
