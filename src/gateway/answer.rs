//! The service's answer on its way back.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;

use super::body::Data;
use super::request::strip;
use crate::http::{Body, passed};

/// Takes away what was of the hop to the service.
pub(super) fn onward(parts: &mut Parts) {
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        // Of two lengths the body's is the coding's.
        parts.headers.remove(CONTENT_LENGTH);
    }
    strip(&mut parts.headers);
    parts.extensions.clear();
}

/// An answer that goes by as it comes. Trailers end here.
pub(super) fn streamed(answer: Response<Incoming>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    onward(&mut parts);
    Response::from_parts(parts, passed(Data(body)))
}

/// Events that come one by one, for as long as there are some: no answer that ends.
pub(super) fn is_endless(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("text/event-stream")
}

/// What an answer says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It took effect, or was judged: the answer stays.
    Final,
    /// Certainly nothing was done; the next time it may be.
    NotDone,
    /// It may have taken effect.
    Unknown,
}

/// By its status alone.
pub(super) fn meaning(status: StatusCode, not_done: &[u16]) -> Meaning {
    match status.as_u16() {
        _ if not_done.contains(&status.as_u16()) => Meaning::NotDone,
        // As the layer has it, these may be others the next time: they speak of headers, which are not compared, or of a route that is
        // not there yet.
        401 | 403..=407 | 409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431 | 501 | 505 => Meaning::NotDone,
        // Cut off while it was at work, as platforms say it that run functions.
        408 => Meaning::Unknown,
        200..=499 => Meaning::Final,
        _ => Meaning::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_what_happened() {
        for status in 100..=999 {
            let expected = match status {
                401 | 403..=407 | 409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431 => Meaning::NotDone,
                501 | 503 | 505 => Meaning::NotDone,
                408 => Meaning::Unknown,
                200..=499 => Meaning::Final,
                _ => Meaning::Unknown,
            };
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(meaning(status, &[503]), expected, "{status}");
        }
        assert_eq!(meaning(StatusCode::SERVICE_UNAVAILABLE, &[]), Meaning::Unknown);
        assert_eq!(meaning(StatusCode::GONE, &[410]), Meaning::NotDone);
    }
}
