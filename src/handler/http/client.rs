//! The client: limits, and what came of a call.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use super::endpoint::HttpEndpoint;
use super::transport::{CONNECT, Transport};
use crate::handler::lease::Repeat;
use crate::tls::TlsError;

/// Largest answer that is read: what can be stored as a step's result.
pub(super) const LARGEST: usize = 64 << 10;

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

pub(super) struct Client(Transport<Body>);

impl Client {
    /// Reads the certificates of the endpoint.
    pub(super) fn new(endpoint: &HttpEndpoint) -> Result<Self, TlsError> {
        let keeps = endpoint.repeat != Repeat::Never;
        let connect = CONNECT.min(endpoint.timeout / 2);
        Transport::new(endpoint.tls.as_ref(), connect, keeps, "consumers.handler").map(Self)
    }

    /// Sends a request. Whatever is not over in time is unknown.
    pub(super) async fn send(&self, request: Request<Body>, limit: Duration) -> Sent {
        match tokio::time::timeout(limit, self.ask(request)).await {
            Ok(sent) => sent,
            Err(_) => Sent::Unknown(format!("no answer within {limit:?} (handler.timeout)")),
        }
    }

    async fn ask(&self, request: Request<Body>) -> Sent {
        match self.0.send(request).await {
            Ok(answer) => read(answer).await,
            Err(failed) if failed.is_unsent => Sent::Unsent(failed.text),
            Err(failed) => Sent::Unknown(failed.text),
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
