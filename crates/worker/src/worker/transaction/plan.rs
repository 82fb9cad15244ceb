//! Plan of a batch's transaction.

/// Way in which messages share a transaction, and the consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchPlan {
    /// All messages at once: the first failure rolls all back.
    Together {
        /// No other batch of the consumer runs beside it, in any process.
        turn: bool,
    },
    /// A failure is rolled back by itself: a SQL function runs in parts, and in a part that fails message by message, inside the server;
    /// a Rust handler has a subtransaction for each message.
    Apart {
        /// As above.
        turn: bool,
        /// Each message has a subtransaction from the start: many fail.
        each: bool,
        /// A body among them is JSON that jsonb refuses: each is parsed by itself, inside the server.
        unparsed: bool,
    },
    /// One message, in a transaction and a subtransaction of its own.
    ByItself {
        /// Another message of the batch has succeeded.
        witness: bool,
        /// It has not run before in this batch.
        first: bool,
    },
}

impl BatchPlan {
    /// Returns whether it is the consumer's only batch, in any process.
    pub(crate) fn has_turn(self) -> bool {
        matches!(self, Self::Together { turn: true } | Self::Apart { turn: true, .. })
    }

    /// Returns whether another message of the batch is known to have succeeded.
    pub(crate) fn has_witness(self) -> bool {
        matches!(self, Self::ByItself { witness: true, .. })
    }

    /// Returns whether it is for one message alone.
    pub(crate) fn is_by_itself(self) -> bool {
        matches!(self, Self::ByItself { .. })
    }
}
