//! Checks that the mirror's server is suitable.

use oncely_config::Config;
use oncely_mirror::{Mirror, RedisFacts};
use oncely_process::preflight::CheckFindings;

/// The text of the error.
pub const CLUSTER_TEXT: &str = "is a node of a cluster (INFO says cluster_enabled:1): it redirects what belongs to other nodes, so that \
     look-ups would count as misses and entries would never be written; use a Redis without cluster mode, alone or with Sentinel, or none";

/// Checks that Redis is no node of a cluster. If Redis does not answer, the process starts without it.
pub(super) async fn check_cluster(config: &Config, findings: &mut CheckFindings) {
    let Some(Ok(mirror)) = config.mirror.as_ref().map(Mirror::new) else { return };
    match mirror.read_facts().await {
        Ok(facts) => report_cluster(&facts, findings),
        Err(error) => {
            tracing::debug!(error = %error, "Redis was not asked whether it is a node of a cluster")
        }
    }
}

/// Adds an error if Redis is a node of a cluster.
pub(crate) fn report_cluster(facts: &RedisFacts, findings: &mut CheckFindings) {
    findings.add_read("redis.cluster", format!("cluster mode: {}", facts.is_cluster));
    if facts.is_cluster {
        findings.add_error("redis.cluster", "redis.url", CLUSTER_TEXT);
    }
}
