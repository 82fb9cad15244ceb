//! An answer as the result of a step, in the form that the layer stores.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use super::answer::is_kept;
use super::body::Body;
use super::replay::{build_stored_response, mark_replayed};
use super::stored::{parse_json, to_json};
use oncely_postgres::HttpAnswer;

/// Converts a response to the JSON that is stored as the result of its step. `body` is `None` if it is not kept; a body too large for a
/// store is left out.
pub fn response_to_json(status: StatusCode, headers: &HeaderMap, body: Option<&Bytes>) -> Value {
    let kept = headers.iter().filter(|(name, _)| is_kept(name, &[]));
    to_json(&HttpAnswer {
        status: status.as_u16(),
        headers: kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect(),
        body: body.map(|body| body.to_vec()),
    })
}

/// Builds the response that was stored as the result of a step, marked as a replay, since the step is not called again. Returns `None` if
/// the result is no stored response.
pub fn response_from_json(value: &Value) -> Option<Response<Body>> {
    let mut response = build_stored_response(parse_json(value)?, &[]);
    mark_replayed(&mut response);
    Some(response)
}
