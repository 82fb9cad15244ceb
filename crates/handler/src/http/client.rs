//! HTTP client: limits, and results of calls.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use super::endpoint::HttpEndpoint;
use oncely_lease::Repeat;
use oncely_net::http_client::{Transport, within};
use oncely_net::tls::TlsError;

/// Largest answer that is read: the largest result of a step that can be stored.
pub(super) const LARGEST: usize = 64 << 10;

/// Result of a call.
#[derive(Debug)]
pub(super) enum EndpointResult {
    /// An answer. Without a body if that is larger than [`LARGEST`].
    Answer(StatusCode, Option<Bytes>),
    /// There was no connection, so nothing was sent.
    Unsent(String),
    /// It may have been sent.
    Unknown(String),
}

type EndpointBody = Full<Bytes>;

pub(super) struct EndpointClient(Transport<EndpointBody>);

impl EndpointClient {
    /// Reads the certificates of the endpoint.
    pub(super) fn new(endpoint: &HttpEndpoint) -> Result<Self, TlsError> {
        let keeps = endpoint.repeat != Repeat::Never;
        Transport::new(endpoint.tls.as_ref(), endpoint.timeout, keeps, "consumers.handler").map(Self)
    }

    /// Sends a request. If it is not over in time, its result is unknown.
    pub(super) async fn send(&self, request: Request<EndpointBody>, limit: Duration) -> EndpointResult {
        within(limit, self.ask(request)).await.unwrap_or_else(|| {
            EndpointResult::Unknown(format!("no answer within {limit:?} (handler.timeout)"))
        })
    }

    async fn ask(&self, request: Request<EndpointBody>) -> EndpointResult {
        match self.0.send(request).await {
            Ok(answer) => read(answer).await,
            Err(failed) if failed.is_unsent => EndpointResult::Unsent(failed.text),
            Err(failed) => EndpointResult::Unknown(failed.text),
        }
    }
}

async fn read(answer: Response<Incoming>) -> EndpointResult {
    let status = answer.status();
    match Limited::new(answer.into_body(), LARGEST).collect().await {
        Ok(body) => EndpointResult::Answer(status, Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => EndpointResult::Answer(status, None),
        // The status has arrived, but the rest was torn off.
        Err(error) => EndpointResult::Unknown(format!("the answer was torn off: {error}")),
    }
}
