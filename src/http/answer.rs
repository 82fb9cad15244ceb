//! An answer: the handler's, and what of it is kept for a retry.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;

use super::body::{Body, BoxError, followed, passed, whole};
use super::failure::Failure;
use super::on_large::OnLarge;
use super::problem::AnswerName;
use super::replay::OMITTED;
use super::settings::is_kept;
use crate::handler::HandlerError;
use crate::pg::HttpAnswer;

/// Longest JSON that is also kept as the key's response, for a copy that comes as a message, in bytes: as of a handler of messages.
const LONGEST_RESPONSE: usize = 65_536;

/// An extension of an answer whose body is passed on as it comes, and kept by nobody.
#[cfg_attr(not(feature = "gateway"), allow(dead_code))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unheld;

/// A handler's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// What follows the body, where it is too large to be kept: it is passed on as it comes.
    rest: Option<Body>,
    failure: Option<Failure>,
    /// Where it is no handler's.
    name: Option<AnswerName>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    #[error("the answer broke off: {0}")]
    Torn(BoxError),
    #[error("the service has failed: {0}")]
    Service(BoxError),
}

impl Answer {
    /// Reads a response to its end; or until it has more than `most` bytes, and there it is decided.
    pub(super) async fn read<B>(
        response: Response<B>,
        most: usize,
        on_large: OnLarge,
    ) -> Result<Self, NoAnswer>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = response.into_parts();
        let body = passed(body);
        let (read, rest) = match parts.extensions.remove::<Unheld>() {
            Some(Unheld) => (Bytes::new(), Some(body)),
            None => held(body, most, on_large).await?,
        };
        let (failure, name) = (parts.extensions.remove(), parts.extensions.remove());
        let mut headers = parts.headers;
        // Of the bytes as they were to be sent; the server says it of these.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        Ok(Self { status: parts.status, headers, body: read, rest, failure, name })
    }

    /// It stands for this failure. Taken once.
    pub(super) fn failure(&mut self) -> Option<HandlerError> {
        self.failure.take().and_then(Failure::take)
    }

    /// What is kept of it. Pairs in their order: a name may come twice.
    pub(super) fn kept(&self, omitted: &[HeaderName]) -> HttpAnswer {
        let kept = self.headers.iter().filter(|(name, _)| is_kept(name, omitted));
        HttpAnswer {
            status: self.status.as_u16(),
            headers: kept
                .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                .collect(),
            // One whose body was omitted when it was stored as a step has none.
            body: (self.rest.is_none() && !self.headers.contains_key(OMITTED)).then(|| self.body.to_vec()),
        }
    }

    /// Also the response that a copy of it as a message has.
    pub(super) fn is_response(&self) -> bool {
        let media = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        self.rest.is_none()
            && self.body.len() <= LONGEST_RESPONSE
            && (media.eq_ignore_ascii_case("application/json") || media.ends_with("+json"))
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(match self.rest {
            None => whole(self.body),
            Some(rest) => followed(self.body, rest),
        });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(name) = self.name {
            response.extensions_mut().insert(name);
        }
        response
    }
}

/// A body, read to its end or until it has more than `most` bytes, and its rest. One that comes as a whole is not copied.
async fn held(mut body: Body, most: usize, on_large: OnLarge) -> Result<(Bytes, Option<Body>), NoAnswer> {
    let (mut first, mut read) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| NoAnswer::Torn(error.into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && read.is_empty() {
            first = data;
        } else {
            read.extend_from_slice(&std::mem::take(&mut first));
            read.extend_from_slice(&data);
        }
        if first.len() + read.len() > most {
            let read = if read.is_empty() { first } else { read.freeze() };
            return match on_large {
                OnLarge::Fail => Err(NoAnswer::TooLarge(most)),
                OnLarge::Omit => Ok((read, Some(body))),
            };
        }
    }
    Ok((if read.is_empty() { first } else { read.freeze() }, None))
}
