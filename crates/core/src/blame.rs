//! Attributes a failure: to the message, to its batch, or to no cause yet. Without I/O and without a clock.
//!
//! A batch assumes that its messages are independent. When it fails, it is divided: a failure that other messages may have caused is run
//! again in its own transaction, and a failure there is the message's own, unless the same may affect every other message as well. That is
//! decided by witnesses, messages of the same consumer that succeed meanwhile, and not by the SQLSTATE: a missing table may be an operator's
//! mistake, or one branch of the handler that is not deployed, and a violated constraint may be one message's data, or a partition that is
//! missing for all of them. If no other message is available, the SQLSTATE decides whether a message alone can cause such an error.

use crate::fault::FaultClass;

/// Facts about a failed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// Whether it ran in its own transaction, on a session that no other message has used.
    pub by_itself: bool,
    /// Whether another message of its consumer has succeeded between its earlier failure and this try.
    pub witness: bool,
    /// Whether it fails, and for a while no other message of its consumer has failed or succeeded.
    pub alone: bool,
    /// Whether it has waited for a minute or longer, with tries in between.
    pub persists: bool,
}

/// Attribution of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The message, with a failure of this class: it uses an attempt, or is given up.
    Message(FaultClass),
    /// Perhaps other messages of its batch: it runs again alone, and uses no attempt.
    Batch,
    /// No known cause: it waits aside, and uses no attempt.
    Nobody,
}

/// Attributes a failure of this class.
#[must_use]
pub fn blame(class: FaultClass, circumstances: Circumstances) -> Blame {
    let Circumstances { by_itself, witness, alone, persists } = circumstances;
    match class {
        _ if class.is_of_one_message() => Blame::Message(class),
        // Its neighbours may be the cause: a temporary table that each message creates, for example, exists for all but the first. Those that
        // succeeded may have run before a fault of all began, or after it ended.
        _ if !by_itself => Blame::Batch,
        FaultClass::Transient | FaultClass::Poison if witness || alone => Blame::Message(class),
        // Other batches, also of its consumer in other processes, may hold the locks, but not for long.
        FaultClass::Contention if !persists => Blame::Nobody,
        // A message alone does not cause the others, even if no other one is available.
        FaultClass::Contention | FaultClass::Environment | FaultClass::Session if witness => {
            Blame::Message(FaultClass::Transient)
        }
        _ => Blame::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_BATCH: Circumstances =
        Circumstances { by_itself: false, witness: false, alone: false, persists: false };
    const BY_ITSELF: Circumstances = Circumstances { by_itself: true, ..IN_BATCH };
    const SEEN: Circumstances = Circumstances { witness: true, ..BY_ITSELF };

    /// Classes that a message alone does not cause.
    const OF_OTHERS: [FaultClass; 3] = [FaultClass::Environment, FaultClass::Contention, FaultClass::Session];

    #[test]
    fn what_no_message_causes_by_itself_is_the_messages_only_where_another_one_succeeds() {
        for class in OF_OTHERS {
            assert_eq!(blame(class, IN_BATCH), Blame::Batch);
            let among_good = Circumstances { witness: true, ..IN_BATCH };
            assert_eq!(blame(class, among_good), Blame::Batch, "its neighbours may be the cause");
            assert_eq!(blame(class, BY_ITSELF), Blame::Nobody);
            let alone = Circumstances { alone: true, ..BY_ITSELF };
            assert_eq!(blame(class, alone), Blame::Nobody);
            let lasting = Circumstances { persists: true, ..BY_ITSELF };
            assert_eq!(blame(class, lasting), Blame::Nobody, "it may meet all, however long it lasts");
            let persists = Circumstances { persists: true, ..SEEN };
            assert_eq!(blame(class, persists), Blame::Message(FaultClass::Transient));
            let soon = match class {
                FaultClass::Contention => Blame::Nobody,
                _ => Blame::Message(FaultClass::Transient),
            };
            assert_eq!(blame(class, SEEN), soon);
        }
    }

    #[test]
    fn what_a_message_can_cause_waits_for_a_witness_where_others_fail_as_well() {
        for class in [FaultClass::Transient, FaultClass::Poison] {
            assert_eq!(blame(class, IN_BATCH), Blame::Batch);
            assert_eq!(blame(class, BY_ITSELF), Blame::Nobody);
            assert_eq!(blame(class, SEEN), Blame::Message(class));
            let alone = Circumstances { alone: true, ..BY_ITSELF };
            assert_eq!(blame(class, alone), Blame::Message(class));
            let among_good = Circumstances { by_itself: false, ..SEEN };
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
