//! Who answers for a failure: the message, its batch, or nobody yet. Without I/O and without a clock.
//!
//! A batch is a bet that its messages have nothing to do with each other. When it fails, the bet is taken back: what the others may
//! have caused is run again in a transaction of its own, and what strikes a message there is the message's, unless the same may strike
//! every other message as well. That is decided by witnesses, messages of the same consumer that succeed meanwhile, and not by the
//! SQLSTATE: a missing table may be an operator's mistake, or one branch of the handler that is not deployed, and a violated
//! constraint may be one message's data, or the partition that all of them lack. Where there is no other message to be seen, the SQLSTATE
//! says whether a message alone can cause such an error.

use crate::fault::FaultClass;

/// What is known when a message has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// It ran in a transaction of its own, on a session of its own making.
    pub by_itself: bool,
    /// Another message of its consumer has succeeded beside it, or since it failed before.
    pub witness: bool,
    /// It fails, and for a while no other message of its consumer has failed or succeeded.
    pub alone: bool,
    /// The run was its last one: charged with this failure it is given up.
    pub is_last: bool,
    /// It has waited for a minute or longer, with tries in between.
    pub persists: bool,
}

/// Who answers for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The message, with a failure of this class: it spends an attempt, or is given up.
    Message(FaultClass),
    /// Perhaps the others of its batch: it runs again by itself, and spends nothing.
    Batch,
    /// Nobody, as far as is known: it waits aside, and spends nothing.
    Nobody,
}

/// Decides who answers for a failure of this class.
#[must_use]
pub fn blame(class: FaultClass, circumstances: Circumstances) -> Blame {
    let Circumstances { by_itself, witness, alone, is_last, persists } = circumstances;
    match class {
        _ if class.is_of_one_message() => Blame::Message(class),
        FaultClass::Transient | FaultClass::Poison => match () {
            // What ends in a dead letter after its attempts has failed by itself.
            () if !by_itself && (!witness || is_last && class == FaultClass::Transient) => Blame::Batch,
            () if witness || alone => Blame::Message(class),
            () => Blame::Nobody,
        },
        // No message causes these by itself, even where no other one is to be seen.
        _ => {
            match (by_itself, witness) {
                // Also where others succeed: a temporary table that each message makes, say, is there for all but the first.
                (false, _) => Blame::Batch,
                // Batches, its consumer's in other processes among them, may hold what it waits for: not for long.
                (true, true) if class == FaultClass::Contention && !persists => Blame::Nobody,
                (true, true) => Blame::Message(FaultClass::Transient),
                (true, false) => Blame::Nobody,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_BATCH: Circumstances =
        Circumstances { by_itself: false, witness: false, alone: false, is_last: false, persists: false };
    const BY_ITSELF: Circumstances = Circumstances { by_itself: true, ..IN_BATCH };
    const SEEN: Circumstances = Circumstances { witness: true, ..BY_ITSELF };

    /// What no message causes by itself.
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
            assert_eq!(blame(class, among_good), Blame::Message(class));
        }
    }

    #[test]
    fn what_uses_up_the_attempts_has_failed_by_itself() {
        let last = Circumstances { is_last: true, ..SEEN };
        let in_batch = Circumstances { by_itself: false, ..last };
        assert_eq!(blame(FaultClass::Transient, in_batch), Blame::Batch);
        assert_eq!(blame(FaultClass::Transient, last), Blame::Message(FaultClass::Transient));
    }

    #[test]
    fn the_handlers_word_on_a_message_needs_no_witness() {
        for class in [FaultClass::Rejected, FaultClass::Refused, FaultClass::NotJson, FaultClass::Crashed] {
            assert_eq!(blame(class, IN_BATCH), Blame::Message(class));
        }
    }
}
