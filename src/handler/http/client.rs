//! The client: connections that are kept, and limits.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::endpoint::HttpEndpoint;
use super::in_time::InTime;
use crate::handler::lease::Repeat;
use crate::tls::{TlsError, TlsFault, fault_of};

/// Largest answer that is read: what can be stored as a step's result.
pub(super) const LARGEST: usize = 64 << 10;

/// How long a connection rests before it is closed: less than the five seconds after which some servers (Node's) close theirs, so that few
/// requests go out on one that is being closed.
const REST: Duration = Duration::from_secs(3);

/// Longest wait for a connection, from the name's address to the end of the handshake. That there was none is known for certain, so it is
/// worth knowing soon.
const CONNECT: Duration = Duration::from_secs(5);

/// What came of a call.
#[derive(Debug)]
pub(super) enum Sent {
    /// An answer. Without a body where that is larger than [`LARGEST`].
    Answer(StatusCode, Option<Bytes>),
    /// There was no connection, so nothing was sent.
    Unsent(String),
    /// Perhaps it was sent.
    Unknown(String),
}

type Body = Full<Bytes>;

pub(super) struct Client {
    way: Way,
    /// Is a certificate of ours configured?
    has_certificate: bool,
}

enum Way {
    Plain(legacy::Client<InTime<HttpConnector>, Body>),
    #[cfg(feature = "tls")]
    Tls(legacy::Client<InTime<hyper_rustls::HttpsConnector<HttpConnector>>, Body>),
}

impl Client {
    /// Reads the certificates of the endpoint.
    pub(super) fn new(endpoint: &HttpEndpoint) -> Result<Self, TlsError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let limit = CONNECT.min(endpoint.timeout / 2);
        // What may not be repeated goes on no connection that the other side may be about to close.
        let resting = if endpoint.repeat == Repeat::Never { 0 } else { usize::MAX };
        let way = match &endpoint.tls {
            None => Way::Plain(builder(resting).build(InTime { connector, limit })),
            #[cfg(feature = "tls")]
            Some(settings) => {
                let connector = tls::connector(connector, settings)?;
                Way::Tls(builder(resting).build(InTime { connector, limit }))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => return Err(TlsError::NotBuilt),
        };
        let has_certificate = endpoint.tls.as_ref().is_some_and(|settings| settings.cert.is_some());
        Ok(Self { way, has_certificate })
    }

    /// Sends a request. Whatever is not over in time is unknown.
    pub(super) async fn send(&self, request: Request<Body>, limit: Duration) -> Sent {
        match tokio::time::timeout(limit, self.ask(request)).await {
            Ok(sent) => sent,
            Err(_) => Sent::Unknown(format!("no answer within {limit:?} (handler.timeout)")),
        }
    }

    async fn ask(&self, request: Request<Body>) -> Sent {
        let asked = match &self.way {
            Way::Plain(client) => client.request(request).await,
            #[cfg(feature = "tls")]
            Way::Tls(client) => client.request(request).await,
        };
        match asked {
            Ok(answer) => read(answer).await,
            Err(error) => {
                let fault = fault_of(&error, self.has_certificate);
                // With TLS 1.3 a server says only behind the handshake that it does not trust us, and reads nothing then.
                let is_refused = matches!(
                    fault,
                    Some(TlsFault::ClientCertificateMissing | TlsFault::ClientCertificateRefused)
                );
                let text = fault.map_or_else(|| told(&error), |fault| fault.told("consumers.handler"));
                match error.is_connect() || is_refused || is_unsent(&error) {
                    true => Sent::Unsent(text),
                    false => Sent::Unknown(text),
                }
            }
        }
    }
}

async fn read(answer: Response<Incoming>) -> Sent {
    let status = answer.status();
    match Limited::new(answer.into_body(), LARGEST).collect().await {
        Ok(body) => Sent::Answer(status, Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Sent::Answer(status, None),
        // The status has come, and says what happened; the rest was torn off.
        Err(error) => Sent::Unknown(format!("the answer was torn off: {error}")),
    }
}

/// `resting`: connections that are kept for later requests.
fn builder(resting: usize) -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(REST).pool_timer(TokioTimer::new()).pool_max_idle_per_host(resting);
    builder
}

/// The connection was closed before the request was written.
fn is_unsent(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(one) = cause {
        if one.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        cause = one.source();
    }
    false
}

/// With its causes, which hold addresses and no secrets.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    text
}

#[cfg(feature = "tls")]
mod tls {
    use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
    use hyper_util::client::legacy::connect::HttpConnector;
    use rustls::pki_types::ServerName;

    use crate::tls::{TlsError, TlsSettings, client_config};

    pub(super) fn connector(
        mut http: HttpConnector,
        settings: &TlsSettings,
    ) -> Result<HttpsConnector<HttpConnector>, TlsError> {
        http.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(client_config(settings)?).https_only();
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
