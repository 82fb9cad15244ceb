//! `[traces]`: export and selection of spans.

use std::collections::BTreeMap;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::Problems;
use super::tls::TlsTable;
use super::values::{DAY, Length, MILLISECOND, SECOND, Secret};
use oncely_net::tls::{TlsSettings, tls_for_scheme};

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct TracesTable {
    /// A receiver of OTLP over HTTP, such as a collector; /v1/traces is added to it. Without one nothing is noted and nothing sent.
    #[schemars(extend("x-example" = "http://127.0.0.1:4318"))]
    endpoint: Option<String>,
    /// As in `[rabbitmq]`, for https://. The files are read at the start.
    #[schemars(extend("x-example" = { "ca": "/etc/oncely/ca.pem", "cert": "/etc/oncely/cert.pem", "key": "/etc/oncely/key.pem", "server_name": "collector.internal" }))]
    tls: Option<TlsTable>,
    /// As in `[postgres]`, for http://: headers and spans are readable on the way.
    allow_plaintext: bool,
    /// Headers of the requests, such as a token. They are never shown; those of OTEL_EXPORTER_OTLP_HEADERS are added.
    #[schemars(extend("x-example" = { "authorization": "Bearer …" }))]
    headers: Option<BTreeMap<String, Secret>>,
    /// "link": a message's span is part of its batch's trace, and linked to the span that sent it; so the conventions have it where messages are
    /// processed in batches. "producer": it is part of the sender's trace, and linked to its batch.
    parent: SpanParent,
    /// The sender of a message decides whether it has a span (the header traceparent). Of the messages without one, this share has: from 0 (none) to 1
    /// (all).
    #[schemars(range(min = 0, max = 1), extend("x-advice" = "must be a number from 0 (none) to 1 (all)"))]
    #[garde(custom(check_share))]
    sample: f64,
    /// Also against the sender's decision, a message has a span that failed, or took this long from its delivery to its acknowledgement: a hundred of those a
    /// second at most.
    #[garde(range(min = MILLISECOND, max = DAY))]
    slow: Length,
    /// Attributes of a message in its span, beside its size and its outcome: some of "tenant", "key", "message_id", "routing_key". All of these are the
    /// message's, and a receiver of traces is often open to many.
    attributes: Vec<SpanAttribute>,
}

impl Default for TracesTable {
    fn default() -> Self {
        Self {
            endpoint: None,
            tls: None,
            allow_plaintext: false,
            headers: None,
            parent: SpanParent::Link,
            sample: 0.01,
            slow: SECOND,
            attributes: Vec::new(),
        }
    }
}

/// An attribute of a message in its span.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpanAttribute {
    Tenant,
    Key,
    MessageId,
    RoutingKey,
}

fn check_share(share: &f64, _: &()) -> garde::Result {
    match (0.0..=1.0).contains(share) {
        true => Ok(()),
        false => Err(garde::Error::new("must be a number from 0 (none) to 1 (all)")),
    }
}

/// Export and selection of spans.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceSettings {
    /// URL of the receiver of OTLP over HTTP, with its path.
    pub endpoint: String,
    /// TLS settings; `None` for a plaintext receiver.
    pub tls: Option<TlsSettings>,
    /// Headers of the requests, by name. Their values may hold tokens.
    pub headers: BTreeMap<String, SecretString>,
    /// Relation of a message's span to the sender's span.
    pub parent: SpanParent,
    /// Share of the messages without a sender's trace context that get spans, from 0 to 1.
    pub sample: f64,
    /// A message that takes this long from its delivery on gets a span in any case.
    pub slow: Duration,
    /// Attributes of a message in its span, besides its outcome.
    pub attributes: SpanAttributes,
}

/// Relation of a message's span to the sender's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpanParent {
    /// Part of its batch's trace, linked to the sender's span.
    Link,
    /// Part of the sender's trace, linked to its batch.
    Producer,
}

/// Attributes of a message in its span, besides its outcome. All of them may be confidential.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct SpanAttributes {
    pub tenant: bool,
    pub key: bool,
    pub message_id: bool,
    pub routing_key: bool,
}

const TRACES_PATH: &str = "/v1/traces";

impl TracesTable {
    /// Checks the table, and converts it; `None` without a valid endpoint.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> Option<TraceSettings> {
        const ENDPOINT_SETTING: &str = "traces.endpoint";
        let endpoint = self.endpoint.and_then(|text| parse_endpoint(&text, ENDPOINT_SETTING, problems));
        let configured_tls = self.tls.map(|tls| tls.into_settings("traces.tls", problems));
        let allow_plaintext = self.allow_plaintext;
        let effective_tls = endpoint.as_ref().map(|endpoint| {
            tls_for_scheme(endpoint, "https", configured_tls.as_ref(), allow_plaintext, "traces")
        });
        if configured_tls.is_some() && matches!(effective_tls, Some(Ok(None))) {
            let message = "configures TLS, but the endpoint does not use it: write https://";
            problems.add("traces.tls", message);
        }
        let tls = match effective_tls {
            Some(Ok(tls)) => tls,
            Some(Err(error)) => {
                problems.add(ENDPOINT_SETTING, error.to_string());
                None
            }
            None => None,
        };
        let headers = check_headers(self.headers.unwrap_or_default(), "traces.headers", problems);
        let mut attributes = SpanAttributes::default();
        for attribute in self.attributes {
            match attribute {
                SpanAttribute::Tenant => attributes.tenant = true,
                SpanAttribute::Key => attributes.key = true,
                SpanAttribute::MessageId => attributes.message_id = true,
                SpanAttribute::RoutingKey => attributes.routing_key = true,
            }
        }
        let Self { parent, sample, .. } = self;
        Some(TraceSettings {
            endpoint: endpoint?.into(),
            tls,
            headers,
            parent,
            sample,
            slow: self.slow.0,
            attributes,
        })
    }
}

/// Parses the endpoint, and adds OTLP's path of traces, as `OTEL_EXPORTER_OTLP_ENDPOINT` is read; `None` if it is no URL. Problems don't
/// quote it, as it may hold a password.
fn parse_endpoint(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
    if !cfg!(feature = "otel") {
        problems.add(place, "this program is built without the feature `otel`");
    }
    let Ok(mut url) = Url::parse(text) else {
        problems.add(place, "is not a URL like http://127.0.0.1:4318");
        return None;
    };
    match url.scheme() {
        "http" | "https" => {}
        _ => problems.add(place, "must begin with http:// or https:// (OTLP over HTTP, not gRPC)"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        problems.add(place, "must hold no user and no password: they belong into traces.headers");
    }
    if url.query().is_some() || url.fragment().is_some() {
        problems.add(place, "must end with its path");
    }
    if !url.path().ends_with(TRACES_PATH) {
        let path = format!("{}{TRACES_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Some(url)
}

/// Checks `headers = { name = "value" }`, and returns the valid ones. Problems don't quote the values, which may be secrets.
pub(super) fn check_headers(
    values: BTreeMap<String, Secret>,
    place: &str,
    problems: &mut Problems,
) -> BTreeMap<String, SecretString> {
    let mut headers = BTreeMap::new();
    for (name, value) in values {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            problems.add(place, format!("{name:?} can't be the name of a header"));
            continue;
        }
        // The value is not shown: it may be a token.
        let is_printable = |text: &str| text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        if is_printable(value.0.expose_secret()) {
            headers.insert(name, value.0);
        } else {
            problems.add(format!("{place}.{name}"), "must be a text of printable ASCII characters");
        }
    }
    headers
}

#[cfg(test)]
#[cfg(feature = "otel")]
mod tests {
    use super::*;
    use crate::merged::MergedValues;
    use crate::read;

    fn read(text: &str) -> (Option<TraceSettings>, Problems) {
        let mut problems = Problems::default();
        let merged = MergedValues::read(&format!("[traces]\n{text}"), false).unwrap();
        let file = read::read(&merged.values, &mut problems);
        (file.traces.into_settings(&mut problems), problems)
    }

    #[test]
    fn without_an_endpoint_there_are_no_traces_and_the_rest_is_checked_all_the_same() {
        let (settings, problems) = read("sample = 2");
        assert!(settings.is_none());
        assert_eq!(problems.list()[0].message, "must be a number from 0 (none) to 1 (all)");
    }

    #[test]
    fn an_endpoint_is_completed_as_the_standard_variable_is() {
        for (text, endpoint) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("http://collector/otlp", "http://collector/otlp/v1/traces"),
            ("http://collector/otlp/v1/traces", "http://collector/otlp/v1/traces"),
        ] {
            let (settings, problems) = read(&format!("endpoint = {text:?}\nallow_plaintext = true"));
            assert!(problems.is_empty(), "{problems}");
            assert_eq!(settings.unwrap().endpoint, endpoint);
        }
    }

    #[test]
    fn a_header_is_never_shown() {
        let (settings, problems) = read(
            "endpoint = \"http://[::1]\"\nheaders = { authorization = \"Bearer S3CR3T\", \"x-é\" = \"S3CR3T\", x = \"S3CR3T\\n\" }",
        );
        let shown = format!("{settings:?} {problems}");
        assert!(shown.contains("authorization") && !shown.contains("S3CR3T"), "{shown}");
        assert_eq!(problems.list().len(), 2, "{problems}");
        let (_, problems) = read("endpoint = \"http://user:S3CR3T@localhost\"");
        let shown = problems.to_string();
        assert!(shown.contains("traces.headers") && !shown.contains("S3CR3T"), "{shown}");
    }

    #[test]
    fn what_is_told_of_messages_is_asked_for_by_name() {
        let (settings, problems) =
            read("endpoint = \"http://[::1]\"\nattributes = [\"tenant\", \"message_id\", \"payload\"]");
        let expected = SpanAttributes { tenant: true, message_id: true, ..SpanAttributes::default() };
        assert_eq!(settings.unwrap().attributes, expected);
        let advice =
            "traces.attributes[2]: must be one of \"tenant\", \"key\", \"message_id\", \"routing_key\"";
        assert!(problems.to_string().contains(advice), "{problems}");
    }
}
