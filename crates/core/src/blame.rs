//! Attributes a failure: to the message, to its batch, or to no cause yet. Without I/O and without a clock.
//!
//! A batch assumes that its messages are independent. When it fails, it is divided: a failure that other messages may have caused is run
//! again in its own transaction, and a failure there is the message's own, unless it may affect every other message as well. That is
//! decided by witnesses, messages of the same consumer that succeed meanwhile, and not by the SQLSTATE: a missing table may be an operator's
//! mistake, or one branch of the handler that is not deployed, and a violated constraint may be one message's data, or a partition that is
//! missing for all of them. If no other message is available, the SQLSTATE decides whether a message alone can cause such an error.

use crate::fault::FaultClass;

/// Facts about a failed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// Whether it ran in its own transaction, on a session that no other message has used.
    pub is_by_itself: bool,
    /// Whether another message of its consumer has succeeded between its earlier failure and this try.
    pub has_witness: bool,
    /// Whether no other message of its consumer has failed or succeeded for a while.
    pub is_alone: bool,
    /// Whether it has waited for a minute or longer, with tries in between.
    pub is_persistent: bool,
}

/// Attribution of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The message, with a failure of this class: it uses an attempt, or is given up.
    Message(FaultClass),
    /// Perhaps other messages of its batch: it runs again alone, and uses no attempt.
    Batch,
    /// No known cause: it waits aside, and uses no attempt.
    Unknown,
}

/// Attributes a failure of this class.
#[must_use]
pub fn blame(class: FaultClass, circumstances: Circumstances) -> Blame {
    let Circumstances { is_by_itself, has_witness, is_alone, is_persistent } = circumstances;
    match class {
        _ if class.is_of_one_message() => Blame::Message(class),
        // Other messages of its batch may be the cause: a temporary table that each message creates, for example, exists for all but the
        // first. Messages that succeeded may have run before a fault of all messages began, or after it ended.
        _ if !is_by_itself => Blame::Batch,
        FaultClass::Transient | FaultClass::Poison if has_witness || is_alone => Blame::Message(class),
        // Other batches, also of its consumer in other processes, may hold the locks, but not for long.
        FaultClass::Contention if !is_persistent => Blame::Unknown,
        // A message alone does not cause these classes, even if no other message is available.
        FaultClass::Contention | FaultClass::Environment | FaultClass::Session if has_witness => {
            Blame::Message(FaultClass::Transient)
        }
        _ => Blame::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_BATCH: Circumstances =
        Circumstances { is_by_itself: false, has_witness: false, is_alone: false, is_persistent: false };
    const BY_ITSELF: Circumstances = Circumstances { is_by_itself: true, ..IN_BATCH };
    const WITH_WITNESS: Circumstances = Circumstances { has_witness: true, ..BY_ITSELF };

    /// Classes that a message alone does not cause.
    const OF_OTHERS: [FaultClass; 3] = [FaultClass::Environment, FaultClass::Contention, FaultClass::Session];

    #[test]
    fn what_no_message_causes_by_itself_is_the_messages_only_where_another_one_succeeds() {
        for class in OF_OTHERS {
            assert_eq!(blame(class, IN_BATCH), Blame::Batch);
            let among_good = Circumstances { has_witness: true, ..IN_BATCH };
            assert_eq!(blame(class, among_good), Blame::Batch, "its neighbours may be the cause");
            assert_eq!(blame(class, BY_ITSELF), Blame::Unknown);
            let alone = Circumstances { is_alone: true, ..BY_ITSELF };
            assert_eq!(blame(class, alone), Blame::Unknown);
            let lasting = Circumstances { is_persistent: true, ..BY_ITSELF };
            assert_eq!(blame(class, lasting), Blame::Unknown, "it may meet all, however long it lasts");
            let persistent = Circumstances { is_persistent: true, ..WITH_WITNESS };
            assert_eq!(blame(class, persistent), Blame::Message(FaultClass::Transient));
            let soon = match class {
                FaultClass::Contention => Blame::Unknown,
                _ => Blame::Message(FaultClass::Transient),
            };
            assert_eq!(blame(class, WITH_WITNESS), soon);
        }
    }

    #[test]
    fn what_a_message_can_cause_waits_for_a_witness_where_others_fail_as_well() {
        for class in [FaultClass::Transient, FaultClass::Poison] {
            assert_eq!(blame(class, IN_BATCH), Blame::Batch);
            assert_eq!(blame(class, BY_ITSELF), Blame::Unknown);
            assert_eq!(blame(class, WITH_WITNESS), Blame::Message(class));
            let alone = Circumstances { is_alone: true, ..BY_ITSELF };
            assert_eq!(blame(class, alone), Blame::Message(class));
            let among_good = Circumstances { is_by_itself: false, ..WITH_WITNESS };
            assert_eq!(blame(class, among_good), Blame::Batch);
        }
    }

    #[test]
    fn the_handlers_word_on_a_message_needs_no_witness() {
        for class in [FaultClass::Rejected, FaultClass::Refused, FaultClass::NotJson, FaultClass::Crashed] {
            assert_eq!(blame(class, IN_BATCH), Blame::Message(class));
        }
    }
}
