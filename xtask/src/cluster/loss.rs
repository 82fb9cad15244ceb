//! What is lost.

use std::time::Duration;

use clap::ValueEnum;
use testbed::{Cluster, Signal};

/// A host of several that goes away, for a while or for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Loss {
    /// The node that leads the work queue is killed, and comes back
    LeaderKilled,
    /// The node that leads the work queue is cut off from the others, and joins them again
    LeaderCutOff,
    /// The node that leads the work queue says nothing for a while
    LeaderFrozen,
    /// The node that leads the work queue is gone for good, and the others forget it
    NodeGone,
    /// Redis's master is killed, and its replica takes its place
    RedisMasterKilled,
    /// PostgreSQL's primary is killed, and its standby takes its place
    PrimaryKilled,
}

/// So long it is away.
const HOLD: Duration = Duration::from_secs(15);

impl Loss {
    /// The failover of PostgreSQL comes last: entries of the mirror that were made before it belong to another epoch.
    pub(crate) const ALL: [Self; 6] = [
        Self::LeaderKilled,
        Self::LeaderCutOff,
        Self::LeaderFrozen,
        Self::NodeGone,
        Self::RedisMasterKilled,
        Self::PrimaryKilled,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LeaderKilled => "leader of the queue killed, back after 15 s",
            Self::LeaderCutOff => "leader of the queue cut off from the others for 15 s",
            Self::LeaderFrozen => "leader of the queue frozen for 15 s",
            Self::NodeGone => "leader of the queue gone for good",
            Self::RedisMasterKilled => "Redis's master killed, its replica takes over",
            Self::PrimaryKilled => "PostgreSQL's primary killed, its standby promoted",
        }
    }

    /// Until all is whole again that is meant to be.
    pub(crate) async fn happen(self, cluster: &mut Cluster, queue: &str) -> anyhow::Result<()> {
        match self {
            Self::RedisMasterKilled => return cluster.lose_redis().await,
            Self::PrimaryKilled => return cluster.promote().await,
            _ => {}
        }
        let leader = cluster.leader(queue).await?;
        match self {
            Self::NodeGone => {
                cluster.lose_node(leader).await?;
                tokio::time::sleep(HOLD).await;
                return Ok(());
            }
            Self::LeaderKilled => cluster.kill_node(leader)?,
            Self::LeaderCutOff => cluster.cut_off(leader).await?,
            _ => cluster.signal_node(leader, Signal::STOP)?,
        }
        tokio::time::sleep(HOLD).await;
        match self {
            Self::LeaderKilled => cluster.nodes[leader].restart().await?,
            Self::LeaderCutOff => cluster.join(leader).await?,
            _ => cluster.signal_node(leader, Signal::CONT)?,
        }
        cluster.wait_until_whole(leader, queue).await
    }
}
