//! `handler = { … }`: the handler of a consumer, unless the embedding program provides one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::Problems;
use super::tls::TlsTable;
use super::traces::check_headers;
use super::values::{DAY, Length, MILLISECOND, SECOND, Secret};
use oncely_handler::{HttpEndpoint, JsonPolicy, SqlFunction};
use oncely_lease::Repeat;
use oncely_net::tls::tls_for_scheme;

/// A SQL function or an endpoint. The first three settings belong to a function, the others to an endpoint.
#[derive(Clone, Default, Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(super) struct HandlerTable {
    function: Option<String>,
    batch: Option<bool>,
    json: Option<JsonWord>,
    http: Option<Secret>,
    repeat: Option<RepeatRule>,
    #[garde(range(min = MILLISECOND.times(100), max = SECOND.times(900)))]
    timeout: Option<Length>,
    headers: Option<BTreeMap<String, Secret>>,
    token_file: Option<PathBuf>,
    tls: Option<TlsTable>,
    allow_plaintext: Option<bool>,
}

/// Treatment of the body by a SQL function.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum JsonWord {
    Optional,
    Required,
    Off,
}

/// Rule for a call that may have happened.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-kind" = "text or table", "x-advice" = REPEAT_ADVICE))]
enum RepeatRule {
    Always,
    Never,
    Within(Length),
}

/// Advice for a missing or invalid rule. There is no default, as no rule fits all endpoints.
const REPEAT_ADVICE: &str = "says what is done where an earlier call may have happened: \"always\" (called again: repeating does no harm), \"never\" \
                      (dead-lettered as outcome_unknown) or { within = \"24h\" } (called again by the same Idempotency-Key, as long as the \
                      endpoint knows it again)";

/// The configured handler, at most one.
#[derive(Default)]
pub(super) struct Handlers {
    pub(super) function: Option<SqlFunction>,
    pub(super) http: Option<HttpEndpoint>,
}

impl HandlerTable {
    /// Checks the handler's settings, and converts them. `place`: name of the table; `max_run`: limit of a run under a lease and its call.
    pub(super) fn into_settings(self, place: &str, max_run: Duration, problems: &mut Problems) -> Handlers {
        match self.http.is_some() {
            true => Handlers { function: None, http: self.into_http(place, max_run, problems) },
            false => Handlers { function: self.into_function(place, problems), http: None },
        }
    }

    /// Checks the settings of a SQL function, and converts them; `None` if its name is missing or invalid.
    fn into_function(self, place: &str, problems: &mut Problems) -> Option<SqlFunction> {
        let endpoint_settings = [
            ("repeat", self.repeat.is_some()),
            ("timeout", self.timeout.is_some()),
            ("headers", self.headers.is_some()),
            ("token_file", self.token_file.is_some()),
            ("tls", self.tls.is_some()),
            ("allow_plaintext", self.allow_plaintext.is_some()),
        ];
        for (name, _) in endpoint_settings.iter().filter(|(_, is_set)| *is_set) {
            problems.add(format!("{place}.{name}"), "belongs to an endpoint: { http = … }");
        }
        let batch = self.batch.unwrap_or_default();
        let json = match self.json {
            None | Some(JsonWord::Optional) => JsonPolicy::Optional,
            Some(JsonWord::Required) => JsonPolicy::Required,
            Some(JsonWord::Off) => JsonPolicy::Off,
        };
        match self.function {
            Some(name) if SqlFunction::is_qualified_name(&name) => Some(SqlFunction { name, batch, json }),
            _ => {
                let message = "must be a schema and a name, like \"app.capture_payment\"";
                problems.add(format!("{place}.function"), message);
                None
            }
        }
    }

    /// Checks the settings of an HTTP endpoint, and converts them; `None` if the URL or `repeat` is missing or invalid.
    fn into_http(self, place: &str, max_run: Duration, problems: &mut Problems) -> Option<HttpEndpoint> {
        use secrecy::ExposeSecret as _;

        let at = |key: &str| format!("{place}.{key}");
        if !cfg!(feature = "http-handler") {
            problems.add(at("http"), "this program is built without the feature `http-handler`");
        }
        let function_settings = [
            ("function", self.function.is_some()),
            ("batch", self.batch.is_some()),
            ("json", self.json.is_some()),
        ];
        for (name, _) in function_settings.iter().filter(|(_, is_set)| *is_set) {
            problems.add(at(name), "belongs to a SQL function, and http is set, too; use one of them");
        }
        let url = self.http.and_then(|url| parse_endpoint(url.0.expose_secret(), &at("http"), problems));
        let configured_tls = self.tls.map(|tls| tls.into_settings(&at("tls"), problems));
        let allow_plaintext = self.allow_plaintext.unwrap_or_default();
        let effective_tls = url.as_ref().map(|url| {
            tls_for_scheme(url, "https", configured_tls.as_ref(), allow_plaintext, "consumers.handler")
        });
        let tls = match effective_tls {
            Some(Err(error)) => {
                problems.add(at("http"), error.to_string());
                None
            }
            Some(Ok(None)) if configured_tls.is_some() => {
                let message = "configures TLS, but the URL does not use it: write https://";
                problems.add(at("tls"), message);
                None
            }
            Some(Ok(tls)) => tls,
            None => None,
        };
        let repeat = self.repeat.and_then(|rule| rule.into_settings(&at("repeat"), problems));
        if self.repeat.is_none() && !problems.has(&at("repeat")) {
            problems.add(at("repeat"), format!("is missing: it {REPEAT_ADVICE}"));
        }
        let timeout = self.timeout.unwrap_or(SECOND.times(30)).0;
        if timeout >= max_run {
            problems.add(at("timeout"), "must be shorter than lease.max_run, which ends the call");
        }
        let headers = check_headers(self.headers.unwrap_or_default(), &at("headers"), problems);
        if self.token_file.is_some() && headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
        {
            problems.add(at("token_file"), "is set, and headers.authorization too; use one of them");
        }
        for name in headers.keys().filter(|name| is_own_header(name)) {
            problems.add(at("headers"), format!("{name:?} is set by Oncely"));
        }
        Some(HttpEndpoint { url: url?, repeat: repeat?, timeout, headers, token_file: self.token_file, tls })
    }
}

impl RepeatRule {
    /// Checks the length of the window, and converts the rule; `None` if the window is not from 1 s to 3,650 days.
    fn into_settings(self, place: &str, problems: &mut Problems) -> Option<Repeat> {
        match self {
            Self::Always => Some(Repeat::Always),
            Self::Never => Some(Repeat::Never),
            Self::Within(window) if (SECOND..=DAY.times(3_650)).contains(&window) => {
                Some(Repeat::Within(window.0))
            }
            Self::Within(_) => {
                problems.add(format!("{place}.within"), "must be from 1s to 3650d");
                None
            }
        }
    }
}

/// Returns whether Oncely sets this header itself: it identifies the call, or defines how the message is read.
fn is_own_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("oncely-")
        || [
            "idempotency-key",
            "content-encoding",
            "content-length",
            "content-type",
            "host",
            "connection",
            "transfer-encoding",
        ]
        .contains(&name.as_str())
}

/// Parses the endpoint's URL; `None` if it is no URL. Problems don't quote it, as it may hold a password.
fn parse_endpoint(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
    let Ok(url) = Url::parse(text) else {
        problems.add(place, "is not a URL like https://payments.internal/charges");
        return None;
    };
    if !matches!(url.scheme(), "http" | "https") {
        problems.add(place, "must begin with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        problems.add(
            place,
            "must hold no user and no password: they belong into handler.headers or handler.token_file",
        );
    }
    if url.fragment().is_some() {
        problems.add(place, "must not have a fragment (#…)");
    }
    Some(url)
}
