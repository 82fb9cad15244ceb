//! Queries of RabbitMQ and Redis over kept connections, each with a time limit.

use std::time::Duration;

use tokio::sync::{Mutex, OnceCell};

use super::failure::ServerFailure;
use crate::overview::{QueueState, query_queue_states};
use oncely_amqp::{AmqpError, connect};
use oncely_config::Config;
use oncely_doctor::{CLUSTER_TEXT, NO_CLUSTER_TEXT};
use oncely_mirror::{Mirror, MirrorError};

/// Connections to RabbitMQ and Redis, for repeated queries.
pub struct Servers {
    application: &'static str,
    limit: Duration,
    broker: Mutex<Option<lapin::Connection>>,
    mirror: Option<Result<Mirror, MirrorError>>,
    /// Whether Redis is a node of a cluster, once it has answered.
    is_cluster: OnceCell<bool>,
}

impl Servers {
    /// Prepares connections under this name. A server that takes longer than `limit` counts as unreachable.
    pub fn new(config: &Config, application: &'static str, limit: Duration) -> Self {
        let mirror = config.mirror.as_ref().map(Mirror::new);
        Self { application, limit, broker: Mutex::default(), mirror, is_cluster: OnceCell::new() }
    }

    /// Queries the state of all configured queues; an error is the reason for which RabbitMQ does not answer. Without a broker there are no
    /// queues.
    pub async fn query_queues(&self, config: &Config) -> Result<Vec<QueueState>, String> {
        if !config.has_broker {
            return Ok(Vec::new());
        }
        let mut slot = self.broker.lock().await;
        let query = async {
            let connection = match slot.take().filter(|connection| connection.status().connected()) {
                Some(connection) => connection,
                None => connect(&config.rabbitmq, self.application).await?,
            };
            let states = query_queue_states(&connection, config).await?;
            Ok::<_, AmqpError>((connection, states))
        };
        match tokio::time::timeout(self.limit, query).await {
            Ok(Ok((connection, states))) => {
                *slot = Some(connection);
                Ok(states)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.limit)),
        }
    }

    /// Checks that Redis answers, and is a node of a cluster where the configuration says so; `None` if no mirror is configured.
    pub async fn check_redis(&self) -> Option<Result<(), ServerFailure>> {
        let away = |text| ServerFailure { text, is_away: true };
        let mirror = match self.mirror.as_ref()? {
            Ok(mirror) => mirror,
            Err(error) => return Some(Err(away(error.to_string()))),
        };
        match tokio::time::timeout(self.limit, mirror.ping()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(Err(away(error.to_string()))),
            Err(_) => return Some(Err(away(format!("no answer within {:?}", self.limit)))),
        }
        let facts = self
            .is_cluster
            .get_or_try_init(|| async { Ok::<_, MirrorError>(mirror.read_facts().await?.is_cluster) });
        // Redis answers; its facts may come with a later query.
        match tokio::time::timeout(self.limit, facts).await {
            Ok(Ok(is_cluster)) if *is_cluster != mirror.is_for_cluster() => {
                let text = if *is_cluster { CLUSTER_TEXT } else { NO_CLUSTER_TEXT };
                Some(Err(ServerFailure { text: text.to_owned(), is_away: false }))
            }
            _ => Some(Ok(())),
        }
    }

    /// Closes the connection to RabbitMQ. A failure is logged.
    pub async fn close(&self) {
        if let Some(connection) = self.broker.lock().await.take()
            && let Err(error) = connection.close(200, "done".into()).await
        {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
