//! A decided delivery.

use crate::worker::candidate::PartialIdentity;
use oncely_amqp::Delivery;
use oncely_core::outcome::Outcome;
use oncely_traces::MessageTrace;

/// A delivery with a committed outcome.
pub(super) struct SettledDelivery {
    pub(super) delivery: Box<Delivery>,
    pub(super) known: PartialIdentity,
    pub(super) outcome: Outcome,
    pub(super) trace: MessageTrace,
}
