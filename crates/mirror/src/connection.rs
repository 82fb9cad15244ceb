//! A connection to Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, FromRedisValue as _,
    IntoConnectionInfo as _, Pipeline, RedisResult, Value,
};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::MirrorError;
use oncely_config::MirrorSettings;
use oncely_net::tls::{TlsError, TlsSettings};

/// Maximum wait for a response that needs no work.
#[cfg(feature = "tls")]
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum wait for a Sentinel, or for a node of a cluster that is asked about the others; these are queried at the same time.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum wait for a connection or a response, unless a budget applies.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that several tasks may use at once.
#[derive(Clone)]
pub(super) struct RedisConnection {
    pub(super) connection: MultiplexedConnection,
    /// The task that moves the bytes of a TLS connection; it ends with the connection's last user.
    #[cfg(feature = "tls")]
    _driver: Option<std::sync::Arc<tokio_util::task::AbortOnDropHandle<()>>>,
}

impl RedisConnection {
    /// Connects to one server, with TLS or in plaintext.
    pub(super) async fn open(info: ConnectionInfo, tls: Option<TlsSettings>) -> Result<Self, MirrorError> {
        match tls {
            None => Self::open_plaintext(info).await,
            #[cfg(feature = "tls")]
            Some(tls) => Self::open_with_tls(&info, &tls).await,
            #[cfg(not(feature = "tls"))]
            Some(_) => Err(TlsError::NotBuilt.into()),
        }
    }

    /// Sends a pipeline of `commands` commands and returns one response or error for each. Waits up to [`RESPONSE_TIMEOUT`].
    pub(super) async fn query(
        &mut self,
        pipeline: &Pipeline,
        commands: usize,
    ) -> Result<Vec<RedisResult<Value>>, MirrorError> {
        let request = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut self.connection);
        let responses = match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
            Ok(responses) => responses?,
            Err(_) => return Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
        };
        match responses.len() == commands {
            true => Ok(responses),
            false => Err(MirrorError::Answers(responses.len(), commands)),
        }
    }

    /// Connects in plaintext.
    async fn open_plaintext(info: ConnectionInfo) -> Result<Self, MirrorError> {
        let client = Client::open(info)?;
        let connection = client.get_multiplexed_async_connection_with_config(&connection_config()).await?;
        Ok(Self {
            connection,
            #[cfg(feature = "tls")]
            _driver: None,
        })
    }

    /// Connects with TLS. Performs its own handshake: the client library's accepts no server name, and uses a provider of which there may
    /// be two.
    #[cfg(feature = "tls")]
    async fn open_with_tls(info: &ConnectionInfo, tls: &TlsSettings) -> Result<Self, MirrorError> {
        let redis::ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(MirrorError::Url) };
        let client = oncely_net::tls::TlsClient::load(tls).await?;
        let stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let stream = match client.handshake(host, stream, RESPONSE_TIMEOUT).await {
            Ok(stream) => stream,
            Err(error) if is_silence(&error) && answers_in_plaintext(host, *port).await => {
                return Err(TlsError::NotTls.into());
            }
            Err(error) => return Err(error.into()),
        };
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, connection_config())
                .await?;
        let driver = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(driver));
        Ok(Self { connection, _driver: Some(std::sync::Arc::new(driver)) })
    }
}

#[cfg(feature = "tls")]
fn is_silence(error: &std::io::Error) -> bool {
    oncely_net::tls::classify_fault(error, false) == Some(oncely_net::tls::TlsFault::Silent)
}

/// Returns whether the server answers in plaintext. A Redis without TLS reads a handshake as the beginning of a command and waits for the
/// rest; a PING, which holds no secret, distinguishes it from a server that hangs.
#[cfg(feature = "tls")]
async fn answers_in_plaintext(host: &str, port: u16) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let response = async {
        let mut stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    matches!(tokio::time::timeout(PROBE_TIMEOUT, response).await, Ok(Ok(b'+' | b'-')))
}

/// Connects to a server with the user of `redis.url`, and checks the role: an old master that has come back as a replica takes no writes.
pub(super) async fn connect_to_master(
    settings: &MirrorSettings,
    (host, port): &(String, u16),
) -> Result<RedisConnection, MirrorError> {
    let info = parse_connection_info(&settings.url)?.set_addr(ConnectionAddr::Tcp(host.clone(), *port));
    let mut link = RedisConnection::open(info, settings.redis_tls()?).await?;
    let command = redis::cmd("ROLE");
    let request = command.query_async::<Vec<Value>>(&mut link.connection);
    let role = match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(role) => role?,
        Err(_) => return Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
    };
    let role = role.into_iter().next().and_then(|role| String::from_redis_value(role).ok());
    match role.as_deref() {
        Some("master") => Ok(link),
        _ => Err(MirrorError::NoMaster),
    }
}

/// Returns the time limits of a connection.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
}

/// Parses a URL, without its TLS part.
pub(super) fn parse_connection_info(url: &SecretString) -> Result<ConnectionInfo, MirrorError> {
    let mut url = url::Url::parse(url.expose_secret()).map_err(|_| MirrorError::Url)?;
    url.set_scheme("redis").map_err(|()| MirrorError::Url)?;
    Ok(url.into_connection_info()?)
}
