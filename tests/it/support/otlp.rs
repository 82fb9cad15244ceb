//! A receiver of OTLP over HTTP, and one that never answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{Span, span::Link};
use prost::Message as _;
use tokio::net::TcpListener;

/// What came, request by request.
#[derive(Default)]
struct Received {
    bodies: Vec<Bytes>,
    authorizations: Vec<String>,
    spans: Vec<Span>,
    services: Vec<String>,
    /// What comes is refused.
    refuses: bool,
    refused: usize,
}

/// A receiver of spans on a port of its own.
pub(crate) struct Receiver {
    address: String,
    received: Arc<Mutex<Received>>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let address = listener.local_addr().expect("address").to_string();
        let received = Arc::<Mutex<Received>>::default();
        let routes = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&received));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, received }
    }

    /// The lines of a configuration that sends to it.
    pub(crate) fn settings(&self, more: &str) -> String {
        settings(&self.address, more)
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.received.lock().expect("received").spans.clone()
    }

    /// The spans whose name begins so, once there are so many; more are an error.
    pub(crate) async fn named(&self, name: &str, count: usize) -> Vec<Span> {
        testbed::eventually(&format!("{count} spans {name}"), || async {
            let all = self.spans();
            let found: Vec<Span> = all.iter().filter(|span| span.name.starts_with(name)).cloned().collect();
            match found.len() == count {
                true => Ok(found),
                false => Err(all.iter().map(|span| span.name.clone()).collect::<Vec<_>>()),
            }
        })
        .await
        .expect("in time")
    }

    /// From now on it refuses what comes, or takes it again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.received.lock().expect("received").refuses = refuses;
    }

    /// How many requests it has refused.
    pub(crate) fn refused(&self) -> usize {
        self.received.lock().expect("received").refused
    }

    /// Is the text anywhere in what came?
    pub(crate) fn saw(&self, text: &str) -> bool {
        let received = self.received.lock().expect("received");
        received.bodies.iter().any(|body| body.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    /// What the requests said in `authorization`, and of which service they were.
    pub(crate) fn senders(&self) -> (Vec<String>, Vec<String>) {
        let mut received = self.received.lock().expect("received");
        received.authorizations.dedup();
        received.services.dedup();
        (received.authorizations.clone(), received.services.clone())
    }
}

/// Takes connections and requests, and never answers.
pub(crate) async fn silent() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address").to_string();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            open.push(connection);
        }
    });
    address
}

/// The lines of a configuration that sends to an address, and only what senders of messages record.
pub(crate) fn settings(address: &str, more: &str) -> String {
    let sample = if more.contains("sample") { "" } else { "sample = 0.0\n" };
    format!("[traces]\nendpoint = \"http://{address}\"\nslow = \"1h\"\n{sample}{more}")
}

async fn take(
    State(received): State<Arc<Mutex<Received>>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Bytes) {
    let Ok(request) = ExportTraceServiceRequest::decode(body.clone()) else {
        return (StatusCode::BAD_REQUEST, Bytes::new());
    };
    let mut received = received.lock().expect("received");
    if received.refuses {
        received.refused += 1;
        return (StatusCode::UNAUTHORIZED, Bytes::new());
    }
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    received.authorizations.push(authorization.unwrap_or_default().to_owned());
    received.bodies.push(body);
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        received.services.push(texts(&attributes)["service.name"].clone());
        received.spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    (StatusCode::OK, Bytes::new())
}

/// Attributes, as texts.
pub(crate) fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &KeyValue| match value.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|value| (value.key.clone(), text(value))).collect()
}

/// Links as `<what> <trace>-<span>`.
pub(crate) fn links(span: &Span) -> Vec<String> {
    let link = |link: &Link| {
        let what = &texts(&link.attributes)["oncely.link"];
        format!("{what} {}-{}", hex(&link.trace_id), hex(&link.span_id))
    };
    span.links.iter().map(link).collect()
}

/// An id, as `traceparent` writes it.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
