//! Kinds of neighbours with few rights that mean harm.

/// A kind of neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// A login that may claim (`oncely_consumer`): claims other consumers' keys before their messages come.
    Client,
    /// A login that may emit: uses the relay to publish what it may not, never or for ever.
    Stranger,
    /// A login that may create objects in `public`.
    Creator,
    /// A client that may write to Redis.
    Listener,
}

impl Neighbour {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Client, Self::Stranger, Self::Creator, Self::Listener];
}
