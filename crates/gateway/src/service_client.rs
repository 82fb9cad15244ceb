//! Requests to the service, over new or reused connections.

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, Uri};
use hyper::body::{Body as _, Incoming};

use oncely_config::GatewayConfig;
use oncely_http::Body;
use oncely_net::http_client::{Transport, TransportError};
use oncely_process::metrics::ServiceCallOutcome;

/// Client of the service.
pub(super) struct ServiceClient {
    scheme: Scheme,
    authority: Authority,
    pooled: Transport<Body>,
    single_use: Transport<Body>,
}

/// Result of a request.
pub(super) enum ServiceCallResult {
    Answer(Response<Incoming>),
    /// Certainly nothing was sent.
    Unsent(String),
    /// The request may have been sent; no answer came.
    Torn(String),
    /// The client's request broke off.
    Cut(String),
    Late,
}

impl ServiceClient {
    /// Loads the certificates, and creates a client of the configured service. Makes no connection yet.
    ///
    /// # Errors
    /// If the certificates can't be used.
    pub(super) fn load(config: &GatewayConfig) -> anyhow::Result<Self> {
        let settings = &config.gateway;
        let uri: Uri = config.upstream.as_str().parse()?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            anyhow::bail!("the URL names no host");
        };
        let transport =
            |is_kept| Transport::load(settings.tls.as_ref(), settings.max_run, is_kept, "gateway");
        Ok(Self { scheme, authority, pooled: transport(true)?, single_use: transport(false)? })
    }

    /// Sends a request. One that `is_repeatable` may use a kept connection; all others get a new one, which the service is not about to close.
    pub(super) async fn send(&self, request: Request<Body>, is_repeatable: bool) -> ServiceCallResult {
        let transport = if is_repeatable { &self.pooled } else { &self.single_use };
        match transport.send(self.address_request(request)).await {
            Ok(response) if response.status().is_informational() => {
                ServiceCallResult::Torn("the service has changed the protocol, unasked".to_owned())
            }
            Ok(response) => ServiceCallResult::Answer(response),
            Err(TransportError { is_cut: true, text, .. }) => ServiceCallResult::Cut(text),
            Err(TransportError { is_unsent: true, text, .. }) => ServiceCallResult::Unsent(text),
            Err(TransportError { text, .. }) => ServiceCallResult::Torn(text),
        }
    }

    /// Addresses the request to the service, regardless of the host in the client's request.
    fn address_request(&self, request: Request<Body>) -> Request<Body> {
        let (parts, body) = request.into_parts();
        let mut outgoing = Request::new(body);
        *outgoing.method_mut() = parts.method;
        *outgoing.headers_mut() = parts.headers;
        set_framing(&mut outgoing);
        let mut uri = parts.uri.into_parts();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        // A path with a scheme and a host is a valid URI.
        *outgoing.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        outgoing
    }
}

/// Sets a `Content-Length` or chunked coding. By default hyper sets none for an empty body, which some servers refuse, and assumes that a
/// GET has no body.
fn set_framing(request: &mut Request<Body>) {
    let has_no_body = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    match request.body().size_hint().exact() {
        Some(0) if has_no_body => {}
        Some(length) => drop(request.headers_mut().insert(CONTENT_LENGTH, length.into())),
        None => {
            drop(request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked")));
        }
    }
}

impl ServiceCallResult {
    /// Returns the outcome of the call for metrics.
    pub(super) fn outcome(&self) -> ServiceCallOutcome {
        match self {
            Self::Answer(_) => ServiceCallOutcome::Answered,
            Self::Unsent(_) => ServiceCallOutcome::NotSent,
            Self::Torn(_) | Self::Late => ServiceCallOutcome::Unknown,
            Self::Cut(_) => ServiceCallOutcome::Cut,
        }
    }
}
