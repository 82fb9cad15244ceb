//! Is the mirror a server that can be one?

use super::Found;
use crate::config::Config;
use crate::mirror::{Mirror, RedisFacts};

pub(crate) const IN_CLUSTER: &str = "is a node of a cluster (INFO says cluster_enabled:1): it redirects what belongs to other nodes, so that \
     look-ups would count as misses and entries would never be written; use a Redis without cluster mode, alone or with Sentinel, or none";

/// Asks whether it is a node of a cluster. One that does not answer is no reason to wait: it is done without.
pub(super) async fn cluster(config: &Config, found: &mut Found) {
    let Some(Ok(mirror)) = config.mirror.as_ref().map(Mirror::new) else { return };
    match mirror.facts().await {
        Ok(facts) => judge_cluster(&facts, found),
        Err(error) => {
            tracing::debug!(error = %error, "Redis was not asked whether it is a node of a cluster")
        }
    }
}

/// Judges whether it is a node of a cluster.
pub(crate) fn judge_cluster(facts: &RedisFacts, found: &mut Found) {
    found.read("redis.cluster", format!("cluster mode: {}", facts.is_cluster));
    if facts.is_cluster {
        found.error("redis.cluster", "redis.url", IN_CLUSTER);
    }
}
