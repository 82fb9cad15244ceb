//! `--servers`: which servers a task starts.

use clap::Args;
use testbed::Generation;

#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Choice {
    /// Servers of this Debian release, in a root that is made once: trixie has PostgreSQL 17, RabbitMQ 4.0 and Valkey 8.1,
    /// forky 18, 4.3 and 9. Needs root. Default: what $TESTBED_SERVERS says, else this machine's own
    #[arg(long, value_name = "RELEASE")]
    servers: Option<Generation>,
}

impl Choice {
    /// Makes it hold for this process; before anything else of the task, which may take long.
    pub(crate) fn apply(&self) -> anyhow::Result<()> {
        if let Some(generation) = self.servers {
            generation.choose()?;
        }
        Generation::current()?.prepare()
    }
}
