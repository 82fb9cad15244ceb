//! An answer as the result of a step: what the layer would store of it.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use super::body::Body;
use super::replay::{answered, mark};
use super::settings::is_kept;
use super::stored::{of_json, to_json};
use crate::pg::HttpAnswer;

/// An answer as JSON. `body`: none where it is not kept; one that is too large for a store is not.
pub(crate) fn kept_answer(status: StatusCode, headers: &HeaderMap, body: Option<&Bytes>) -> Value {
    let kept = headers.iter().filter(|(name, _)| is_kept(name, &[]));
    to_json(&HttpAnswer {
        status: status.as_u16(),
        headers: kept.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect(),
        body: body.map(|body| body.to_vec()),
    })
}

/// The answer that was kept so, if it was one; marked as a replay, since its step is not called again.
pub(crate) fn stored_answer(value: &Value) -> Option<Response<Body>> {
    let mut response = answered(of_json(value)?, &[]);
    mark(&mut response);
    Some(response)
}
