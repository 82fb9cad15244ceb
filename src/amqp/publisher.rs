//! Publishing that is known to have arrived.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use lapin::Connection;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::connection::{AmqpError, answer, connect};
use super::copy::Copy;
use super::headers::fit;
use crate::config::RabbitSettings;
use crate::plant::planted;

/// Names each copy, so that a returned one is told from its neighbours.
const COPY_HEADER: &str = "x-oncely-copy";

/// Why a copy is not known to have arrived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// No queue took it.
    #[error(
        "exchange {0:?} has no queue for it; bind one (`oncely topology apply` does for exchanges of its own)"
    )]
    Unroutable(String),
    /// The broker said no.
    #[error("the broker refused it (is a queue full?)")]
    Refused,
    /// The connection or the channel failed: it may have arrived or not.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
}

/// Publishes on a connection of its own, opened when needed.
pub(crate) struct Publisher {
    settings: RabbitSettings,
    purpose: String,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Publisher {
    pub(crate) fn new(settings: RabbitSettings, purpose: String) -> Self {
        Self { settings, purpose, connection: Mutex::new(None) }
    }

    /// Publishes copies and says of each whether it has arrived: confirmed by the broker *and* taken by a queue. A confirm
    /// alone is not enough: an unroutable message is confirmed too.
    ///
    /// Uses a private channel for each call, settles all confirms, and only then looks which copies were returned, by
    /// their names: lapin pairs returns with confirms by order, and under load pairs them wrongly.
    pub(crate) async fn publish(&self, copies: &[Copy]) -> Vec<Result<(), PublishError>> {
        match self.try_publish(copies).await {
            Ok(results) => results,
            Err(error) => copies.iter().map(|_| Err(PublishError::Amqp(again(&error)))).collect(),
        }
    }

    async fn try_publish(&self, copies: &[Copy]) -> Result<Vec<Result<(), PublishError>>, AmqpError> {
        let connection = self.connect().await?;
        let published = self.publish_on(&connection, copies).await;
        if published.is_err() {
            // Whatever failed, the next call starts with a fresh connection, unless another call has opened one already.
            let mut current = self.connection.lock().await;
            if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
                *current = None;
            }
        }
        published
    }

    async fn connect(&self) -> Result<Arc<Connection>, AmqpError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.status().connected()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(connect(&self.settings, &self.purpose).await?);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn publish_on(
        &self,
        connection: &Connection,
        copies: &[Copy],
    ) -> Result<Vec<Result<(), PublishError>>, AmqpError> {
        let limit = self.settings.timeout;
        let frame_max = connection.configuration().frame_max();
        let channel = answer("channel.open", limit, connection.create_channel()).await?;
        answer("confirm.select", limit, channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let options =
            BasicPublishOptions { mandatory: !planted("no_mandatory"), ..BasicPublishOptions::default() };
        let names: Vec<String> = copies.iter().map(|_| Uuid::now_v7().to_string()).collect();
        let mut confirms = FuturesOrdered::new();
        for (copy, name) in copies.iter().zip(&names) {
            let mut headers = copy.properties.headers().clone().unwrap_or_default();
            headers.insert(COPY_HEADER.into(), AMQPValue::LongString(name.as_str().into()));
            let properties = copy.properties.clone().with_headers(fit(headers, frame_max));
            let (exchange, key) = (copy.exchange.as_str().into(), copy.routing_key.as_str().into());
            let published = channel.basic_publish(exchange, key, options, &copy.body, properties);
            confirms.push_back(answer("basic.publish", limit, published).await?);
        }
        let mut confirmations = Vec::with_capacity(copies.len());
        let mut returned = HashSet::new();
        while let Some(confirmation) =
            answer("publisher confirms", limit, async { confirms.next().await.transpose() }).await?
        {
            confirmations.push(confirmation.is_ack());
            if let Some(message) = confirmation.take_message()
                && let Some(name) = copy_name(message.delivery.properties.headers().as_ref())
            {
                returned.insert(name);
            }
        }
        if let Err(error) = answer("channel.close", limit, channel.close(200, "done".into())).await {
            tracing::debug!(error = %error, "closing a publishing channel failed");
        }
        Ok(copies
            .iter()
            .zip(names)
            .zip(confirmations)
            .map(|((copy, name), confirmed)| match (confirmed, returned.contains(&name)) {
                (_, true) => Err(PublishError::Unroutable(copy.exchange.clone())),
                (false, _) => Err(PublishError::Refused),
                (true, false) => Ok(()),
            })
            .collect())
    }
}

fn copy_name(headers: Option<&FieldTable>) -> Option<String> {
    match headers?.inner().get(COPY_HEADER)? {
        AMQPValue::LongString(name) => Some(name.to_string()),
        _ => None,
    }
}

/// The same error for each copy of a failed call.
fn again(error: &AmqpError) -> AmqpError {
    match error {
        AmqpError::Broker(error) => AmqpError::Broker(error.clone()),
        AmqpError::Timeout(what, limit) => AmqpError::Timeout(what, *limit),
        AmqpError::Url => AmqpError::Url,
    }
}
