//! Heartbeat of a gateway: liveness and readiness.

use oncely_postgres::{Pause, Secrets};
use oncely_process::heartbeat::{Member, Totals};

/// Has no consumers to pause, signs nothing, and writes no stats.
pub(super) struct GatewayMember;

impl Member for GatewayMember {
    const OBEYS: bool = false;

    fn obey(&self, _: Vec<Pause>) {}

    fn set_secrets(&self, _: &Secrets) {}

    fn totals(&self) -> Option<Totals> {
        None
    }
}
