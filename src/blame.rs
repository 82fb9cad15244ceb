//! Who answers for a failure: the message, its batch, or nobody yet. Without I/O and without a clock.
//!
//! A batch is a bet that its messages have nothing to do with each other. When it fails, the bet is taken back: what the others may
//! have caused is run again in a transaction of its own, and what strikes a message there is the message's, unless the same may strike
//! every other message as well. That is decided by witnesses, messages of the same consumer that succeed meanwhile, and not by the
//! SQLSTATE: a missing table may be an operator's mistake, or one branch of the handler that nobody deployed.

use crate::fault::FaultClass;

/// What is known when a message has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// It ran in a transaction of its own, on a session of its own making.
    pub by_itself: bool,
    /// Another message of its consumer has succeeded beside it, or since it failed before.
    pub witness: bool,
    /// The run was its last one: charged with this failure it is given up.
    pub is_last: bool,
    /// It has met locks for a minute or longer, with pauses, while others succeeded.
    pub persists: bool,
    /// So many messages in a row were given up as poison, and none succeeded.
    pub poisoned: u32,
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

/// Messages in a row that are given up as poison, with no success in between, until the next one waits for a witness: more of them are
/// rather a handler that is broken for all.
pub const POISON_STREAK: u32 = 20;

/// Decides who answers for a failure of this class.
#[must_use]
pub fn blame(class: FaultClass, circumstances: Circumstances) -> Blame {
    let Circumstances { by_itself, witness, is_last, persists, poisoned } = circumstances;
    let environment = |own: FaultClass| match (by_itself, witness) {
        // Also where others succeed: a temporary table that each message makes, say, is there for all but the first.
        (false, _) => Blame::Batch,
        (true, true) => Blame::Message(own),
        (true, false) => Blame::Nobody,
    };
    match class {
        FaultClass::Environment => environment(FaultClass::Transient),
        FaultClass::Poison if poisoned >= POISON_STREAK && !witness => environment(FaultClass::Poison),
        FaultClass::Session => match by_itself {
            true => Blame::Message(FaultClass::Transient),
            false => Blame::Batch,
        },
        // Batches, its consumer's in other processes among them, may hold what it waits for: not for long.
        FaultClass::Contention => match (by_itself, persists) {
            (false, _) => Blame::Batch,
            (true, true) => Blame::Message(FaultClass::Transient),
            (true, false) => Blame::Nobody,
        },
        // What ends in a dead letter has failed by itself.
        FaultClass::Transient if is_last && !by_itself => Blame::Batch,
        FaultClass::Transient
        | FaultClass::Poison
        | FaultClass::Rejected
        | FaultClass::Refused
        | FaultClass::NotJson
        | FaultClass::Crashed => Blame::Message(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_BATCH: Circumstances =
        Circumstances { by_itself: false, witness: false, is_last: false, persists: false, poisoned: 0 };
    const BY_ITSELF: Circumstances = Circumstances { by_itself: true, ..IN_BATCH };
    const SEEN: Circumstances = Circumstances { witness: true, ..BY_ITSELF };

    #[test]
    fn an_environments_error_is_the_messages_only_where_another_one_succeeds() {
        assert_eq!(blame(FaultClass::Environment, IN_BATCH), Blame::Batch);
        let among_good = Circumstances { witness: true, ..IN_BATCH };
        assert_eq!(
            blame(FaultClass::Environment, among_good),
            Blame::Batch,
            "its neighbours may be the cause"
        );
        assert_eq!(blame(FaultClass::Environment, BY_ITSELF), Blame::Nobody);
        assert_eq!(blame(FaultClass::Environment, SEEN), Blame::Message(FaultClass::Transient));
    }

    #[test]
    fn what_batching_may_have_caused_is_charged_to_nobody_before_it_has_failed_by_itself() {
        assert_eq!(blame(FaultClass::Session, IN_BATCH), Blame::Batch);
        assert_eq!(blame(FaultClass::Session, BY_ITSELF), Blame::Message(FaultClass::Transient));
        assert_eq!(blame(FaultClass::Contention, IN_BATCH), Blame::Batch);
        for circumstances in [BY_ITSELF, SEEN] {
            assert_eq!(blame(FaultClass::Contention, circumstances), Blame::Nobody);
        }
        let persists = Circumstances { persists: true, ..BY_ITSELF };
        assert_eq!(blame(FaultClass::Contention, persists), Blame::Message(FaultClass::Transient));
        let last = Circumstances { is_last: true, ..IN_BATCH };
        assert_eq!(blame(FaultClass::Transient, IN_BATCH), Blame::Message(FaultClass::Transient));
        assert_eq!(blame(FaultClass::Transient, last), Blame::Batch);
        let alone_and_last = Circumstances { by_itself: true, ..last };
        assert_eq!(blame(FaultClass::Transient, alone_and_last), Blame::Message(FaultClass::Transient));
    }

    #[test]
    fn poison_of_all_in_a_row_waits_for_a_witness() {
        let streak = |circumstances| Circumstances { poisoned: POISON_STREAK, ..circumstances };
        assert_eq!(blame(FaultClass::Poison, IN_BATCH), Blame::Message(FaultClass::Poison));
        assert_eq!(blame(FaultClass::Poison, streak(IN_BATCH)), Blame::Batch);
        assert_eq!(blame(FaultClass::Poison, streak(BY_ITSELF)), Blame::Nobody);
        assert_eq!(blame(FaultClass::Poison, streak(SEEN)), Blame::Message(FaultClass::Poison));
        assert_eq!(blame(FaultClass::Rejected, streak(IN_BATCH)), Blame::Message(FaultClass::Rejected));
    }
}
