//! Checks that the mirror's server is suitable.

use oncely_config::Config;
use oncely_mirror::{Mirror, RedisFacts};
use oncely_process::preflight::CheckFindings;

pub const IN_CLUSTER: &str = "is a node of a cluster (INFO says cluster_enabled:1): it redirects what belongs to other nodes, so that \
     look-ups would count as misses and entries would never be written; use a Redis without cluster mode, alone or with Sentinel, or none";

/// Checks whether it is a node of a cluster. If it does not answer, the process starts without it.
pub(super) async fn cluster(config: &Config, found: &mut CheckFindings) {
    let Some(Ok(mirror)) = config.mirror.as_ref().map(Mirror::new) else { return };
    match mirror.facts().await {
        Ok(facts) => judge_cluster(&facts, found),
        Err(error) => {
            tracing::debug!(error = %error, "Redis was not asked whether it is a node of a cluster")
        }
    }
}

/// Reports a node of a cluster.
pub(crate) fn judge_cluster(facts: &RedisFacts, found: &mut CheckFindings) {
    found.add_read("redis.cluster", format!("cluster mode: {}", facts.is_cluster));
    if facts.is_cluster {
        found.error("redis.cluster", "redis.url", IN_CLUSTER);
    }
}
