//! Connections to an endpoint: how long one is waited for, whether it is kept, and whether a request that failed was sent.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::in_time::InTime;
use crate::tls::{TlsError, TlsFault, TlsSettings, fault_of};

/// How long a connection rests before it is closed: less than the five seconds after which some servers (Node's) close theirs, so that few
/// requests go out on one that is being closed.
const REST: Duration = Duration::from_secs(3);

/// Longest wait for a connection, from the name's address to the end of the handshake. That there was none is known for certain, so it is
/// worth knowing soon.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// Headers of an answer; one with more can't be read, and its outcome is not known. More than twice of what servers themselves allow.
const MOST_HEADERS: usize = 1_000;

/// Sends requests to one endpoint.
///
/// A request with a body is the last one of its connection (`Connection: close`), so a connection that is used again has carried none. A server may
/// answer and leave the body unread: what it takes for the next request then are bytes that a stranger has chosen, and the next sender's request, with
/// its secrets, is a part of them, or gets the answer to them. That a body was left unread can't be seen from here: it was written as a whole, into
/// the buffer of the server's socket; the answer came behind it, and says nothing of it. Neither do chunks help: the size of the first one is read as
/// a request that is malformed, and the next sender gets the answer to that.
pub(crate) struct Transport<B> {
    way: Way<B>,
    keeps: bool,
    /// Is a certificate of ours configured?
    has_certificate: bool,
    /// Where its settings stand, for people.
    section: &'static str,
}

enum Way<B> {
    Plain(legacy::Client<InTime<HttpConnector>, B>),
    #[cfg(feature = "tls")]
    Tls(legacy::Client<InTime<hyper_rustls::HttpsConnector<HttpConnector>>, B>),
}

/// There is no answer.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Certainly nothing was sent.
    pub(crate) is_unsent: bool,
    /// The request itself broke off: its body has no end.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code))]
    pub(crate) is_cut: bool,
    /// Where it is about trust in the server: what was wrong.
    pub(crate) fault: Option<TlsFault>,
    /// The error with its causes: addresses, and no secrets.
    pub(crate) cause: String,
    /// For people: what of the two tells more.
    pub(crate) text: String,
}

impl<B> Transport<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Reads the certificates. `connect`: longest wait for a connection. `keeps`: a connection is used again, unless a body was sent on it; what
    /// may not be repeated goes on none that the other side may be about to close.
    pub(crate) fn new(
        tls: Option<&TlsSettings>,
        connect: Duration,
        keeps: bool,
        section: &'static str,
    ) -> Result<Self, TlsError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let way = match tls {
            None => Way::Plain(builder(keeps).build(InTime { connector, limit: connect })),
            #[cfg(feature = "tls")]
            Some(settings) => {
                let connector = secured::connector(connector, settings)?;
                Way::Tls(builder(keeps).build(InTime { connector, limit: connect }))
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => return Err(TlsError::NotBuilt),
        };
        let has_certificate = tls.is_some_and(|settings| settings.cert.is_some());
        Ok(Self { way, keeps, has_certificate, section })
    }

    /// Sends a request, without a limit of its own beyond the connection's.
    pub(crate) async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, Failed> {
        if !self.keeps || !request.body().is_end_stream() {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let asked = match &self.way {
            Way::Plain(client) => client.request(request).await,
            #[cfg(feature = "tls")]
            Way::Tls(client) => client.request(request).await,
        };
        asked.map_err(|error| {
            let fault = fault_of(&error, self.has_certificate);
            // With TLS 1.3 a server says only behind the handshake that it does not trust us, and reads nothing then.
            let is_refused = matches!(
                fault,
                Some(TlsFault::ClientCertificateMissing | TlsFault::ClientCertificateRefused)
            );
            let cause = told(&error);
            let text = fault.map_or_else(|| cause.clone(), |fault| fault.told(self.section));
            let is_unsent = error.is_connect() || is_refused || has_cause(&error, hyper::Error::is_canceled);
            Failed { is_unsent, is_cut: has_cause(&error, hyper::Error::is_user), fault, cause, text }
        })
    }
}

fn builder(keeps: bool) -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(REST).pool_timer(TokioTimer::new());
    builder.pool_max_idle_per_host(if keeps { usize::MAX } else { 0 });
    // What a server says is judged, in whatever form it may say it.
    builder.http1_max_headers(MOST_HEADERS).http1_allow_obsolete_multiline_headers_in_responses(true);
    builder
}

/// Canceled: the connection was closed before the request was written. User: the request's body has failed.
fn has_cause(error: &Error, is: fn(&hyper::Error) -> bool) -> bool {
    let mut cause = StdError::source(error);
    while let Some(one) = cause {
        if one.downcast_ref::<hyper::Error>().is_some_and(is) {
            return true;
        }
        cause = one.source();
    }
    false
}

/// With its causes, which hold addresses and no secrets.
fn told(error: &Error) -> String {
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
