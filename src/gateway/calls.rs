//! Requests to the service, over connections that are kept, or none.

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, Uri};
use hyper::body::{Body as _, Incoming};

use crate::config::GatewayConfig;
use crate::handler::{CONNECT, Failed, Transport};
use crate::http::Body;
use crate::metrics::Called;

/// The service.
pub(super) struct Calls {
    scheme: Scheme,
    authority: Authority,
    kept: Transport<Body>,
    fresh: Transport<Body>,
}

/// What came of a request.
pub(super) enum Sent {
    Answer(Response<Incoming>),
    /// Certainly nothing was sent.
    Unsent(String),
    /// Perhaps it was; no answer came.
    Torn(String),
    /// Its client has broken it off.
    Cut(String),
    Late,
}

impl Calls {
    /// Reads the certificates; no connection is made yet.
    ///
    /// # Errors
    /// When the certificates can't be used.
    pub(super) fn new(config: &GatewayConfig) -> anyhow::Result<Self> {
        let settings = &config.gateway;
        let uri: Uri = config.upstream.as_str().parse()?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            anyhow::bail!("the URL names no host");
        };
        let connect = CONNECT.min(settings.max_run / 2);
        let transport = |keeps| Transport::new(settings.tls.as_ref(), connect, keeps, "gateway");
        Ok(Self { scheme, authority, kept: transport(true)?, fresh: transport(false)? })
    }

    /// Sends a request. `is_repeatable`: what may be said again goes over a connection that is kept; all else gets one of its own, which the
    /// other side is not about to close.
    pub(super) async fn send(&self, request: Request<Body>, is_repeatable: bool) -> Sent {
        let transport = if is_repeatable { &self.kept } else { &self.fresh };
        match transport.send(self.addressed(request)).await {
            Ok(answer) if answer.status().is_informational() => {
                Sent::Torn("the service has changed the protocol, unasked".to_owned())
            }
            Ok(answer) => Sent::Answer(answer),
            Err(Failed { is_cut: true, text, .. }) => Sent::Cut(text),
            Err(Failed { is_unsent: true, text, .. }) => Sent::Unsent(text),
            Err(Failed { text, .. }) => Sent::Torn(text),
        }
    }

    /// To the service, at whatever host the client meant.
    fn addressed(&self, request: Request<Body>) -> Request<Body> {
        let (parts, body) = request.into_parts();
        let mut onward = Request::new(body);
        *onward.method_mut() = parts.method;
        *onward.headers_mut() = parts.headers;
        framed(&mut onward);
        let mut uri = parts.uri.into_parts();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        // A path with a scheme and a host is a URI.
        *onward.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        onward
    }
}

/// Says how long the body is, or that it comes in pieces. Left to itself hyper says nothing of an empty one, which some servers refuse, and takes
/// the body of a GET for none.
fn framed(request: &mut Request<Body>) {
    let has_none = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    match request.body().size_hint().exact() {
        Some(0) if has_none => {}
        Some(length) => drop(request.headers_mut().insert(CONTENT_LENGTH, length.into())),
        None => {
            drop(request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked")));
        }
    }
}

impl Sent {
    /// For metrics.
    pub(super) fn result(&self) -> Called {
        match self {
            Self::Answer(_) => Called::Answered,
            Self::Unsent(_) => Called::NotSent,
            Self::Torn(_) | Self::Late => Called::Unknown,
            Self::Cut(_) => Called::Cut,
        }
    }
}
