//! The service's answer on its way to the client.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Response, StatusCode};
use hyper::body::Incoming;

use super::body::ServiceBody;
use super::request::strip_hop_headers;
use oncely_http::{Body, streaming_body};

/// Removes the headers of the hop to the service.
pub(super) fn remove_hop_headers(parts: &mut Parts) {
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        // With a transfer coding, its length is the valid one.
        parts.headers.remove(CONTENT_LENGTH);
    }
    strip_hop_headers(&mut parts.headers);
    parts.extensions.clear();
}

/// Builds the client's response from the service's: without the headers of the hop, with the body as a stream without trailers.
pub(super) fn build_streamed_response(response: Response<Incoming>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    remove_hop_headers(&mut parts);
    Response::from_parts(parts, streaming_body(ServiceBody(body)))
}

/// Returns whether the answer is an event stream, which has no defined end.
pub(super) fn is_endless(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("text/event-stream")
}

/// Meaning of an answer for the outcome of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The request took effect or was refused for good: the answer is kept.
    Final,
    /// Certainly nothing was done; a later request may succeed.
    NotDone,
    /// The request may have taken effect.
    Unknown,
}

/// Classifies an answer by its status alone. `not_done`: configured statuses of answers without an effect.
pub(super) fn classify_status(status: StatusCode, not_done: &[u16]) -> Meaning {
    match status.as_u16() {
        _ if not_done.contains(&status.as_u16()) => Meaning::NotDone,
        // As in the layer, these may change on a retry: they depend on headers, which are not compared, or on a route that does not exist yet.
        401 | 403..=407 | 409 | 411..=417 | 421 | 423..=426 | 428 | 429 | 431 | 501 | 505 => Meaning::NotDone,
        // Function platforms answer 408 when they cut off a running request.
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
            assert_eq!(classify_status(status, &[503]), expected, "{status}");
        }
        assert_eq!(classify_status(StatusCode::SERVICE_UNAVAILABLE, &[]), Meaning::Unknown);
        assert_eq!(classify_status(StatusCode::GONE, &[410]), Meaning::NotDone);
    }
}
