//! Heartbeat of a gateway: liveness and readiness.

use oncely_postgres::{Pause, Secrets};
use oncely_process::heartbeat::{Member, Totals};

/// Gateway as a member with a heartbeat: it has no consumers to pause, signs nothing, and writes no stats.
pub(super) struct GatewayMember;

impl Member for GatewayMember {
    const OBEYS_PAUSES: bool = false;

    fn set_pauses(&self, _: Vec<Pause>) {}

    fn set_secrets(&self, _: &Secrets) {}

    fn totals(&self) -> Option<Totals> {
        None
    }
}
