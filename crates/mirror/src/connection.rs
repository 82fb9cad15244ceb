//! A connection to Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo as _, Pipeline, RedisResult, Value,
};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::MirrorError;
use oncely_net::tls::{TlsError, TlsSettings};

/// Longest wait for an answer that needs no work.
#[cfg(feature = "tls")]
const PROBE: Duration = Duration::from_secs(1);

/// Longest wait for connecting, and of the relay, which is not in a hurry.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(5);

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
    pub(super) async fn to(info: ConnectionInfo, tls: Option<TlsSettings>) -> Result<Self, MirrorError> {
        match tls {
            None => Self::plain(info).await,
            #[cfg(feature = "tls")]
            Some(tls) => Self::with_tls(&info, &tls).await,
            #[cfg(not(feature = "tls"))]
            Some(_) => Err(TlsError::NotBuilt.into()),
        }
    }

    /// Sends a pipeline of `commands` commands and returns one answer or error for each. Waits up to [`ANSWER_TIME`].
    pub(super) async fn answers(
        &mut self,
        pipeline: &Pipeline,
        commands: usize,
    ) -> Result<Vec<RedisResult<Value>>, MirrorError> {
        let asked = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut self.connection);
        let answers = match tokio::time::timeout(ANSWER_TIME, asked).await {
            Ok(answers) => answers?,
            Err(_) => return Err(MirrorError::Budget(ANSWER_TIME)),
        };
        match answers.len() == commands {
            true => Ok(answers),
            false => Err(MirrorError::Answers(answers.len(), commands)),
        }
    }

    async fn plain(info: ConnectionInfo) -> Result<Self, MirrorError> {
        let client = Client::open(info)?;
        let connection = client.get_multiplexed_async_connection_with_config(&limits()).await?;
        Ok(Self {
            connection,
            #[cfg(feature = "tls")]
            _driver: None,
        })
    }

    /// Performs its own TLS handshake: the client library's accepts no server name, and asks a provider of which there may be two.
    #[cfg(feature = "tls")]
    async fn with_tls(info: &ConnectionInfo, tls: &TlsSettings) -> Result<Self, MirrorError> {
        let redis::ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(MirrorError::Url) };
        let client = oncely_net::tls::TlsClient::load(tls).await?;
        let stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let stream = match client.handshake(host, stream, ANSWER_TIME).await {
            Ok(stream) => stream,
            Err(error) if is_silence(&error) && answers_in_plaintext(host, *port).await => {
                return Err(TlsError::NotTls.into());
            }
            Err(error) => return Err(error.into()),
        };
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, limits()).await?;
        let driver = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(driver));
        Ok(Self { connection, _driver: Some(std::sync::Arc::new(driver)) })
    }
}

#[cfg(feature = "tls")]
fn is_silence(error: &std::io::Error) -> bool {
    oncely_net::tls::fault_of(error, false) == Some(oncely_net::tls::TlsFault::Silent)
}

/// Returns whether the server answers in plaintext. A Redis without TLS reads a handshake as the beginning of a command and waits for the
/// rest; a PING, which holds no secret, distinguishes it from a server that hangs.
#[cfg(feature = "tls")]
async fn answers_in_plaintext(host: &str, port: u16) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let asked = async {
        let mut stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    matches!(tokio::time::timeout(PROBE, asked).await, Ok(Ok(b'+' | b'-')))
}

fn limits() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_TIME))
        .set_response_timeout(Some(ANSWER_TIME))
}

/// Parses a URL, without its TLS part.
pub(super) fn info(url: &SecretString) -> Result<ConnectionInfo, MirrorError> {
    let mut url = url::Url::parse(url.expose_secret()).map_err(|_| MirrorError::Url)?;
    url.set_scheme("redis").map_err(|()| MirrorError::Url)?;
    Ok(url.into_connection_info()?)
}
