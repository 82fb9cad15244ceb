//! An answer as the result of a step, in the form that the layer stores.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use super::answer::is_kept;
use super::body::Body;
use super::replay::{answered, mark};
use super::stored::{of_json, to_json};
use oncely_postgres::HttpAnswer;

/// Returns an answer as JSON. `body` is `None` if it is not kept; a body too large for a store is left out.
pub fn answer_to_json(status: StatusCode, headers: &HeaderMap, body: Option<&Bytes>) -> Value {
    let kept = headers.iter().filter(|(name, _)| is_kept(name, &[]));
    to_json(&HttpAnswer {
        status: status.as_u16(),
        headers: kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect(),
        body: body.map(|body| body.to_vec()),
    })
}

/// Returns the answer that was stored as a step result, marked as a replay, since its step is not called again; `None` for another result.
pub fn answer_from_json(value: &Value) -> Option<Response<Body>> {
    let mut response = answered(of_json(value)?, &[]);
    mark(&mut response);
    Some(response)
}
