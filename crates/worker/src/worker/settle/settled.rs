//! A settled delivery.

use crate::worker::candidate::DecidedDelivery;
use oncely_traces::MessageTrace;

/// A delivery with a committed outcome, and its span.
pub(super) struct SettledDelivery {
    pub(super) decided: DecidedDelivery,
    pub(super) trace: MessageTrace,
}
