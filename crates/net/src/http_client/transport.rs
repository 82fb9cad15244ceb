//! Connections to an endpoint: their time limit, their reuse, and whether a failed request was sent.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::in_time::{TimeoutConnector, TransportTimeouts};
use crate::tls::{TlsError, TlsFault, TlsSettings, classify_fault};

/// Time after which an idle connection is closed: less than the five seconds after which some servers (Node's) close theirs, so that few
/// requests go out on one that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for a connection, from name resolution to the end of the handshake. Without one, it is certain that nothing was sent, so it
/// is worth knowing soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time of a write without progress, or the time limit of the request if that is longer: a socket reports progress only when a third
/// of its buffer is free again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Size of a socket's send buffer: if the server reads 16 KiB a second, the socket reports progress every ten seconds.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// Time without traffic after which TCP asks whether the other side is still there.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);

/// Maximum number of headers of an answer; one with more can't be read, and its outcome is unknown. More than twice the limits of servers
/// themselves.
const MAX_HEADERS: usize = 1_000;

/// Time for reading an answer that came while the process was suspended, or had no CPU: when it continues, timers fire before the tasks have run
/// that read its sockets.
const CATCH_UP_TIME: Duration = Duration::from_millis(250);

/// Waits for an answer for up to `limit`, and for `CATCH_UP_TIME` longer, so that an answer that has arrived within `limit` is not counted
/// as missing. Returns `None` if no answer arrives. Dropped, it drops the answer.
pub async fn wait_for_answer<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    match tokio::time::timeout(limit, &mut answer).await {
        Ok(answer) => Some(answer),
        Err(_) => tokio::time::timeout(CATCH_UP_TIME, answer).await.ok(),
    }
}

/// Sends requests to one endpoint.
///
/// A request with a body is the last one of its connection (`Connection: close`), so a connection that is used again has carried none. A
/// server may answer and leave the body unread: it then takes that body's bytes, which its sender has chosen, for the next request, and the
/// next sender's request, with its secrets, becomes a part of them, or gets the answer to them. The client can't detect an unread body: it
/// was written as a whole, into the buffer of the server's socket; the answer came after it, and does not show it. Chunks don't help: the
/// size of the first one is read as a malformed request, and the next sender gets the answer to that.
pub struct Transport<B> {
    client: TransportClient<B>,
    is_kept: bool,
    /// Whether a client certificate is configured.
    has_certificate: bool,
    /// Configuration section of its settings, for messages.
    section: &'static str,
}

enum TransportClient<B> {
    Plain(legacy::Client<TimeoutConnector<HttpConnector>, B>),
    #[cfg(feature = "tls")]
    Tls(legacy::Client<TimeoutConnector<hyper_rustls::HttpsConnector<HttpConnector>>, B>),
}

/// Failure of a request without an answer.
#[derive(Debug)]
pub struct TransportError {
    /// Whether certainly nothing was sent.
    pub is_unsent: bool,
    /// Whether the request itself broke off: its body has no end.
    pub is_cut: bool,
    /// TLS fault that caused it, if one did.
    pub fault: Option<TlsFault>,
    /// The error with its causes: addresses, and no secrets.
    pub cause: String,
    /// Text for users: that of the fault if there is one, else the cause.
    pub text: String,
}

impl<B> Transport<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Loads the certificates, and creates a transport. `limit`: time limit of a request; half of it, and five seconds at most, for a
    /// connection. `is_kept`: a connection is used again, unless a body was sent on it; false keeps requests that may not be repeated off a
    /// connection that the server may be about to close.
    pub fn load(
        tls: Option<&TlsSettings>,
        limit: Duration,
        is_kept: bool,
        section: &'static str,
    ) -> Result<Self, TlsError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE_TIME));
        connector.set_send_buffer_size(Some(SEND_BUFFER_BYTES));
        let limits =
            TransportTimeouts { connect: CONNECT_TIMEOUT.min(limit / 2), write: WRITE_TIMEOUT.max(limit) };
        let client = match tls {
            None => {
                TransportClient::Plain(client_builder(is_kept).build(TimeoutConnector { connector, limits }))
            }
            #[cfg(feature = "tls")]
            Some(settings) => {
                let connector = secured::build_connector(connector, settings)?;
                TransportClient::Tls(client_builder(is_kept).build(TimeoutConnector { connector, limits }))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => return Err(TlsError::NotBuilt),
        };
        let has_certificate = tls.is_some_and(|settings| settings.cert.is_some());
        Ok(Self { client, is_kept, has_certificate, section })
    }

    /// Sends a request, and waits for the head of its answer. Has no limit of its own beyond the connection's.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, TransportError> {
        if !self.is_kept || !request.body().is_end_stream() {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let result = match &self.client {
            TransportClient::Plain(client) => client.request(request).await,
            #[cfg(feature = "tls")]
            TransportClient::Tls(client) => client.request(request).await,
        };
        result.map_err(|error| {
            let fault = classify_fault(&error, self.has_certificate);
            // With TLS 1.3 a server reports only after the handshake that it does not trust this program, and reads nothing then.
            let is_refused = matches!(
                fault,
                Some(TlsFault::ClientCertificateMissing | TlsFault::ClientCertificateRefused)
            );
            let cause = format_error_chain(&error);
            let text = fault.map_or_else(|| cause.clone(), |fault| fault.explanation(self.section));
            let is_unsent = error.is_connect() || is_refused || has_cause(&error, hyper::Error::is_canceled);
            TransportError { is_unsent, is_cut: has_cause(&error, hyper::Error::is_user), fault, cause, text }
        })
    }
}

/// Maximum size in bytes of a connection's buffer, and of an answer's head.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns the settings of the client's connections and buffers. `is_kept`: idle connections are kept.
fn client_builder(is_kept: bool) -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE_TIMEOUT).pool_timer(TokioTimer::new());
    builder.pool_max_idle_per_host(if is_kept { usize::MAX } else { 0 });
    // A stream that stalls holds its buffer: by default it grows to 400 KiB, more than the gateway counts for a connection.
    builder.http1_max_buf_size(BUFFER_BYTES);
    // Headers of unusual forms are accepted, so that the answer can be classified.
    builder.http1_max_headers(MAX_HEADERS).http1_allow_obsolete_multiline_headers_in_responses(true);
    builder
}

/// Returns whether a cause of the error matches. Canceled: the connection was closed before the request was written. User: the request's
/// body has failed.
fn has_cause(error: &Error, is_match: fn(&hyper::Error) -> bool) -> bool {
    let mut cause = StdError::source(error);
    while let Some(one) = cause {
        if one.downcast_ref::<hyper::Error>().is_some_and(is_match) {
            return true;
        }
        cause = one.source();
    }
    false
}

/// Formats an error with its causes, which hold addresses and no secrets.
fn format_error_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = StdError::source(error);
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    text
}

#[cfg(feature = "tls")]
mod secured {
    use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
    use hyper_util::client::legacy::connect::HttpConnector;
    use rustls::pki_types::ServerName;

    use crate::tls::{TlsError, TlsSettings, build_client_config};

    /// Builds the connector of plain and of TLS connections.
    pub(super) fn build_connector(
        mut http: HttpConnector,
        settings: &TlsSettings,
    ) -> Result<HttpsConnector<HttpConnector>, TlsError> {
        http.enforce_http(false);
        let builder =
            HttpsConnectorBuilder::new().with_tls_config(build_client_config(settings)?).https_only();
        let builder = match &settings.server_name {
            Some(name) => {
                let wrong = |_| TlsError::Name(name.clone());
                let name = ServerName::try_from(name.clone()).map_err(wrong)?;
                builder.with_server_name_resolver(FixedServerNameResolver::new(name))
            }
            None => builder,
        };
        Ok(builder.enable_http1().wrap_connector(http))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_read_a_little_late_counts() {
        let arrived = wait_for_answer(Duration::ZERO, tokio::time::sleep(CATCH_UP_TIME / 5)).await;
        assert!(arrived.is_some());
        let missing = wait_for_answer(Duration::ZERO, std::future::pending::<()>()).await;
        assert!(missing.is_none());
    }
}
