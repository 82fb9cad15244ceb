//! HTTP client: limits, and results of calls.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use super::endpoint::HttpEndpoint;
use oncely_lease::Repeat;
use oncely_net::http_client::{Transport, wait_for_answer};
use oncely_net::tls::TlsError;

/// Maximum size in bytes of the body of an answer: that of a step's result that can be stored.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Result of a call.
#[derive(Debug)]
pub(super) enum EndpointResult {
    /// An answer. Without a body if that is larger than [`MAX_ANSWER_BYTES`].
    Answer(StatusCode, Option<Bytes>),
    /// There was no connection, so nothing was sent.
    Unsent(String),
    /// It may have been sent.
    Unknown(String),
}

type EndpointBody = Full<Bytes>;

/// HTTP client of an endpoint.
pub(super) struct EndpointClient(Transport<EndpointBody>);

impl EndpointClient {
    /// Loads the endpoint's certificates, and creates its client. Opens no connection.
    pub(super) fn load(endpoint: &HttpEndpoint) -> Result<Self, TlsError> {
        let is_kept = endpoint.repeat != Repeat::Never;
        Transport::load(endpoint.tls.as_ref(), endpoint.timeout, is_kept, "consumers.handler").map(Self)
    }

    /// Sends a request, and reads the answer. Without an answer within `limit` the result is unknown.
    pub(super) async fn send(&self, request: Request<EndpointBody>, limit: Duration) -> EndpointResult {
        wait_for_answer(limit, self.send_without_limit(request)).await.unwrap_or_else(|| {
            EndpointResult::Unknown(format!("no answer within {limit:?} (handler.timeout)"))
        })
    }

    /// Sends a request, and reads the answer, without a time limit.
    async fn send_without_limit(&self, request: Request<EndpointBody>) -> EndpointResult {
        match self.0.send(request).await {
            Ok(response) => read_response(response).await,
            Err(error) if error.is_unsent => EndpointResult::Unsent(error.text),
            Err(error) => EndpointResult::Unknown(error.text),
        }
    }
}

/// Reads the body of a response, up to its limit. A body that breaks off makes the result unknown.
async fn read_response(response: Response<Incoming>) -> EndpointResult {
    let status = response.status();
    match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
        Ok(body) => EndpointResult::Answer(status, Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => EndpointResult::Answer(status, None),
        // The status has arrived, but the body broke off.
        Err(error) => EndpointResult::Unknown(format!("the answer was torn off: {error}")),
    }
}
