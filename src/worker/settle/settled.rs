//! A delivery on its way out.

use crate::amqp::Delivery;
use crate::outcome::Outcome;
use crate::traces::MessageTrace;
use crate::worker::candidate::Known;

/// A delivery whose outcome is committed.
pub(super) struct Settled {
    pub(super) delivery: Box<Delivery>,
    pub(super) known: Known,
    pub(super) outcome: Outcome,
    pub(super) trace: MessageTrace,
}
