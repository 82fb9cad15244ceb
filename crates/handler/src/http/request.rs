//! Builds the request of a message.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use secrecy::ExposeSecret as _;

use super::endpoint::HttpEndpoint;
use crate::{HandlerError, Message};
use oncely_core::message;
use oncely_lease::{Call, StepError};

/// Characters that a header's value can't hold, and the escape character. A server strips blanks at both ends, so each is escaped.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

/// Headers of the sender's trace context, passed on.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Builds the error of a request that can't be sent: the environment's fault, since nothing was sent and every message fails alike.
fn build_unsent_error(text: impl Into<String>) -> StepError {
    StepError::Refused(HandlerError::environment(text))
}

/// Builds the request of a call. Reads the token's file.
pub(super) async fn build_request(
    endpoint: &HttpEndpoint,
    message: Message<'_>,
    call: Call,
) -> Result<Request<Full<Bytes>>, StepError> {
    let uri: Uri = endpoint
        .url
        .as_str()
        .parse()
        .map_err(|_| build_unsent_error("handler.http is not a URL that can be called"))?;
    let mut request = Request::new(Full::new(message.raw.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    let own_headers = [
        // A string of RFC 8941, as in draft-ietf-httpapi-idempotency-key-header.
        ("idempotency-key", format!("\"{}\"", call.key)),
        ("oncely-tenant", escape(message.tenant())),
        ("oncely-consumer", escape(message.consumer())),
        ("oncely-key", escape(message.key())),
        ("oncely-attempt", message.attempt().to_string()),
        ("oncely-token", call.token.to_string()),
        ("oncely-repeat", call.is_repeat.to_string()),
    ];
    for (name, value) in own_headers {
        headers.insert(HeaderName::from_static(name), to_header_value(&value)?);
    }
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncely/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONTENT_TYPE, content_type(message));
    if let Some(encoding) = message.properties().content_encoding.as_deref()
        && let Ok(encoding) = HeaderValue::from_str(encoding)
    {
        headers.insert(CONTENT_ENCODING, encoding);
    }
    for name in TRACE_HEADERS {
        if let Some(message::HeaderValue::Text(value)) = message.headers().get(name)
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    for (name, value) in &endpoint.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            build_unsent_error(format!("handler.headers: {name:?} can't be the name of a header"))
        })?;
        headers.insert(name, to_secret_value(value.expose_secret())?);
    }
    if let Some(file) = &endpoint.token_file {
        let token = tokio::fs::read_to_string(file).await;
        let token = token.map_err(|error| {
            build_unsent_error(format!("handler.token_file {} can't be read: {error}", file.display()))
        })?;
        headers.insert(AUTHORIZATION, to_secret_value(&format!("Bearer {}", token.trim()))?);
    }
    Ok(request)
}

fn escape(part: &str) -> String {
    utf8_percent_encode(part, ESCAPED).to_string()
}

fn to_header_value(value: &str) -> Result<HeaderValue, StepError> {
    HeaderValue::from_str(value).map_err(|_| build_unsent_error("a header can't be sent"))
}

/// Converts a secret to a header's value that is left out of printed requests.
fn to_secret_value(value: &str) -> Result<HeaderValue, StepError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        build_unsent_error("a secret of handler.headers or handler.token_file can't be a header's value")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the content type that the message declares, if it can be sent; else one by its body.
fn content_type(message: Message<'_>) -> HeaderValue {
    let declared = message.properties().content_type.as_deref();
    let declared = declared
        .and_then(|declared| HeaderValue::from_str(declared).ok())
        .filter(|declared| !declared.is_empty());
    declared.unwrap_or_else(|| {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(message.body()).is_ok();
        HeaderValue::from_static(if is_json { "application/json" } else { "application/octet-stream" })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_where_a_header_could_not_hold_them() {
        assert_eq!(escape("order-1/b "), "order-1/b%20");
        assert_eq!(escape("50%\n\u{e4}"), "50%25%0A%C3%A4");
        assert!(to_header_value(&escape("a\r\nx-evil: 1")).is_ok_and(|value| value == "a%0D%0Ax-evil:%201"));
    }
}
