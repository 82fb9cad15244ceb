//! What a run has used: CPU time by process, WAL.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::{PgConnection, Row as _};
use testbed::{cpu_time, cpu_time_of_family};

use super::site::Member;
use super::stage::Stage;

/// Role of the process that forwards connections with a delay. Its CPU time is no part of a message's cost.
pub(crate) const LINK: &str = "link";

/// Counters at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    cpu: BTreeMap<&'static str, Duration>,
    /// Position in the WAL, in bytes.
    wal: i64,
}

/// What was used between two readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time by role: postgres (with its backends), rabbitmq, redis, naive, worker, relay, link.
    pub(crate) cpu: BTreeMap<&'static str, Duration>,
    /// Bytes of WAL.
    pub(crate) wal: u64,
}

impl Reading {
    pub(crate) async fn take(
        stage: &Stage,
        members: &[Member],
        connection: &mut PgConnection,
    ) -> anyhow::Result<Self> {
        let mut cpu = BTreeMap::from([
            ("postgres", cpu_time_of_family(stage.postgres_pid()?).context("PostgreSQL has ended")?),
            ("rabbitmq", cpu_time(stage.rabbitmq_pid()?).context("RabbitMQ has ended")?),
            ("redis", cpu_time(stage.redis_pid()?).context("Redis has ended")?),
        ]);
        if let Some(network) = &stage.network {
            cpu.insert(LINK, cpu_time(network.pid()).context("the link has ended")?);
        }
        for member in members {
            let time = cpu_time(member.process.id())
                .with_context(|| format!("{} has ended\n{}", member.role, member.process.output()))?;
            *cpu.entry(member.role).or_default() += time;
        }
        let wal = sqlx::query("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .fetch_one(connection)
            .await?
            .get(0);
        Ok(Self { cpu, wal })
    }

    /// What was used since.
    pub(crate) fn since(&self, earlier: &Self) -> Usage {
        let cpu = self.cpu.iter().map(|(role, time)| {
            let before = earlier.cpu.get(role).copied().unwrap_or_default();
            (*role, time.saturating_sub(before))
        });
        Usage { cpu: cpu.collect(), wal: u64::try_from(self.wal - earlier.wal).unwrap_or(0) }
    }
}
