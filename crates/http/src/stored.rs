//! The stored form of an answer in a lease store: the key's response, in JSON; the same form as in the middlewares of the SQL protocol.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use oncely_core::encryption::{Place, open_text};
use oncely_core::identity::Identity;
use oncely_postgres::{HttpAnswer, StoredAnswer, parse_headers, to_headers_json};

/// Maximum size of a key's response in stores, in bytes of JSON.
const MAX_RESPONSE_BYTES: usize = 65_536;

/// Returns the stored form of an answer. Parts that don't fit are left out: the body (about 48 KiB fit, as base64 grows by a third), then
/// the headers.
pub(super) fn to_json(answer: &HttpAnswer) -> Value {
    let HttpAnswer { status, headers, body } = answer;
    let pairs = to_headers_json(headers);
    let whole = body.as_ref().filter(|body| body.len() < MAX_RESPONSE_BYTES).map(|body| {
        let body = BASE64.encode(body);
        json!({ "http": status, "headers": pairs, "body": body })
    });
    let omitted = |headers: Value| json!({ "http": status, "headers": headers, "body": "", "omitted": true });
    whole
        .filter(|whole| fits(whole, headers.len()))
        .or_else(|| Some(omitted(pairs)).filter(|short| fits(short, headers.len())))
        .unwrap_or_else(|| omitted(json!([])))
}

/// Returns whether the JSON fits into a response of a store, also with a blank after each comma and colon. `headers`: the number of
/// headers.
fn fits(value: &Value, headers: usize) -> bool {
    value.to_string().len() + 16 + 3 * headers <= MAX_RESPONSE_BYTES
}

/// Parses an answer stored in this form; `None` if it is the response of a message.
pub(super) fn parse_json(value: &Value) -> Option<HttpAnswer> {
    let object = value.as_object()?;
    let is_omitted = match object.get("omitted") {
        None => false,
        Some(omitted) => omitted.as_bool()?,
    };
    if object.len() != 3 + usize::from(object.contains_key("omitted")) {
        return None;
    }
    let status = u16::try_from(object.get("http")?.as_u64()?).ok()?;
    let headers = object.get("headers").filter(|headers| headers.is_array())?;
    let body = BASE64.decode(object.get("body")?.as_str()?).ok()?;
    (200..=599).contains(&status).then(|| HttpAnswer {
        status,
        headers: parse_headers(headers),
        body: (!is_omitted).then_some(body),
    })
}

/// Returns the HTTP answer that is stored with a key; `None` if the key has none. Layers with leases, and the middlewares of the SQL
/// protocol, store it as the key's response.
pub(super) fn find_http_answer(stored: &StoredAnswer) -> Option<HttpAnswer> {
    stored.http.clone().or_else(|| parse_json(&serde_json::from_str(stored.response.as_deref()?).ok()?))
}

/// Parses the response of a key in a lease store: an answer, a refusal, or a message's response.
pub(super) fn parse_response(identity: &Identity, response: Option<&Value>) -> StoredAnswer {
    let http = response.and_then(parse_json);
    // The form in which a run or a message's handler stores `HandlerError::Refused`.
    let is_refused = response
        .and_then(Value::as_object)
        .is_some_and(|object| object.len() == 1 && object.get("refused").is_some_and(Value::is_string));
    let text = response.and_then(|response| open_response(identity, response.to_string()));
    StoredAnswer { http, response: text, is_refused }
}

/// Returns a response in plain text; `None` if a worker of the same consumer has encrypted it, as a client can't use it.
pub(super) fn open_response(identity: &Identity, response: String) -> Option<String> {
    let plain = open_text(None, &Place::response(identity), &response).ok()?;
    Some(plain.unwrap_or(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(headers: usize, body: Option<Vec<u8>>) -> HttpAnswer {
        let headers = (0..headers).map(|number| (format!("x-{number}"), vec![0xfc; 100])).collect();
        HttpAnswer { status: 201, headers, body }
    }

    #[test]
    fn an_answer_comes_back_byte_for_byte() {
        for body in [vec![], b"{}".to_vec(), (0..=255).collect(), vec![0; 48_000]] {
            let answer = answer(3, Some(body));
            assert_eq!(parse_json(&to_json(&answer)), Some(answer));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        for bytes in [49_000, 65_535, 65_536, 300_000] {
            let stored = to_json(&answer(3, Some(vec![7; bytes])));
            assert_eq!(parse_json(&stored), Some(answer(3, None)), "{bytes}");
        }
        assert_eq!(parse_json(&to_json(&answer(1, None))), Some(answer(1, None)));
        // 200 bytes of UTF-8 each.
        let stored = to_json(&answer(400, Some(vec![7])));
        assert_eq!(parse_json(&stored), Some(answer(0, None)));
        // With a blank after each comma and colon, too.
        for bytes in 47_000..49_200 {
            let stored = to_json(&answer(0, Some(vec![7; bytes])));
            assert!(stored.to_string().len() + 8 <= MAX_RESPONSE_BYTES, "{bytes}");
        }
    }

    #[test]
    fn a_messages_response_is_no_answer() {
        for response in [
            json!({}),
            json!(null),
            json!("http"),
            json!({ "http": 201 }),
            json!({ "http": 99, "headers": [], "body": "" }),
            json!({ "http": 201, "headers": {}, "body": "" }),
            json!({ "http": 201, "headers": [], "body": "?" }),
            json!({ "http": 201, "headers": [], "body": "", "more": 1 }),
            json!({ "http": 201, "headers": [], "body": "", "omitted": 1 }),
        ] {
            assert_eq!(parse_json(&response), None, "{response}");
        }
    }
}
