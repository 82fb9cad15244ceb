//! Meaning of an answer for the step and the message.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::client::{EndpointResult, MAX_ANSWER_BYTES};
use crate::HandlerError;
use oncely_lease::StepError;

/// Classifies a call: the step's result, or its error by the status alone. Bodies of failures are not read.
pub(super) fn classify_result(result: EndpointResult) -> Result<Value, StepError> {
    match result {
        EndpointResult::Answer(status, body) if status.is_success() => Ok(build_result(status, body)),
        EndpointResult::Answer(status, _) => Err(classify_status(status)),
        // Every message would fail like this, unless others succeed meanwhile.
        EndpointResult::Unsent(why) => {
            Err(StepError::Refused(HandlerError::environment(format!("not sent: {why}"))))
        }
        EndpointResult::Unknown(why) => Err(StepError::Away(anyhow::anyhow!(why))),
    }
}

/// Classifies a status that is no success.
fn classify_status(status: StatusCode) -> StepError {
    let text = format!("the endpoint answered {status}");
    match status {
        // Refused for now; the call did not happen.
        StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            StepError::Refused(HandlerError::transient(text))
        }
        // Another call with this key is at work there, or was cut off at work, as function platforms report it.
        StatusCode::CONFLICT | StatusCode::LOCKED | StatusCode::REQUEST_TIMEOUT => {
            StepError::Unknown(anyhow::anyhow!(text))
        }
        // If others succeed, it is this message's fault. A POST that is to be sent elsewhere is another call.
        StatusCode::UNAUTHORIZED
        | StatusCode::PAYMENT_REQUIRED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::MISDIRECTED_REQUEST
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => StepError::Refused(HandlerError::environment(text)),
        _ if status.is_client_error() => StepError::Refused(HandlerError::permanent(text)),
        // From a proxy before the service: the service may have been reached, and all calls fail alike.
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            StepError::Away(anyhow::anyhow!(text))
        }
        // Some services report success like this: 303 leads to the result.
        _ => StepError::Unknown(anyhow::anyhow!(text)),
    }
}

/// Builds the result for duplicates: the body if it is JSON, else its text; the status alone if the body can't be stored.
fn build_result(status: StatusCode, body: Option<Bytes>) -> Value {
    let status_alone = || json!({ "status": status.as_u16() });
    let Some(body) = body else { return status_alone() };
    let value = match serde_json::from_slice(&body) {
        Ok(value) => value,
        Err(_) => match std::str::from_utf8(&body) {
            // PostgreSQL stores no NUL.
            Ok(text) if !text.is_empty() && !text.contains('\0') => Value::from(text),
            _ => return status_alone(),
        },
    };
    // Length with escapes, and with the blanks that PostgreSQL writes.
    let text = value.to_string();
    let blanks = text.bytes().filter(|byte| matches!(byte, b',' | b':')).count();
    match text.len() + blanks > MAX_ANSWER_BYTES || text.contains("\\u0000") || has_float(&value) {
        true => status_alone(),
        false => value,
    }
}

/// Returns whether a number is read as a floating point number and written with an exponent: PostgreSQL writes all of its digits, which may
/// be many, and those of a large integer would differ from the received ones.
fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.to_string().contains(['e', 'E']),
        Value::Array(values) => values.iter().any(has_float),
        Value::Object(values) => values.values().any(has_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &[u8]) -> Result<Value, StepError> {
        classify_result(EndpointResult::Answer(
            StatusCode::from_u16(status).unwrap(),
            Some(Bytes::copy_from_slice(body)),
        ))
    }

    #[test]
    fn a_status_says_what_happened() {
        for status in 200..600 {
            let result = answer(status, b"{}");
            let expected = match status {
                200..300 => "done",
                425 | 429 => "refused for now",
                401..=405 | 407 | 421 | 307 | 308 => "refused for all",
                408 | 409 | 423 | 300..400 => "unknown",
                400..500 => "refused",
                502..=504 => "away",
                _ => "unknown",
            };
            let class = match result {
                Ok(_) => "done",
                Err(StepError::Unknown(_)) => "unknown",
                Err(StepError::Away(_)) => "away",
                Err(StepError::Refused(HandlerError::Transient(_))) => "refused for now",
                Err(StepError::Refused(HandlerError::Environment(_))) => "refused for all",
                Err(StepError::Refused(HandlerError::Permanent(_))) => "refused",
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(class, expected, "{status}");
        }
    }

    #[test]
    fn a_result_can_always_be_stored() {
        assert_eq!(answer(200, br#"{"id": 7}"#).unwrap(), json!({ "id": 7 }));
        assert_eq!(answer(201, b"done").unwrap(), json!("done"));
        assert_eq!(answer(201, b"[1.5, 18446744073709551615]").unwrap(), json!([1.5, u64::MAX]));
        for body in
            [&b""[..], b"\xff", b"a\0b", br#""a\u0000b""#, b"[1e308]", br#"{"id": 123456789012345678901234}"#]
        {
            assert_eq!(answer(204, body).unwrap(), json!({ "status": 204 }), "{body:?}");
        }
        let quotes = vec![b'"'; MAX_ANSWER_BYTES / 2 + 1];
        assert_eq!(answer(200, &quotes).unwrap(), json!({ "status": 200 }), "longer once it is escaped");
        let large = classify_result(EndpointResult::Answer(StatusCode::OK, None)).unwrap();
        assert_eq!(large, json!({ "status": 200 }));
    }
}
