//! What runs measure, and how often they look.

use std::collections::BTreeMap;
use std::time::Duration;

use super::meter::LINK;
use super::site::Member;

/// Between two looks: seldom enough to cost the server next to nothing, often enough for runs of seconds.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// Nothing moves for so long: the run has failed.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Messages a second.
    pub(crate) rate: f64,
    /// CPU time in microseconds a message, by process.
    pub(crate) cpu: BTreeMap<&'static str, f64>,
    /// Bytes of WAL a message.
    pub(crate) wal: f64,
    /// From the last effect to an empty mirror queue, in seconds.
    pub(crate) drained_after: f64,
    /// Most memory that a worker has held (resident set), in bytes.
    pub(crate) memory: u64,
}

impl Measured {
    /// All processes together but the link's, in microseconds a message.
    pub(crate) fn total_cpu(&self) -> f64 {
        self.cpu.iter().filter(|(role, _)| **role != LINK).map(|(_, micros)| micros).sum()
    }

    pub(crate) fn cpu_of(&self, role: &str) -> f64 {
        self.cpu.get(role).copied().unwrap_or(0.0)
    }
}

/// Fails if a process has ended.
pub(crate) fn check(members: &mut [Member]) -> anyhow::Result<()> {
    for member in members {
        if let Some(status) = member.process.status() {
            anyhow::bail!("{} ended: {status}\n{}", member.role, member.process.output());
        }
    }
    Ok(())
}
