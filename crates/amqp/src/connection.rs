//! Connecting to RabbitMQ.

use std::time::Duration;

use async_rs::traits::RuntimeKit;
use async_rs::{Runtime, Tokio};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use secrecy::ExposeSecret as _;

use super::frames::FrameLimits;
use super::nodes::Node;
use super::transport::{self, BrokerTls};
use super::valve::Valve;
use oncely_config::RabbitSettings;
use oncely_net::tls::{TlsError, TlsFault, fault_of};
use oncely_net::url_file::UrlFileError;

/// Errors of the broker connection. Texts hold no URL.
#[derive(Debug, thiserror::Error)]
pub enum AmqpError {
    /// An error of the broker or the client library.
    #[error("RabbitMQ: {0}")]
    Broker(lapin::Error),
    /// No answer in time.
    #[error("RabbitMQ: no answer to {0} within {1:?}")]
    Timeout(&'static str, Duration),
    /// The URL can't be read.
    #[error("rabbitmq.url is not an AMQP URL")]
    Url,
    /// The file that holds the URL can't be read.
    #[error("RabbitMQ: {0}")]
    UrlFile(String),
    /// No connection was tried, as TLS is required and could not be used; or plaintext is not allowed.
    #[error("RabbitMQ: {0}")]
    Protection(String, TlsFault),
}

impl From<UrlFileError> for AmqpError {
    fn from(error: UrlFileError) -> Self {
        Self::UrlFile(error.to_string())
    }
}

impl From<TlsError> for AmqpError {
    fn from(error: TlsError) -> Self {
        Self::Protection(error.to_string(), TlsFault::Refused)
    }
}

/// Not a source: the text is complete, and would be printed twice.
impl From<lapin::Error> for AmqpError {
    fn from(error: lapin::Error) -> Self {
        Self::Broker(error)
    }
}

impl AmqpError {
    /// Returns the broker's reply code, such as 404 for a missing queue.
    #[must_use]
    pub fn reply_code(&self) -> Option<u16> {
        match self {
            Self::Broker(error) => match error.kind() {
                lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
                _ => None,
            },
            _ => None,
        }
    }

    fn is_refusal(&self, settings: &RabbitSettings) -> bool {
        self.reply_code().is_some() || self.tls_fault(settings).is_some()
    }

    /// Returns why the TLS handshake failed; `None` for every other error.
    pub fn tls_fault(&self, settings: &RabbitSettings) -> Option<TlsFault> {
        match self {
            Self::Protection(_, fault) => Some(*fault),
            Self::Broker(error) => {
                let tls = settings.amqp_tls().ok().flatten()?;
                // A server without TLS at least answers; silence is an outage.
                fault_of(error, tls.cert.is_some()).filter(|fault| *fault != TlsFault::Silent)
            }
            Self::Timeout(..) | Self::Url | Self::UrlFile(_) => None,
        }
    }
}

/// Waits for an answer of the broker, with a limit: a broker that accepts a connection and then stays silent must not block the caller forever.
pub(crate) async fn answer<T>(
    what: &'static str,
    limit: Duration,
    future: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, AmqpError> {
    match tokio::time::timeout(limit, future).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(AmqpError::Timeout(what, limit)),
    }
}

/// Opens a connection. `purpose` is shown by RabbitMQ's tools. lapin's automatic recovery stays off: it would let an acknowledgement of the
/// old connection settle a delivery of the new one.
///
/// # Errors
/// If the broker does not answer, or refuses.
pub async fn connect(settings: &RabbitSettings, purpose: &str) -> Result<Connection, AmqpError> {
    connect_by(Runtime::new(Tokio::current()), settings, purpose, FrameLimits::OWN).await
}

/// Opens a connection that reads only through its valve, within these limits.
pub(super) async fn connect_through(
    valve: &Valve,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    connect_by(valve.runtime(), settings, purpose, limits).await
}

/// Connects to the first node that accepts. The caller pauses before it tries all of them again.
async fn connect_by<K: RuntimeKit + Clone + Send + Sync + 'static>(
    runtime: Runtime<K>,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    let settings = &*settings.current()?;
    let nodes = Node::in_turn(settings);
    let mut told = None;
    for node in &nodes {
        let error = match connect_to(runtime.clone(), &node.settings, purpose, limits).await {
            Ok(connection) => {
                node.answered();
                return Ok(connection);
            }
            Err(error) => error,
        };
        if nodes.len() > 1 {
            node.failed();
            tracing::warn!(node = node.name, error = %error, "cannot connect to a RabbitMQ node; trying the next one");
        }
        // A refusal explains the remedy; silence may be an outage.
        if told.is_none() || error.is_refusal(&node.settings) {
            told = Some(error);
        }
    }
    Err(told.unwrap_or(AmqpError::Url))
}

async fn connect_to<K: RuntimeKit + Clone + Send + Sync + 'static>(
    runtime: Runtime<K>,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    let (uri, properties) = prepare(settings, purpose)?;
    let security = security(settings).await?;
    // Half of the limit, so that a silent handshake is distinguished from a slow answer afterwards.
    let connecting = transport::connect(uri, properties, security, settings.timeout / 2, runtime, limits);
    answer("connect", settings.timeout, connecting).await
}

#[cfg(feature = "tls")]
async fn security(settings: &RabbitSettings) -> Result<BrokerTls, AmqpError> {
    Ok(match settings.amqp_tls()? {
        None => None,
        Some(tls) => Some(oncely_net::tls::TlsClient::load(&tls).await?),
    })
}

#[cfg(not(feature = "tls"))]
async fn security(settings: &RabbitSettings) -> Result<BrokerTls, AmqpError> {
    settings.amqp_tls()?;
    Ok(BrokerTls)
}

fn prepare(settings: &RabbitSettings, purpose: &str) -> Result<(AMQPUri, ConnectionProperties), AmqpError> {
    let mut uri: AMQPUri = settings.url.expose_secret().parse().map_err(|_| AmqpError::Url)?;
    uri.query.heartbeat = Some(u16::try_from(settings.heartbeat.as_secs()).unwrap_or(u16::MAX));
    Ok((uri, ConnectionProperties::default().with_connection_name(purpose.into())))
}
