//! `[traces]`: export and selection of spans.

use std::collections::BTreeMap;
use std::time::Duration;

use figment::value::Value;
use secrecy::SecretString;
use url::Url;

use super::tls::{allow_plaintext, tls};
use super::{Problems, Section};
use oncely_net::tls::{TlsSettings, of_scheme};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

const PATH: &str = "/v1/traces";

pub(super) fn traces(mut section: Section, problems: &mut Problems) -> Option<TraceSettings> {
    let endpoint = section.text("endpoint", problems);
    let endpoint = endpoint.and_then(|text| endpoint_of(&text, &section.place("endpoint"), problems));
    let given = tls(&mut section, problems);
    let allowed = allow_plaintext(&mut section, problems);
    let meant =
        endpoint.as_ref().map(|endpoint| of_scheme(endpoint, "https", given.as_ref(), allowed, "traces"));
    if given.is_some() && matches!(meant, Some(Ok(None))) {
        problems.add(
            section.place("tls"),
            "says how TLS is done, and the endpoint asks for none: write https://",
        );
    }
    let tls = match meant {
        Some(Ok(tls)) => tls,
        Some(Err(error)) => {
            problems.add(section.place("endpoint"), error.to_string());
            None
        }
        None => None,
    };
    let headers = headers(&mut section, problems);
    let parent = section.choice(
        "parent",
        SpanParent::Link,
        &[("link", SpanParent::Link), ("producer", SpanParent::Producer)],
        problems,
    );
    let sample = section.share("sample", 0.01, problems);
    let slow = section.duration(
        "slow",
        Duration::from_secs(1),
        Duration::from_millis(1)..=Duration::from_secs(86_400),
        problems,
    );
    let attributes = read_span_attributes(&mut section, problems);
    section.finish(problems);
    Some(TraceSettings { endpoint: endpoint?.into(), tls, headers, parent, sample, slow, attributes })
}

/// Returns the endpoint with OTLP's path of traces, as `OTEL_EXPORTER_OTLP_ENDPOINT` is read. Problems don't quote it, as it may hold a
/// password.
fn endpoint_of(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
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
    if !url.path().ends_with(PATH) {
        let path = format!("{}{PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Some(url)
}

/// Reads `headers = { name = "value" }`; the values may be secrets.
pub(super) fn headers(section: &mut Section, problems: &mut Problems) -> BTreeMap<String, SecretString> {
    let place = section.place("headers");
    let values = match section.take("headers") {
        None => return BTreeMap::new(),
        Some(Value::Dict(_, values)) => values,
        Some(_) => {
            problems.add(place, "must be a table like { authorization = \"Bearer …\" }");
            return BTreeMap::new();
        }
    };
    let mut headers = BTreeMap::new();
    for (name, value) in values {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            problems.add(&place, format!("{name:?} can't be the name of a header"));
            continue;
        }
        // The value is not shown: it may be a token.
        match value.into_string() {
            Some(text) if text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) => {
                headers.insert(name, SecretString::from(text));
            }
            _ => problems.add(format!("{place}.{name}"), "must be a text of printable ASCII characters"),
        }
    }
    headers
}

fn read_span_attributes(section: &mut Section, problems: &mut Problems) -> SpanAttributes {
    let place = section.place("attributes");
    let mut told = SpanAttributes::default();
    for word in section.texts("attributes", problems).unwrap_or_default() {
        match word.as_str() {
            "tenant" => told.tenant = true,
            "key" => told.key = true,
            "message_id" => told.message_id = true,
            "routing_key" => told.routing_key = true,
            _ => {
                let known = "\"tenant\", \"key\", \"message_id\", \"routing_key\"";
                problems.add(&place, format!("must name some of {known}, not {word:?}"));
            }
        }
    }
    told
}

#[cfg(test)]
#[cfg(feature = "otel")]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<TraceSettings>, Problems) {
        use figment::providers::Format as _;
        let values = figment::Figment::from(figment::providers::Toml::string(text)).extract().unwrap();
        let mut problems = Problems::default();
        (traces(Section::new("traces", values), &mut problems), problems)
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
        let told = SpanAttributes { tenant: true, message_id: true, ..SpanAttributes::default() };
        assert_eq!(settings.unwrap().attributes, told);
        assert!(problems.to_string().contains("not \"payload\""), "{problems}");
    }
}
