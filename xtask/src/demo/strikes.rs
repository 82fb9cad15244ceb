//! What is killed, and when.

use std::time::Duration;

use indicatif::MultiProgress;
use testbed::Arena;
use testbed::faults::{Fault, Kind};

/// Faults by progress, so that each strikes in the middle of the work however fast it goes.
#[derive(Debug)]
pub(crate) struct Strikes {
    /// After how many effects; popped from the end.
    coming: Vec<(u64, Fault)>,
    /// For the report.
    pub(crate) done: Vec<String>,
}

/// After so many per cent of the effects, in the order of [`Strikes::coming`].
const PLAN: [(u64, Kind, usize); 3] =
    [(65, Kind::KillWorker, 1), (40, Kind::KillRedis, 0), (20, Kind::KillWorker, 0)];

impl Strikes {
    pub(crate) fn new(distinct: u64) -> Self {
        let fault = |kind, target| Fault { kind, target, hold: Duration::ZERO };
        let coming =
            PLAN.map(|(percent, kind, target)| ((distinct * percent / 100).max(1), fault(kind, target)));
        Self { coming: coming.into(), done: Vec::new() }
    }

    /// Strikes if it is time.
    pub(crate) async fn strike(
        &mut self,
        effects: u64,
        arena: &mut Arena,
        bars: &MultiProgress,
    ) -> anyhow::Result<()> {
        let Some((_, fault)) = self.coming.pop_if(|(at, _)| effects >= *at) else {
            return Ok(());
        };
        let what = match fault.kind {
            Kind::KillRedis if !arena.owns_redis() => "Redis is not ours: not killed".to_owned(),
            Kind::KillRedis => {
                arena.run_fault(&fault).await?;
                format!("Redis killed with -9 after {effects} effects, started again empty")
            }
            _ => {
                arena.run_fault(&fault).await?;
                let number = fault.target + 1;
                format!("worker {number} killed with -9 after {effects} effects, started again")
            }
        };
        bars.println(&what)?;
        self.done.push(what);
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.coming.is_empty()
    }
}
