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
use oncely_net::tls::{TlsError, TlsFault, classify_fault};
use oncely_net::url_file::UrlFileError;

/// Errors of the broker connection. Texts hold no URL.
#[derive(Debug, thiserror::Error)]
pub enum AmqpError {
    /// An error of the broker or the client library.
    #[error("RabbitMQ: {0}")]
    Broker(lapin::Error),
    /// No answer to this request within this limit.
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
    /// Returns the broker's reply code, such as 404 for a missing queue; `None` for an error without one.
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

    /// Returns whether the broker answered with a code, or TLS failed: the error explains its remedy.
    fn is_refusal(&self, settings: &RabbitSettings) -> bool {
        self.reply_code().is_some() || self.tls_fault(settings).is_some()
    }

    /// Returns the TLS fault of the error; `None` for every other error.
    pub fn tls_fault(&self, settings: &RabbitSettings) -> Option<TlsFault> {
        match self {
            Self::Protection(_, fault) => Some(*fault),
            Self::Broker(error) => {
                let tls = settings.amqp_tls().ok().flatten()?;
                // A server without TLS at least answers; silence is an outage.
                classify_fault(error, tls.cert.is_some()).filter(|fault| *fault != TlsFault::Silent)
            }
            Self::Timeout(..) | Self::Url | Self::UrlFile(_) => None,
        }
    }
}

/// Waits for the broker's answer to a request, up to a limit: a broker that accepts a connection and then stays silent must not block the
/// caller for ever. `request`: its name in the error's text.
///
/// # Errors
/// If the limit has passed ([`AmqpError::Timeout`]), or the broker refuses the request.
pub(crate) async fn wait_for_answer<T>(
    request: &'static str,
    limit: Duration,
    future: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, AmqpError> {
    match tokio::time::timeout(limit, future).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(AmqpError::Timeout(request, limit)),
    }
}

/// Opens a connection. `purpose` is shown by RabbitMQ's tools. lapin's automatic recovery stays off: it would let an acknowledgement of the
/// old connection settle a delivery of the new one.
///
/// # Errors
/// If the broker does not answer, or refuses.
pub async fn connect(settings: &RabbitSettings, purpose: &str) -> Result<Connection, AmqpError> {
    connect_to_any(Runtime::new(Tokio::current()), settings, purpose, FrameLimits::OWN).await
}

/// Opens a connection as [`connect`] does, which reads only through its valve, within these limits.
pub(super) async fn connect_through(
    valve: &Valve,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    connect_to_any(valve.build_runtime(), settings, purpose, limits).await
}

/// Connects to the first node that accepts; a node that fails is paused. The caller pauses before it tries all of them again. Returns the
/// first error, or the last refusal.
async fn connect_to_any<K: RuntimeKit + Clone + Send + Sync + 'static>(
    runtime: Runtime<K>,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    let settings = &*settings.reread_urls()?;
    let nodes = Node::list_in_turn(settings);
    let mut chosen_error = None;
    for node in &nodes {
        let error = match connect_to_node(runtime.clone(), &node.settings, purpose, limits).await {
            Ok(connection) => {
                node.end_pause();
                return Ok(connection);
            }
            Err(error) => error,
        };
        if nodes.len() > 1 {
            node.pause();
            tracing::warn!(node = node.name, error = %error, "cannot connect to a RabbitMQ node; trying the next one");
        }
        // A refusal explains the remedy; silence may be an outage.
        if chosen_error.is_none() || error.is_refusal(&node.settings) {
            chosen_error = Some(error);
        }
    }
    Err(chosen_error.unwrap_or(AmqpError::Url))
}

/// Connects to one node.
async fn connect_to_node<K: RuntimeKit + Clone + Send + Sync + 'static>(
    runtime: Runtime<K>,
    settings: &RabbitSettings,
    purpose: &str,
    limits: FrameLimits,
) -> Result<Connection, AmqpError> {
    let (uri, properties) = build_connection_parameters(settings, purpose)?;
    let security = load_tls(settings).await?;
    // Half of the limit, so that a silent handshake is distinguished from a slow answer afterwards.
    let connection = transport::connect(uri, properties, security, settings.timeout / 2, runtime, limits);
    wait_for_answer("connect", settings.timeout, connection).await
}

/// Reads the certificates, if the connection uses TLS.
#[cfg(feature = "tls")]
async fn load_tls(settings: &RabbitSettings) -> Result<BrokerTls, AmqpError> {
    Ok(match settings.amqp_tls()? {
        None => None,
        Some(tls) => Some(oncely_net::tls::TlsClient::load(&tls).await?),
    })
}

#[cfg(not(feature = "tls"))]
async fn load_tls(settings: &RabbitSettings) -> Result<BrokerTls, AmqpError> {
    settings.amqp_tls()?;
    Ok(BrokerTls)
}

/// Builds the parameters of a connection: the parsed URL with the heartbeat, and the properties with the connection's name.
fn build_connection_parameters(
    settings: &RabbitSettings,
    purpose: &str,
) -> Result<(AMQPUri, ConnectionProperties), AmqpError> {
    let mut uri: AMQPUri = settings.url.expose_secret().parse().map_err(|_| AmqpError::Url)?;
    uri.query.heartbeat = Some(u16::try_from(settings.heartbeat.as_secs()).unwrap_or(u16::MAX));
    Ok((uri, ConnectionProperties::default().with_connection_name(purpose.into())))
}
