//! Replays of a stored answer.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};

use super::answer::{OMITTED, is_kept};
use super::body::{Body, full_body};
use super::problem::{AnswerName, ProblemDetails, ProblemKind};
use super::settings::{MessageResult, Settings};
use super::stored;
use oncely_postgres::{HttpAnswer, StoredAnswer};

/// Header of a replay: no handler ran.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Name of a replay in metrics.
pub const REPLAY: &str = "replayed";

/// Builds the response with a stored answer, or a problem if this request may not get it. `parts` may be `None` if
/// [`IdempotencyLayerBuilder::on_replay`](super::IdempotencyLayerBuilder::on_replay) is not set.
pub(super) fn build_replay_response(
    settings: &Settings,
    parts: Option<&Parts>,
    stored: StoredAnswer,
) -> Response<Body> {
    if let (Some(check), Some(parts)) = (&settings.on_replay, parts)
        && let Err(status) = check(parts)
    {
        return ProblemDetails::new(ProblemKind::ReplayRefused(status), "").into();
    }
    let mut response = match stored::find_http_answer(&stored) {
        Some(answer) => build_stored_response(answer, &settings.omitted),
        None => match &settings.from_message {
            Some(map) => {
                let json = stored.response.as_deref().and_then(|text| serde_json::from_str(text).ok());
                map(&MessageResult { response: json, is_refused: stored.is_refused }).map(full_body)
            }
            None => build_message_response(stored),
        },
    };
    mark_replayed(&mut response);
    response
}

/// Marks a response as a replay.
pub(super) fn mark_replayed(response: &mut Response<Body>) {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response.extensions_mut().insert(AnswerName(REPLAY));
}

/// Builds a response from a stored answer. Only headers that are kept are sent, also if another program has written the row.
pub(super) fn build_stored_response(answer: HttpAnswer, omitted: &[HeaderName]) -> Response<Body> {
    let is_omitted = answer.body.is_none();
    let mut response = Response::new(full_body(Bytes::from(answer.body.unwrap_or_default())));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    for (name, value) in answer.headers {
        // Stored names and values were valid headers, so none of them is lost here.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value))
            && is_kept(&name, omitted)
        {
            headers.append(name, value);
        }
    }
    if is_omitted {
        headers.insert(OMITTED, HeaderValue::from_static("true"));
    }
    response
}

/// Builds the default response for the result of a message: 422 if its handler refused it, 200 with its response, 204 without one.
pub(super) fn build_message_response(stored: StoredAnswer) -> Response<Body> {
    let status = match (&stored.response, stored.is_refused) {
        (_, true) => StatusCode::UNPROCESSABLE_ENTITY,
        (Some(_), false) => StatusCode::OK,
        (None, false) => StatusCode::NO_CONTENT,
    };
    let is_json = stored.response.is_some();
    let mut response = Response::new(full_body(Bytes::from(stored.response.unwrap_or_default())));
    *response.status_mut() = status;
    if is_json {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    response
}
