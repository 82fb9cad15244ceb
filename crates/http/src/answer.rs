//! A handler's answer: read to its end, kept for a retry, sent to its client.

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;

use super::body::{Body, BoxError, full_body, prefixed_body, streaming_body};
use super::problem::AnswerName;
use super::settings::{OnLarge, Settings};
use oncely_lease::failure::FailureResponse;
use oncely_lease::handler_error::HandlerError;
use oncely_postgres::HttpAnswer;

/// Maximum size in bytes of JSON that is also stored as the key's response, for a copy that arrives as a message; the same as for message
/// handlers.
const MAX_RESPONSE_BYTES: usize = 65_536;

/// Header: the answer had a body, which was not stored.
pub(super) const OMITTED: HeaderName = HeaderName::from_static("oncely-body-omitted");

/// Headers that no retry gets: session and credentials of one client, connection headers, headers that the server sets, and Oncely's own.
/// All others are kept, so that this list can't drop a header that a browser needs to read an answer or to treat it safely.
const NEVER_KEPT: [&str; 22] = [
    "set-cookie",
    "set-cookie2",
    "authorization",
    "authentication-info",
    "proxy-authentication-info",
    "www-authenticate",
    "proxy-authenticate",
    "clear-site-data",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "via",
    "date",
    "age",
    "alt-svc",
    "idempotent-replayed",
    "oncely-body-omitted",
];

/// Returns whether a retry gets this header.
pub(super) fn is_kept(name: &HeaderName, omitted: &[HeaderName]) -> bool {
    !NEVER_KEPT.contains(&name.as_str()) && !omitted.contains(name)
}

/// Response extension: the body is streamed through and not kept.
#[derive(Clone, Copy, Debug)]
pub struct StreamedBody;

/// Calls the service behind the layer, and reads its answer.
pub(super) type HandlerCall =
    Box<dyn FnOnce(Request<Body>) -> BoxFuture<'static, Result<HandlerAnswer, AnswerReadError>> + Send>;

/// Sends the response to the waiting client; the task goes on without it.
pub(super) type ResponseSender = oneshot::Sender<Response<Body>>;

/// Sends a response to its client, if the client still waits for it.
pub(super) fn send_response(sender: ResponseSender, response: impl Into<Response<Body>>) {
    if sender.send(response.into()).is_err() {
        tracing::debug!("a client left before its answer");
    }
}

/// A handler's answer.
#[derive(Debug)]
pub(super) struct HandlerAnswer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// Remainder of a body that is too large to keep; streamed through.
    remainder: Option<Body>,
    failure: Option<FailureResponse>,
    /// Name of an answer that no handler gave.
    name: Option<AnswerName>,
}

/// Error of reading a handler's answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerReadError {
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    #[error("the answer broke off: {0}")]
    Torn(BoxError),
    #[error("the service has failed: {0}")]
    Service(BoxError),
}

impl HandlerAnswer {
    /// Reads a response to its end, or until it exceeds `max_bytes`, where `on_large` decides.
    pub(super) async fn read<B>(
        response: Response<B>,
        max_bytes: usize,
        on_large: OnLarge,
    ) -> Result<Self, AnswerReadError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = response.into_parts();
        let body = streaming_body(body);
        let (bytes, remainder) = match parts.extensions.remove::<StreamedBody>() {
            Some(StreamedBody) => (Bytes::new(), Some(body)),
            None => read_body(body, max_bytes, on_large).await?,
        };
        let (failure, name) = (parts.extensions.remove(), parts.extensions.remove());
        let mut headers = parts.headers;
        // The server sets these for the bytes that are sent.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        Ok(Self { status: parts.status, headers, body: bytes, remainder, failure, name })
    }

    /// Takes the error out of an answer that is a [`FailureResponse`]; `None` for any other answer, and if the error was taken before.
    pub(super) fn take_failure(&mut self) -> Option<HandlerError> {
        self.failure.take().and_then(FailureResponse::take)
    }

    /// Returns whether this answer is stored. `is_used`: the handler has used its transaction or run.
    pub(super) fn is_stored(&self, settings: &Settings, is_used: bool) -> bool {
        let status = self.status;
        let is_final = match &settings.is_final {
            Some(is_final) => is_final(status),
            None => is_final(status) && !(settings.is_shared() && status.is_client_error()),
        };
        is_final && !status.is_server_error() && (is_used || status.is_success())
    }

    /// Returns the answer in its stored form: status, kept headers in their order, and the body unless it is streamed or was omitted.
    pub(super) fn to_stored(&self, omitted: &[HeaderName]) -> HttpAnswer {
        let kept = self.headers.iter().filter(|(name, _)| is_kept(name, omitted));
        HttpAnswer {
            status: self.status.as_u16(),
            headers: kept
                .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                .collect(),
            // The body was omitted already when the answer was stored as a step result.
            body: (self.remainder.is_none() && !self.headers.contains_key(OMITTED))
                .then(|| self.body.to_vec()),
        }
    }

    /// Returns whether the body can also be stored as the response for copies of a message: JSON of up to [`MAX_RESPONSE_BYTES`].
    pub(super) fn is_response(&self) -> bool {
        let media = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        self.remainder.is_none()
            && self.body.len() <= MAX_RESPONSE_BYTES
            && (media.eq_ignore_ascii_case("application/json") || media.ends_with("+json"))
    }

    /// Converts the answer into the response for its client.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(match self.remainder {
            None => full_body(self.body),
            Some(remainder) => prefixed_body(self.body, remainder),
        });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(name) = self.name {
            response.extensions_mut().insert(name);
        }
        response
    }
}

/// Returns whether the status is final: it depends neither on the client's rights, nor on headers (which are not compared), nor on a
/// temporary state.
fn is_final(status: StatusCode) -> bool {
    !status.is_server_error()
        && !matches!(status.as_u16(), 401 | 403 | 405..=409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431)
}

/// Reads a body to its end or until it exceeds `max_bytes`. Returns the bytes and the remainder, `None` if the body was read to its end. A
/// body of one frame is not copied.
async fn read_body(
    mut body: Body,
    max_bytes: usize,
    on_large: OnLarge,
) -> Result<(Bytes, Option<Body>), AnswerReadError> {
    let (mut first, mut read) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| AnswerReadError::Torn(error.into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && read.is_empty() {
            first = data;
        } else {
            read.extend_from_slice(&std::mem::take(&mut first));
            read.extend_from_slice(&data);
        }
        if first.len() + read.len() > max_bytes {
            let read = if read.is_empty() { first } else { read.freeze() };
            return match on_large {
                OnLarge::Fail => Err(AnswerReadError::TooLarge(max_bytes)),
                OnLarge::Omit => Ok((read, Some(body))),
            };
        }
    }
    Ok((if read.is_empty() { first } else { read.freeze() }, None))
}
