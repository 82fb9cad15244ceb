//! The state of the queues in RabbitMQ, queried over one kept connection.

use std::time::Duration;

use tokio::sync::Mutex;

use oncely_amqp::connect;
use oncely_config::Config;
use oncely_ops::status::{QueueState, queue_states};

/// A broker that takes longer counts as unreachable for a page.
const LIMIT: Duration = Duration::from_millis(1_500);

/// The connection, while it is open.
#[derive(Default)]
pub(crate) struct BrokerConnection(Mutex<Option<lapin::Connection>>);

impl BrokerConnection {
    /// Returns the state of all configured queues; otherwise the reason why the broker does not answer.
    pub(crate) async fn queues(&self, config: &Config) -> Result<Vec<QueueState>, String> {
        if !config.has_broker {
            return Ok(Vec::new());
        }
        let mut kept = self.0.lock().await;
        let asked = async {
            let connection = match kept.take().filter(|connection| connection.status().connected()) {
                Some(connection) => connection,
                None => connect(&config.rabbitmq, "oncely console").await?,
            };
            let states = queue_states(&connection, config).await?;
            Ok::<_, oncely_amqp::AmqpError>((connection, states))
        };
        match tokio::time::timeout(LIMIT, asked).await {
            Ok(Ok((connection, states))) => {
                *kept = Some(connection);
                Ok(states)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {LIMIT:?}")),
        }
    }
}
