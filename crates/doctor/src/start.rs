//! Checks of RabbitMQ and Redis that worker and relay make before they start. Those of PostgreSQL are in `preflight`.

use super::queues::{check_queues, close, connect_and_check};
use super::redis_cluster::check_cluster;
use oncely_config::Config;
use oncely_process::preflight::{
    CheckFindings, Preflight, check_handlers, check_pauses, check_postgres, check_worker_engine, conclude,
};

/// Checks PostgreSQL, the handlers and the queues of all consumers. Changes nothing.
pub async fn preflight_worker(config: &Config) -> Preflight {
    let mut findings = CheckFindings::default();
    let mut session = check_postgres(config, &mut findings).await;
    if let Some(session) = &mut session {
        check_handlers(config, session, &mut findings).await;
        check_pauses(config, session, &mut findings).await;
        check_worker_engine(config, session, &mut findings).await;
    }
    if let Some(connection) = connect_and_check(config, &mut findings).await {
        check_queues(config, &connection, config.rabbitmq.timeout, &mut findings).await;
        close(connection).await;
    }
    conclude(session, findings)
}

/// Checks that Redis is a cluster only if the configuration says so, if it answers, and adds the findings to `preflight`.
pub async fn check_mirror(config: &Config, preflight: &mut Preflight) {
    let mut findings = CheckFindings::default();
    check_cluster(config, &mut findings).await;
    preflight.add_findings(findings);
}
