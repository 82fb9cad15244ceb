//! Reasons why a transaction decides nothing.

use super::batch_run::BatchPlan;
use super::deadline::is_late;
use oncely_core::fault::{Fault, FaultClass};

/// Reason why a transaction decided nothing: the batch runs another way, or waits.
#[derive(Debug)]
pub(super) enum Setback {
    /// Some message failed, or all of them did.
    Failed(Fault),
    /// Another transaction holds a key, or another lock that Oncely's own statements need.
    Held(Fault),
}

impl Setback {
    pub(super) fn into_fault(self) -> Fault {
        match self {
            Self::Failed(fault) | Self::Held(fault) => fault,
        }
    }
}

/// Setbacks of a batch, after which it runs another way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setbacks {
    /// A message failed.
    pub(super) failed: bool,
    /// A body is JSON that jsonb refuses.
    pub(super) unparsed: bool,
    /// Another transaction held a lock that it needed.
    pub(super) gave_way: bool,
}

impl Setbacks {
    /// Adds a setback: returns how the batch runs next; `None`: message by message.
    pub(super) fn add_setback(self, plan: BatchPlan, setback: &Setback, messages: usize) -> Option<Self> {
        let Setback::Failed(fault) = setback else { return None };
        if messages == 1 || is_late(fault) {
            // Kept apart they would be out of time once more: the server ends a function's whole statement.
            return None;
        }
        if fault.class == FaultClass::Contention {
            return (!plan.has_turn()).then_some(Self { gave_way: true, ..self });
        }
        match plan {
            BatchPlan::Together { .. } => Some(Self { failed: true, ..self }),
            BatchPlan::Apart { unparsed: false, .. } if concerns_values(fault) => {
                Some(Self { unparsed: true, ..self })
            }
            _ => None,
        }
    }
}

/// Returns whether the responses of a batch are too large together (`oncely.response_texts`).
pub(super) fn concerns_responses(setback: &Setback) -> bool {
    matches!(setback, Setback::Failed(fault) if fault.code.as_deref() == Some("ONC25"))
}

/// Returns whether a value does not fit its type (SQLSTATE classes 22 and 54). If messages run apart, the handler's own errors come as
/// rows: a failure of the whole statement is one of the parameters with the messages.
fn concerns_values(fault: &Fault) -> bool {
    fault.code.as_deref().is_some_and(|code| code.starts_with("22") || code.starts_with("54"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_way_once_and_then_runs_message_by_message() {
        let failed = |class, code: &str| Setback::Failed(Fault::new(class, Some(code.to_owned()), ""));
        let together = BatchPlan::Together { turn: false };
        for code in ["40P01", "40001", "55P03"] {
            let collision = failed(FaultClass::Contention, code);
            let next = Setbacks::default().add_setback(together, &collision, 100).unwrap();
            assert!(next.gave_way && !next.failed, "{code}");
            assert!(
                next.add_setback(BatchPlan::Together { turn: true }, &collision, 100).is_none(),
                "{code}"
            );
            assert!(Setbacks::default().add_setback(together, &collision, 1).is_none(), "{code}");
        }
        let refused = failed(FaultClass::Refused, "ONC07");
        let apart = Setbacks::default().add_setback(together, &refused, 100).unwrap();
        assert!(apart.failed && !apart.gave_way);
        let late = failed(FaultClass::Transient, "57014");
        assert!(apart.add_setback(together, &late, 100).is_none(), "apart it would be late again");
        let held = Setback::Held(Fault::new(FaultClass::Contention, Some("55P03".to_owned()), ""));
        assert!(apart.add_setback(together, &held, 100).is_none(), "a key");
    }
}
