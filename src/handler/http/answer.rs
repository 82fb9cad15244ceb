//! What an answer means for the step, and for the message.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::client::{LARGEST, Sent};
use crate::handler::HandlerError;
use crate::handler::lease::StepError;

/// By its status alone: bodies of failures are not looked into.
pub(super) fn meaning(sent: Sent) -> Result<Value, StepError> {
    match sent {
        Sent::Answer(status, body) if status.is_success() => Ok(result(status, body)),
        Sent::Answer(status, _) => Err(failure(status)),
        // Every message would fail alike, unless others succeed meanwhile.
        Sent::Unsent(why) => Err(StepError::Refused(HandlerError::environment(format!("not sent: {why}")))),
        Sent::Unknown(why) => Err(StepError::Unknown(anyhow::anyhow!(why))),
    }
}

fn failure(status: StatusCode) -> StepError {
    let said = format!("the endpoint answered {status}");
    match status {
        // Not now, and not done.
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            StepError::Refused(HandlerError::transient(said))
        }
        // A call of this very key is at work there.
        StatusCode::CONFLICT => StepError::Unknown(anyhow::anyhow!(said)),
        // Whose fault is that? If others succeed, this message's.
        StatusCode::UNAUTHORIZED
        | StatusCode::PAYMENT_REQUIRED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::MISDIRECTED_REQUEST => StepError::Refused(HandlerError::environment(said)),
        _ if status.is_client_error() => StepError::Refused(HandlerError::permanent(said)),
        // Redirections are not followed: a POST that is sent elsewhere is another call.
        _ if status.is_redirection() => StepError::Refused(HandlerError::environment(said)),
        _ => StepError::Unknown(anyhow::anyhow!(said)),
    }
}

/// What duplicates get: the body where it is JSON, else its text; nothing of what can't be stored.
fn result(status: StatusCode, body: Option<Bytes>) -> Value {
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
    // Escapes, and the blanks that PostgreSQL writes.
    let text = value.to_string();
    let blanks = text.bytes().filter(|byte| matches!(byte, b',' | b':')).count();
    if text.len() + blanks > LARGEST || text.contains("\\u0000") { status_alone() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &[u8]) -> Result<Value, StepError> {
        meaning(Sent::Answer(StatusCode::from_u16(status).unwrap(), Some(Bytes::copy_from_slice(body))))
    }

    #[test]
    fn a_status_says_what_happened() {
        for status in 200..600 {
            let said = answer(status, b"{}");
            let expected = match status {
                200..300 => "done",
                408 | 425 | 429 => "refused for now",
                401..=405 | 407 | 421 if status != 400 => "refused for all",
                409 => "unknown",
                300..400 => "refused for all",
                400..500 => "refused",
                _ => "unknown",
            };
            let got = match said {
                Ok(_) => "done",
                Err(StepError::Unknown(_)) => "unknown",
                Err(StepError::Refused(HandlerError::Transient(_))) => "refused for now",
                Err(StepError::Refused(HandlerError::Environment(_))) => "refused for all",
                Err(StepError::Refused(HandlerError::Permanent(_))) => "refused",
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(got, expected, "{status}");
        }
    }

    #[test]
    fn a_result_can_always_be_stored() {
        assert_eq!(answer(200, br#"{"id": 7}"#).unwrap(), json!({ "id": 7 }));
        assert_eq!(answer(201, b"done").unwrap(), json!("done"));
        for body in [&b""[..], b"\xff", b"a\0b", br#""a\u0000b""#] {
            assert_eq!(answer(204, body).unwrap(), json!({ "status": 204 }), "{body:?}");
        }
        let quotes = vec![b'"'; LARGEST / 2 + 1];
        assert_eq!(answer(200, &quotes).unwrap(), json!({ "status": 200 }), "longer once it is escaped");
        let large = meaning(Sent::Answer(StatusCode::OK, None)).unwrap();
        assert_eq!(large, json!({ "status": 200 }));
    }
}
