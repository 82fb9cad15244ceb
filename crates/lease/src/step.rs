//! Steps: external calls, and whether they may be repeated.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use crate::handler_error::HandlerError;
use oncely_postgres as pg;

/// A call to something outside PostgreSQL, which a key makes at most once, or as often as its rule allows. A renamed step is another step.
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
    /// Creates a step with its rule. No rule fits all calls, so there is no default.
    #[must_use]
    pub const fn new(name: &'static str, repeat: Repeat) -> Self {
        Self { name, repeat }
    }

    /// Returns the name of the step, 1 to 255 bytes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the rule of the step.
    #[must_use]
    pub fn repeat(&self) -> Repeat {
        self.repeat
    }
}

impl Step {
    /// Serialises a result as JSON, and checks its size.
    pub(crate) fn serialize_result<T: Serialize>(&self, value: &T) -> Result<Value, HandlerError> {
        let value = serde_json::to_value(value).map_err(|error| {
            HandlerError::permanent(format!("the result of the step {} is no JSON: {error}", self.name))
        })?;
        match pg::to_json_text(&value).len() {
            0..=pg::MAX_JSON_BYTES => Ok(value),
            bytes => Err(HandlerError::permanent(format!(
                "the result of the step {} has {bytes} bytes as JSON; {} are allowed: keep what is large elsewhere, and its id here",
                self.name,
                pg::MAX_JSON_BYTES
            ))),
        }
    }

    /// Converts the error of a result that can never be stored to an unknown outcome: the call was made, and the next run would not know of
    /// it.
    pub(crate) fn to_unstored_error(self, error: HandlerError) -> HandlerError {
        match error {
            HandlerError::Permanent(why) => HandlerError::OutcomeUnknown(format!(
                "the step {} has happened, and what it brought is not stored: {why}",
                self.name
            )),
            temporary => temporary,
        }
    }

    /// Parses a stored result. The error does not quote it.
    pub(crate) fn deserialize_result<T: DeserializeOwned>(&self, result: Value) -> Result<T, HandlerError> {
        // The error's own text may quote the result.
        serde_json::from_value(result).map_err(|_| {
            let type_name = std::any::type_name::<T>();
            HandlerError::permanent(format!("the stored result of the step {} is no {type_name}", self.name))
        })
    }

    /// Creates the error of a step with an unknown outcome that must not be called.
    pub(crate) fn to_unknown_error(self) -> HandlerError {
        HandlerError::OutcomeUnknown(format!(
            "the step {} may have happened in an earlier run, and must not be repeated",
            self.name
        ))
    }

    /// Converts the final refusal of a repeated call to an unknown outcome: it says nothing of the first call. The step stays unchanged,
    /// and so does its key.
    pub(crate) fn to_repeat_refusal(self, error: HandlerError) -> HandlerError {
        match error {
            HandlerError::Permanent(why) | HandlerError::Refused(why) => {
                HandlerError::OutcomeUnknown(format!(
                    "the step {} may have happened in an earlier run, and was refused when it was repeated: {why}",
                    self.name
                ))
            }
            temporary => temporary,
        }
    }
}

/// The rule for a step if an earlier call may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// The call is repeated: repeating does no harm.
    Always,
    /// The call is repeated with the same key, as long as the other side recognises it: this time from the first call on, less a tenth.
    /// Between a second and 3,650 days.
    Within(Duration),
    /// The other side is asked ([`Run::step_or_ask`](super::Run::step_or_ask)).
    Ask,
    /// The key is given up as `outcome_unknown`.
    Never,
}

impl Repeat {
    /// Returns the arguments for `oncely.begin_step`: the rule, and its window, `None` unless the rule is [`Repeat::Within`].
    #[doc(hidden)]
    pub fn rule(self) -> (&'static str, Option<Duration>) {
        match self {
            Self::Always => ("always", None),
            Self::Within(window) => ("within", Some(window)),
            Self::Ask => ("ask", None),
            Self::Never => ("never", None),
        }
    }
}

/// A call to be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The key by which the other side deduplicates (its `Idempotency-Key`): the same in each run of this step, `oncely.step_key` in SQL.
    pub key: Uuid,
    /// The number of certain refusals; a new round has a new key.
    pub round: u32,
    /// The number of the lease: pass it to a service that can compare it, so that late calls of older runs are refused.
    pub token: i64,
    /// Whether an earlier call may have happened.
    pub is_repeat: bool,
}

/// A call without a result.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepError {
    /// It is unknown whether the call happened: a timeout, a truncated answer, a 5xx. The run fails as transient, and the step's rule
    /// decides in the next run.
    Unknown(anyhow::Error),
    /// Like [`StepError::Unknown`], and it may affect all calls: the other side is overloaded or unavailable. While no message succeeds, it
    /// costs no attempt.
    Away(anyhow::Error),
    /// This call certainly did not happen: a refused card, a connection that was never established. The step may begin again in the next
    /// round; the error decides how the message continues. The refusal of a repeated call says nothing about the first one: then the step
    /// stays unchanged, and a final error gives the message up as `outcome_unknown`.
    Refused(HandlerError),
}

/// Any other error leaves unknown whether the call happened.
impl<E: Into<anyhow::Error>> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Unknown(error.into())
    }
}
