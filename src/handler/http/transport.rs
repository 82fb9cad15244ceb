//! Connections to an endpoint: how long one is waited for, whether it is kept, and whether a request that failed was sent.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Incoming};
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

/// Sends requests to one endpoint.
pub(crate) struct Transport<B> {
    way: Way<B>,
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
    /// For people: addresses, and no secrets.
    pub(crate) text: String,
}

impl<B> Transport<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Reads the certificates. `connect`: longest wait for a connection. `keeps`: a connection is used again; what may not be repeated goes on
    /// none that the other side may be about to close.
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
        Ok(Self { way, has_certificate: tls.is_some_and(|settings| settings.cert.is_some()), section })
    }

    /// Sends a request, without a limit of its own beyond the connection's.
    pub(crate) async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, Failed> {
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
            let text = fault.map_or_else(|| told(&error), |fault| fault.told(self.section));
            Failed { is_unsent: error.is_connect() || is_refused || is_unsent(&error), text }
        })
    }
}

fn builder(keeps: bool) -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(REST).pool_timer(TokioTimer::new());
    builder.pool_max_idle_per_host(if keeps { usize::MAX } else { 0 });
    builder
}

/// The connection was closed before the request was written.
fn is_unsent(error: &Error) -> bool {
    let mut cause = StdError::source(error);
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
