//! `handler = { … }`: the handler of a consumer, unless the embedding program provides one.

use std::time::Duration;

use figment::value::Value;
use url::Url;

use super::tls::{allow_plaintext, tls};
use super::traces::headers;
use super::{Problems, Section};
use oncely_handler::{HttpEndpoint, JsonPolicy, SqlFunction};
use oncely_lease::Repeat;
use oncely_net::tls::of_scheme;

/// The configured handler, at most one.
#[derive(Default)]
pub(super) struct Handlers {
    pub(super) function: Option<SqlFunction>,
    pub(super) http: Option<HttpEndpoint>,
}

const SECOND: Duration = Duration::from_secs(1);

/// Reads the handler. `max_run`: limit of a run under a lease, and of its call.
pub(super) fn handlers(section: &mut Section, max_run: Duration, problems: &mut Problems) -> Handlers {
    let place = section.place("handler");
    let table = match section.take("handler") {
        None => return Handlers::default(),
        Some(Value::Dict(_, values)) => Section::new(&place, values),
        Some(_) => {
            problems.add(
                place,
                "must be a table like { function = \"app.capture_payment\" } or { http = \"https://…\", repeat = { within = \"24h\" } }",
            );
            return Handlers::default();
        }
    };
    match table.has("http") {
        true => Handlers { function: None, http: http(table, max_run, problems) },
        false => Handlers { function: function(table, problems), http: None },
    }
}

fn function(mut table: Section, problems: &mut Problems) -> Option<SqlFunction> {
    let name = table.text("function", problems);
    let batch = table.boolean("batch", false, problems);
    let policies =
        [("optional", JsonPolicy::Optional), ("required", JsonPolicy::Required), ("off", JsonPolicy::Off)];
    let json = table.choice("json", JsonPolicy::Optional, &policies, problems);
    let place = table.place("function");
    table.finish(problems);
    match name {
        Some(name) if SqlFunction::is_qualified_name(&name) => Some(SqlFunction { name, batch, json }),
        _ => {
            problems.add(place, "must be a schema and a name, like \"app.capture_payment\"");
            None
        }
    }
}

fn http(mut table: Section, max_run: Duration, problems: &mut Problems) -> Option<HttpEndpoint> {
    if !cfg!(feature = "http-handler") {
        problems.add(table.place("http"), "this program is built without the feature `http-handler`");
    }
    let url = table.text("http", problems);
    let url = url.and_then(|text| endpoint(&text, &table.place("http"), problems));
    let given = tls(&mut table, problems);
    let allowed = allow_plaintext(&mut table, problems);
    let tls = match url
        .as_ref()
        .map(|url| of_scheme(url, "https", given.as_ref(), allowed, "consumers.handler"))
    {
        Some(Err(error)) => {
            problems.add(table.place("http"), error.to_string());
            None
        }
        Some(Ok(None)) if given.is_some() => {
            problems
                .add(table.place("tls"), "says how TLS is done, and the URL asks for none: write https://");
            None
        }
        Some(Ok(tls)) => tls,
        None => None,
    };
    let repeat = repeat(&mut table, problems);
    let timeout = table.duration("timeout", 30 * SECOND, SECOND / 10..=900 * SECOND, problems);
    if timeout >= max_run {
        problems.add(table.place("timeout"), "must be shorter than lease.max_run, which ends the call");
    }
    let headers = headers(&mut table, problems);
    let token_file = table.text("token_file", problems).map(Into::into);
    if token_file.is_some() && headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
        problems.add(table.place("token_file"), "is set, and headers.authorization too; use one of them");
    }
    for name in headers.keys().filter(|name| is_ours(name)) {
        problems.add(table.place("headers"), format!("{name:?} is set by Oncely"));
    }
    table.finish(problems);
    Some(HttpEndpoint { url: url?, repeat: repeat?, timeout, headers, token_file, tls })
}

/// Returns whether Oncely sets this header itself: it identifies the call, or defines how the message is read.
fn is_ours(name: &str) -> bool {
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

/// Parses the endpoint's URL. Problems don't quote it, as it may hold a password.
fn endpoint(text: &str, place: &str, problems: &mut Problems) -> Option<Url> {
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

/// Reads `repeat`. It has no default, as no rule fits all endpoints.
fn repeat(table: &mut Section, problems: &mut Problems) -> Option<Repeat> {
    let place = table.place("repeat");
    let advice = "says what is done where an earlier call may have happened: \"always\" (called again: repeating does no harm), \"never\" \
                  (dead-lettered as outcome_unknown) or { within = \"24h\" } (called again by the same Idempotency-Key, as long as the \
                  endpoint knows it again)";
    match table.take("repeat") {
        Some(Value::String(_, word)) if word == "always" => Some(Repeat::Always),
        Some(Value::String(_, word)) if word == "never" => Some(Repeat::Never),
        Some(Value::Dict(_, values)) => {
            let mut table = Section::new(&place, values);
            let is_set = table.has("within");
            let window = table.duration("within", SECOND, SECOND..=3_650 * 86_400 * SECOND, problems);
            table.finish(problems);
            if !is_set {
                problems.add(place, advice);
            }
            is_set.then_some(Repeat::Within(window))
        }
        None => {
            problems.add(place, format!("is missing: it {advice}"));
            None
        }
        Some(_) => {
            problems.add(place, advice);
            None
        }
    }
}
