//! What a gateway tells by its heartbeat: that it lives, and whether it is ready.

use crate::heartbeat::{Member, Totals};
use crate::pg::{Pause, Secrets};

/// It has no consumers that could be paused, signs nothing, and counts in its metrics alone.
pub(super) struct Silent;

impl Member for Silent {
    const OBEYS: bool = false;

    fn obey(&self, _: Vec<Pause>) {}

    fn learn(&self, _: &Secrets) {}

    fn totals(&self) -> Option<Totals> {
        None
    }
}
