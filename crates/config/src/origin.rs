//! Effective values and their sources.

use std::path::Path;

use figment::providers::{Env, Format as _, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::reference::{DefaultKind, reference};
use super::{Problems, without_source};
use oncely_net::server_url::{masked_all, without_logins};

/// Variables with widely known names, and the settings that they set.
const VARIABLES: [(&str, &str); 6] = [
    ("DATABASE_URL", "postgres.url"),
    ("DATABASE_URL_FILE", "postgres.url_file"),
    ("AMQP_URL", "rabbitmq.url"),
    ("AMQP_URL_FILE", "rabbitmq.url_file"),
    ("REDIS_URL", "redis.url"),
    ("REDIS_URL_FILE", "redis.url_file"),
];
const PREFIX: &str = "ONCELY_";

struct Variable {
    name: &'static str,
    key: &'static str,
    value: String,
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Serialized::default(self.key, &self.value).data()
    }
}

/// Merges the file and the environment, which takes precedence.
pub(super) fn merged(text: &str, environment: bool) -> Figment {
    let mut figment = Figment::new().merge(Toml::string(text));
    if environment {
        for (name, key) in VARIABLES {
            if let Ok(value) = std::env::var(name) {
                figment = figment.merge(Variable { name, key, value });
            }
        }
        // ONCELY_CONFIG names the file itself.
        figment = figment.merge(Env::prefixed(PREFIX).ignore(&["config"]).split("__"));
    }
    figment
}

/// An effective value, with secrets masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// Key, such as `mirror.ttl` or `consumers[0].name`.
    #[doc(hidden)]
    pub key: String,
    /// Value as TOML; secrets are masked, and so are unknown settings, which may be secrets under a misspelt name.
    #[doc(hidden)]
    pub value: String,
    /// Name of the file or the variable, or `default`.
    #[doc(hidden)]
    pub source: String,
}

/// Settings that are secret.
const SECRET: [&str; 5] =
    ["cell.signing_key", "cell.known_keys", "mirror.key", "console.key", "traces.headers"];

/// Lists the effective values by part and setting; with `defaults` also those that are not set.
///
/// # Errors
/// If the file can't be read, or is not TOML. Nothing else is checked.
pub fn effective_settings(file: &Path, defaults: bool) -> Result<Vec<EffectiveSetting>, Problems> {
    let name = file.display().to_string();
    let refused = |message: String| {
        let mut problems = Problems::default();
        problems.add(&name, message);
        problems
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(format!("cannot be read ({error})")))?;
    let figment = merged(&text, true);
    let values: Dict = figment
        .extract()
        .map_err(|error| refused(format!("is not TOML: {}", without_source(&error.to_string()))))?;
    let source = |key: &str| match figment.find_metadata(key) {
        Some(metadata) if metadata.name.contains("environment") => {
            format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
        }
        Some(metadata) if metadata.name.contains("TOML") => name.clone(),
        Some(metadata) => metadata.name.to_string(),
        None => name.clone(),
    };
    let (_, parts) = reference();
    let mut found = Vec::new();
    for part in &parts {
        let known: Vec<&str> = part.settings.iter().map(|setting| setting.name).collect();
        let tables: Vec<(String, Option<&Dict>)> = match values.get(part.name) {
            Some(Value::Array(_, tables)) => {
                let tables = tables.iter().enumerate();
                tables.map(|(at, table)| (format!("{}[{at}]", part.name), table.as_dict())).collect()
            }
            Some(Value::Dict(_, table)) => vec![(part.name.to_owned(), Some(table))],
            // A list of tables may be empty.
            _ if part.is_list => Vec::new(),
            _ => vec![(part.name.to_owned(), None)],
        };
        for (place, table) in tables {
            for setting in &part.settings {
                let key = format!("{place}.{}", setting.name);
                if let Some(value) = table.and_then(|table| table.get(setting.name)) {
                    let value = masked_value(&format!("{}.{}", part.name, setting.name), value);
                    let origin = if part.is_list { part.name.to_owned() } else { key.clone() };
                    found.push(EffectiveSetting { key, value, source: source(&origin) });
                } else if defaults && setting.worth != DefaultKind::Required {
                    let value = setting.otherwise().unwrap_or_default();
                    found.push(EffectiveSetting { key, value, source: "default".to_owned() });
                }
            }
            for (name, value) in table.into_iter().flatten() {
                if !known.contains(&name.as_str()) {
                    let value = if part.is_list && name == ALSO { toml(value) } else { UNKNOWN.to_owned() };
                    let key = format!("{place}.{name}");
                    let origin = if part.is_list { part.name } else { &key };
                    found.push(EffectiveSetting { source: source(origin), key, value });
                }
            }
        }
    }
    for name in values.keys().filter(|name| !parts.iter().any(|part| part.name == name.as_str())) {
        found.push(EffectiveSetting { key: name.clone(), value: UNKNOWN.to_owned(), source: source(name) });
    }
    Ok(found)
}

/// A consumer with several queues uses this instead of `queue`; the reference names it in a remark.
const ALSO: &str = "queues";
const UNKNOWN: &str = "(unknown: not shown)";

fn is_url(setting: &str) -> bool {
    [".url", ".management", ".sentinels"].iter().any(|name| setting.ends_with(name))
}

/// Returns a value with its secrets masked.
fn masked_value(setting: &str, value: &Value) -> String {
    match value {
        _ if SECRET.contains(&setting) => "***".to_owned(),
        Value::String(_, text) if is_url(setting) => toml(&Value::from(masked_all(text))),
        Value::Array(_, urls) if is_url(setting) => {
            format!("[{}]", urls.iter().map(|url| masked_value(setting, url)).collect::<Vec<_>>().join(", "))
        }
        // An unknown value that is not a URL.
        _ if is_url(setting) => UNKNOWN.to_owned(),
        // Headers hold tokens, and so may the path of a webhook.
        Value::Dict(tag, table) if setting == "consumers.handler" => {
            let mut table = table.clone();
            if let Some(Value::Dict(_, headers)) = table.get_mut("headers") {
                headers.values_mut().for_each(|value| *value = Value::from("***"));
            }
            if let Some(http) = table.get_mut("http") {
                let origin = http.as_str().and_then(|text| url::Url::parse(text).ok());
                *http = Value::from(origin.map_or_else(|| "***".to_owned(), |url| origin_of(&url)));
            }
            without_logins(&toml(&Value::Dict(*tag, table)), "***")
        }
        value => without_logins(&toml(value), "***"),
    }
}

fn origin_of(url: &url::Url) -> String {
    match url.path() {
        "/" if url.query().is_none() => url.origin().ascii_serialization(),
        _ => format!("{}/***", url.origin().ascii_serialization()),
    }
}

/// Formats a value as TOML.
fn toml(value: &Value) -> String {
    match value {
        // TOML's basic strings escape like JSON's.
        Value::String(_, text) => serde_json::Value::from(text.as_str()).to_string(),
        Value::Char(_, one) => serde_json::Value::from(one.to_string()).to_string(),
        Value::Bool(_, truth) => truth.to_string(),
        Value::Num(_, number) => serde_json::to_string(number).unwrap_or_default(),
        Value::Empty(..) => "\"\"".to_owned(),
        Value::Array(_, values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Dict(_, values) if values.is_empty() => "{}".to_owned(),
        Value::Dict(_, values) => {
            let fields: Vec<String> =
                values.iter().map(|(name, value)| format!("{name} = {}", toml(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
    }
}
