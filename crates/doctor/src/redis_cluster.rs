//! Checks that the mirror's server is suitable.

use oncely_config::Config;
use oncely_mirror::{Mirror, RedisFacts};
use oncely_process::preflight::CheckFindings;

/// The text of the error where the configuration knows of no cluster.
pub const CLUSTER_TEXT: &str = "is a node of a cluster (INFO says cluster_enabled:1): it redirects what belongs to other nodes, so that \
     look-ups would count as misses and entries would never be written; set redis.cluster = true";
/// The text of the error where the configuration is for a cluster.
pub const NO_CLUSTER_TEXT: &str =
    "is no node of a cluster (INFO says cluster_enabled:0): leave out redis.cluster";

/// Checks that Redis is a node of a cluster only where the configuration is for one. If Redis does not answer, the process starts without it.
pub(super) async fn check_cluster(config: &Config, findings: &mut CheckFindings) {
    let Some(Ok(mirror)) = config.mirror.as_ref().map(Mirror::new) else { return };
    match mirror.read_facts().await {
        Ok(facts) => report_cluster(&facts, mirror.is_for_cluster(), findings),
        Err(error) => {
            tracing::debug!(error = %error, "Redis was not asked whether it is a node of a cluster")
        }
    }
}

/// Adds an error if Redis is a node of a cluster, and the configuration is not for one, or the other way round.
pub(crate) fn report_cluster(facts: &RedisFacts, is_expected: bool, findings: &mut CheckFindings) {
    findings.add_read("redis.cluster", format!("cluster mode: {}", facts.is_cluster));
    match (facts.is_cluster, is_expected) {
        (true, false) => findings.add_error("redis.cluster", "redis.url", CLUSTER_TEXT),
        (false, true) => findings.add_error("redis.cluster", "redis.cluster", NO_CLUSTER_TEXT),
        _ => {}
    }
}
