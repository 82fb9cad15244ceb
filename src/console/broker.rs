//! What RabbitMQ says of the queues, over one connection that stays.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::amqp::connect;
use crate::config::Config;
use crate::status::{QueueState, queue_states};

/// A broker that takes longer is as good as away, for a page.
const LIMIT: Duration = Duration::from_millis(1_500);

/// The connection, while there is one.
#[derive(Default)]
pub(crate) struct Broker(Mutex<Option<lapin::Connection>>);

impl Broker {
    /// All queues of the configuration; in words why not, where the broker does not answer.
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
            Ok::<_, crate::amqp::AmqpError>((connection, states))
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
