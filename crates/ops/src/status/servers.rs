//! Queries of RabbitMQ and Redis over kept connections, each with a time limit.

use std::time::Duration;

use tokio::sync::Mutex;

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
}

impl Servers {
    /// Prepares connections under this name. A server that takes longer than `limit` counts as unreachable.
    pub fn new(config: &Config, application: &'static str, limit: Duration) -> Self {
        let mirror = config.mirror.as_ref().map(Mirror::new);
        Self { application, limit, broker: Mutex::default(), mirror }
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
        let asked = async {
            let mirror = self.mirror.as_ref()?.as_ref().map_err(|error| away(error.to_string()));
            Some(match mirror {
                Ok(mirror) => match mirror.ping().await {
                    Ok(()) if mirror.facts().await.is_ok_and(|facts| facts.is_cluster) => {
                        Err(ServerFailure { text: IN_CLUSTER.to_owned(), is_away: false })
                    }
                    answer => answer.map_err(|error| away(error.to_string())),
                },
                Err(failure) => Err(failure),
            })
        };
        match tokio::time::timeout(self.limit, asked).await {
            Ok(answer) => answer,
            Err(_) => Some(Err(away(format!("no answer within {:?}", self.limit)))),
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
