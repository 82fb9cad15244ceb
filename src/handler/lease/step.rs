//! A call outside, and whether it may be repeated.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use crate::handler::HandlerError;

/// A call to something outside PostgreSQL, as one key of one message makes it at most once, or as often as its rule allows. A renamed step
/// is another one.
///
/// ```
/// use std::time::Duration;
/// use oncely::lease::{Repeat, Step};
///
/// const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(24 * 3_600)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub(crate) name: &'static str,
    pub(crate) repeat: Repeat,
}

impl Step {
    /// A step with its rule. There is no rule that would be right for all, so none is the default.
    #[must_use]
    pub const fn new(name: &'static str, repeat: Repeat) -> Self {
        Self { name, repeat }
    }

    /// Its name, 1 to 255 bytes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its rule.
    #[must_use]
    pub fn repeat(&self) -> Repeat {
        self.repeat
    }
}

impl Step {
    /// A result as it is stored.
    pub(crate) fn write<T: Serialize>(&self, value: &T) -> Result<Value, HandlerError> {
        serde_json::to_value(value).map_err(|error| {
            HandlerError::permanent(format!("the result of the step {} is no JSON: {error}", self.name))
        })
    }

    /// A result of a call that was made can't be stored, now or later. So nobody would know it in the next run.
    pub(crate) fn unstored(&self, error: HandlerError) -> HandlerError {
        match error {
            HandlerError::Permanent(why) => HandlerError::OutcomeUnknown(format!(
                "the step {} has happened, and what it brought is not stored: {why}",
                self.name
            )),
            may_pass => may_pass,
        }
    }

    /// A stored result.
    pub(crate) fn read<T: DeserializeOwned>(&self, result: Value) -> Result<T, HandlerError> {
        serde_json::from_value(result).map_err(|error| {
            HandlerError::permanent(format!(
                "the stored result of the step {} is of another type: {error}",
                self.name
            ))
        })
    }

    /// It can't be called, and its result is not known.
    pub(crate) fn unknown(&self) -> HandlerError {
        HandlerError::OutcomeUnknown(format!(
            "the step {} may have happened in an earlier run, and must not be repeated",
            self.name
        ))
    }

    /// That a repeated call was refused says nothing of the first one: the step stays as it is, and so does its key.
    pub(crate) fn refused_again(&self, error: HandlerError) -> HandlerError {
        match error {
            HandlerError::Permanent(why) | HandlerError::Refused(why) => {
                HandlerError::OutcomeUnknown(format!(
                    "the step {} may have happened in an earlier run, and was refused when it was repeated: {why}",
                    self.name
                ))
            }
            may_pass => may_pass,
        }
    }
}

/// What is done where an earlier call may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// Called again: repeating does no harm.
    Always,
    /// Called again by the same key, as long as the other side knows it again: so long from the first call on, less a tenth. Between a
    /// second and 3,650 days.
    Within(Duration),
    /// The other side is asked ([`Lease::step_or_ask`](super::Lease::step_or_ask)).
    Ask,
    /// Given up as `outcome_unknown`.
    Never,
}

impl Repeat {
    /// As `oncely.begin_step` takes it.
    pub(crate) fn rule(self) -> (&'static str, Option<Duration>) {
        match self {
            Self::Always => ("always", None),
            Self::Within(window) => ("within", Some(window)),
            Self::Ask => ("ask", None),
            Self::Never => ("never", None),
        }
    }
}

/// A call that is to be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What the other side deduplicates by (its `Idempotency-Key`): the same in each run of this step, `oncely.step_key` in SQL.
    pub key: Uuid,
    /// Grows with each certain refusal, and the key with it.
    pub round: u32,
    /// Number of the lease: hand it on to a side that can compare it, so that a late call of an older run is refused.
    pub token: i64,
    /// An earlier call may have happened.
    pub is_repeat: bool,
}

/// A call that did not answer as hoped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepError {
    /// Whether it happened is not known: a timeout, a torn answer, a 5xx. The run fails as transient, and the step's rule decides in the next.
    Unknown(anyhow::Error),
    /// As [`StepError::Unknown`], and it may strike every call alike: the other side is overloaded or away. Where no message succeeds,
    /// that costs no attempt.
    Away(anyhow::Error),
    /// This call did certainly not happen: a refused card, a connection that never came about. The step may begin again in the next round; the
    /// error says what it means for the message. Of a repeated call it says nothing about the first one: then the step stays as it is, and a
    /// final error gives the message up as `outcome_unknown`.
    Refused(HandlerError),
}

/// Without a word about it, an error leaves unknown whether the call happened.
impl<E: Into<anyhow::Error>> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Unknown(error.into())
    }
}
