//! Queries of RabbitMQ and Redis over kept connections, each with a time limit.

use std::time::Duration;

use tokio::sync::{Mutex, OnceCell};

use super::failure::ServerFailure;
use crate::overview::{QueueState, queue_states};
use oncely_amqp::{AmqpError, connect};
use oncely_config::Config;
use oncely_doctor::IN_CLUSTER;
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

    /// Returns the state of all configured queues, or the reason why RabbitMQ does not answer. Without a broker there are none.
    pub async fn queues(&self, config: &Config) -> Result<Vec<QueueState>, String> {
        if !config.has_broker {
            return Ok(Vec::new());
        }
        let mut kept = self.broker.lock().await;
        let asked = async {
            let connection = match kept.take().filter(|connection| connection.status().connected()) {
                Some(connection) => connection,
                None => connect(&config.rabbitmq, self.application).await?,
            };
            let states = queue_states(&connection, config).await?;
            Ok::<_, AmqpError>((connection, states))
        };
        match tokio::time::timeout(self.limit, asked).await {
            Ok(Ok((connection, states))) => {
                *kept = Some(connection);
                Ok(states)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.limit)),
        }
    }

    /// Returns why Redis can't be used, if it can't; `None` if no mirror is configured.
    pub async fn redis(&self) -> Option<Result<(), ServerFailure>> {
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
            .get_or_try_init(|| async { Ok::<_, MirrorError>(mirror.facts().await?.is_cluster) });
        // Redis answers; its facts may come with a later query.
        match tokio::time::timeout(self.limit, facts).await {
            Ok(Ok(true)) => Some(Err(ServerFailure { text: IN_CLUSTER.to_owned(), is_away: false })),
            _ => Some(Ok(())),
        }
    }

    /// Closes the connection to RabbitMQ.
    pub async fn close(&self) {
        if let Some(connection) = self.broker.lock().await.take()
            && let Err(error) = connection.close(200, "done".into()).await
        {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
    }
}
