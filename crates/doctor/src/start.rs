//! Checks of RabbitMQ and Redis that worker and relay make before they start. Those of PostgreSQL are in `preflight`.

use super::queues::{close, queues, reach};
use super::redis_cluster::cluster;
use oncely_config::Config;
use oncely_process::preflight::{CheckFindings, Preflight, conclude, handlers, pauses, postgres};

/// Checks PostgreSQL, the handlers and the queues of all consumers. Changes nothing.
pub async fn preflight_worker(config: &Config) -> Preflight {
    let mut found = CheckFindings::default();
    let mut session = postgres(config, &mut found).await;
    if let Some(session) = &mut session {
        handlers(config, session, &mut found).await;
        pauses(config, session, &mut found).await;
    }
    if let Some(connection) = reach(config, &mut found).await {
        queues(config, &connection, config.rabbitmq.timeout, &mut found).await;
        close(connection).await;
    }
    conclude(session, found)
}

/// Adds to `preflight` whether Redis can be the mirror.
pub async fn check_mirror(config: &Config, preflight: &mut Preflight) {
    let mut found = CheckFindings::default();
    cluster(config, &mut found).await;
    preflight.note(found);
}
