//! Effective values and their sources.

use std::path::Path;

use serde_json::{Map, Value};

use super::Problems;
use super::merged::{MergedValues, format_toml};
use super::reference::{DefaultKind, ReferenceSetting, ReferenceTable, reference};
use oncely_net::server_url::{mask_logins, mask_urls};

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

/// Reads the effective values by table and setting; if `has_defaults`, also the defaults of those that are not set.
///
/// # Errors
/// If the file can't be read, or is not TOML. Nothing else is checked.
pub fn read_effective_settings(file: &Path, has_defaults: bool) -> Result<Vec<EffectiveSetting>, Problems> {
    let name = file.display().to_string();
    let to_problems = |message: String| {
        let mut problems = Problems::default();
        problems.add(&name, message);
        problems
    };
    let text =
        std::fs::read_to_string(file).map_err(|error| to_problems(format!("cannot be read ({error})")))?;
    let merged = MergedValues::read(&text, true).map_err(to_problems)?;
    let source = |key: &str| merged.variable(key).unwrap_or(&name).to_owned();
    let (_, tables) = reference();
    let mut settings = Vec::new();
    for table in &tables {
        for (place, values) in find_tables(table, &merged.values) {
            let origin = |key: &str| source(if table.is_list { &table.name } else { key });
            for setting in &table.settings {
                let key = format!("{place}.{}", setting.name);
                if let Some(value) = values.and_then(|values| values.get(&setting.name)) {
                    let value = mask_value(&format!("{}.{}", table.name, setting.name), setting, value);
                    settings.push(EffectiveSetting { source: origin(&key), key, value });
                } else if has_defaults && setting.default_kind != DefaultKind::Required {
                    let value = setting.default_text().unwrap_or_default();
                    settings.push(EffectiveSetting { key, value, source: "default".to_owned() });
                }
            }
            for name in values.into_iter().flat_map(Map::keys) {
                if !table.settings.iter().any(|setting| setting.name == *name) {
                    let key = format!("{place}.{name}");
                    settings.push(EffectiveSetting {
                        source: origin(&key),
                        key,
                        value: UNKNOWN_VALUE.to_owned(),
                    });
                }
            }
        }
    }
    for name in merged.values.keys().filter(|name| !tables.iter().any(|table| table.name == **name)) {
        settings.push(EffectiveSetting {
            key: name.clone(),
            value: UNKNOWN_VALUE.to_owned(),
            source: source(name),
        });
    }
    Ok(settings)
}

/// Finds the written tables of a name, with their places; for a table that is not written, returns its place alone.
fn find_tables<'a>(
    table: &ReferenceTable,
    values: &'a Map<String, Value>,
) -> Vec<(String, Option<&'a Map<String, Value>>)> {
    match values.get(&table.name) {
        Some(Value::Array(tables)) => {
            let tables = tables.iter().enumerate();
            tables.map(|(at, values)| (format!("{}[{at}]", table.name), values.as_object())).collect()
        }
        Some(Value::Object(values)) => vec![(table.name.clone(), Some(values))],
        // A list of tables may be empty.
        _ if table.is_list => Vec::new(),
        _ => vec![(table.name.clone(), None)],
    }
}

const UNKNOWN_VALUE: &str = "(unknown: not shown)";

fn is_url(setting: &str) -> bool {
    [".url", ".management", ".sentinels"].iter().any(|name| setting.ends_with(name))
}

/// Formats a value as TOML, with its secrets masked.
fn mask_value(key: &str, setting: &ReferenceSetting, value: &Value) -> String {
    match value {
        Value::String(text) if is_url(key) => format_toml(&Value::from(mask_urls(text))),
        Value::Array(urls) if is_url(key) => {
            format!(
                "[{}]",
                urls.iter().map(|url| mask_value(key, setting, url)).collect::<Vec<_>>().join(", ")
            )
        }
        // An unknown value that is not a URL.
        _ if is_url(key) => UNKNOWN_VALUE.to_owned(),
        _ if setting.is_secret => "***".to_owned(),
        // Headers hold tokens, and so may the path of a webhook.
        Value::Object(table) if key == "consumers.handler" => {
            let mut table = table.clone();
            if let Some(Value::Object(headers)) = table.get_mut("headers") {
                headers.values_mut().for_each(|value| *value = Value::from("***"));
            }
            if let Some(http) = table.get_mut("http") {
                let origin = http.as_str().and_then(|text| url::Url::parse(text).ok());
                *http = Value::from(origin.map_or_else(|| "***".to_owned(), |url| format_origin(&url)));
            }
            mask_logins(&format_toml(&Value::Object(table)), "***")
        }
        value => mask_logins(&format_toml(value), "***"),
    }
}

/// Formats a URL with its path and query masked.
fn format_origin(url: &url::Url) -> String {
    match url.path() {
        "/" if url.query().is_none() => url.origin().ascii_serialization(),
        _ => format!("{}/***", url.origin().ascii_serialization()),
    }
}
