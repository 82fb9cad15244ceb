//! An answer: the handler's, and what of it is kept for a retry.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::body::{Body, BoxError, whole};
use crate::pg::{HttpAnswer, StoredAnswer};

/// Says that no handler ran.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Longest JSON that is also kept as the key's response, for a copy that comes as a message, in bytes: as of a handler of messages.
const LONGEST_RESPONSE: usize = 65_536;

/// A handler's answer, whole.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
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
    /// Reads a response to its end.
    pub(super) async fn read<B>(response: Response<B>, most: usize) -> Result<Self, NoAnswer>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = response.into_parts();
        let body = match Limited::new(body, most).collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(NoAnswer::TooLarge(most)),
            Err(error) => return Err(NoAnswer::Torn(error)),
        };
        let mut headers = parts.headers;
        // Of the bytes as they were to be sent; the server says it of these.
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        Ok(Self { status: parts.status, headers, body })
    }

    /// What is kept of it. Pairs in their order: a name may come twice.
    pub(super) fn kept(&self, names: &[HeaderName]) -> HttpAnswer {
        let kept = self.headers.iter().filter(|(name, _)| names.contains(name));
        HttpAnswer {
            status: self.status.as_u16(),
            headers: kept
                .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: self.body.to_vec(),
        }
    }

    /// Also the response that a copy of it as a message has.
    pub(super) fn is_response(&self) -> bool {
        let media = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        self.body.len() <= LONGEST_RESPONSE
            && (media.eq_ignore_ascii_case("application/json") || media.ends_with("+json"))
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(whole(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// The answer of the first run, again.
pub(super) fn replayed(stored: StoredAnswer) -> Response<Body> {
    let mut response = match stored.http {
        Some(answer) => {
            let mut response = Response::new(whole(Bytes::from(answer.body)));
            *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
            for (name, value) in answer.headers {
                // What was stored was a header: nothing is lost here.
                if let (Ok(name), Ok(value)) =
                    (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
                {
                    response.headers_mut().append(name, value);
                }
            }
            response
        }
        // It came as a message.
        None => {
            let status = match (&stored.response, stored.is_refused) {
                (_, true) => StatusCode::UNPROCESSABLE_ENTITY,
                (Some(_), false) => StatusCode::OK,
                (None, false) => StatusCode::NO_CONTENT,
            };
            let is_json = stored.response.is_some();
            let mut response = Response::new(whole(Bytes::from(stored.response.unwrap_or_default())));
            *response.status_mut() = status;
            if is_json {
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
            }
            response
        }
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
