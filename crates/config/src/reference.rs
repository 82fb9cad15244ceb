//! Descriptions of all settings, from their types, and the file of commented defaults.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::consumer::ConsumerTable;
use super::file::File;
use super::merged::format_toml;
use super::schema;

/// A table of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceTable {
    /// Name, such as `mirror`.
    #[doc(hidden)]
    pub name: String,
    /// Whether it is a list of tables.
    #[doc(hidden)]
    pub is_list: bool,
    #[doc(hidden)]
    pub about: String,
    #[doc(hidden)]
    pub settings: Vec<ReferenceSetting>,
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceSetting {
    /// Name, such as `ttl`.
    #[doc(hidden)]
    pub name: String,
    /// Default or example, as TOML.
    #[doc(hidden)]
    pub value: String,
    #[doc(hidden)]
    pub default_kind: DefaultKind,
    /// Type of the value, in words.
    #[doc(hidden)]
    pub kind: &'static str,
    #[doc(hidden)]
    pub is_secret: bool,
    /// Description, in paragraphs and lists.
    #[doc(hidden)]
    pub about: String,
}

/// Kind of a setting's shown value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultKind {
    #[doc(hidden)]
    Default,
    /// An example without a default.
    Example,
    /// An example of a required setting.
    Required,
}

/// Entries of a JSON object, in the order of the text: that of the fields of a type.
struct Entries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Parses the entries of a JSON object; empty for any other text.
fn parse_entries(text: &str) -> Vec<(String, Box<RawValue>)> {
    serde_json::from_str::<Entries>(text).map(|entries| entries.0).unwrap_or_default()
}

/// Returns the description of the file, and the descriptions of its tables.
pub fn reference() -> (String, Vec<ReferenceTable>) {
    let file = File { consumers: vec![ConsumerTable::default()], ..File::default() };
    let text = serde_json::to_string(&file).unwrap_or_default();
    let tables = parse_entries(&text).into_iter().map(|(name, defaults)| {
        let is_list = defaults.get().starts_with('[');
        let defaults = defaults.get().trim_start_matches('[').trim_end_matches(']');
        let place = if is_list { format!("{name}[0]") } else { name.clone() };
        let settings = parse_entries(defaults).into_iter();
        let settings =
            settings.map(|(name, default)| describe_setting(&place, name, default.get())).collect();
        let about = schema::node_at(&name).map(description).unwrap_or_default();
        ReferenceTable { name, is_list, about, settings }
    });
    (description(schema::schema()), tables.collect())
}

/// Describes a setting from its schema and its default in JSON.
fn describe_setting(place: &str, name: String, default: &str) -> ReferenceSetting {
    let node = schema::node_at(&format!("{place}.{name}")).unwrap_or(&Value::Null);
    let default = match node.get("x-default") {
        Some(shown) => shown.clone(),
        None => serde_json::from_str(default).unwrap_or_default(),
    };
    let (value, default_kind) = match (default, node.get("x-example")) {
        (_, Some(example)) if node["x-required"] == true => (format_toml(example), DefaultKind::Required),
        (Value::Null, Some(example)) => (format_toml(example), DefaultKind::Example),
        (default, _) => (format_toml(&default), DefaultKind::Default),
    };
    ReferenceSetting {
        value,
        default_kind,
        kind: schema::kind(node),
        is_secret: schema::is_secret(node),
        about: description(node),
        name,
    }
}

/// Returns the description of a value in the schema, with one line for each paragraph and each item of a list.
fn description(node: &'static Value) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut is_new = true;
    for line in node["description"].as_str().unwrap_or_default().lines().map(str::trim) {
        match lines.last_mut() {
            Some(last) if !is_new && !line.is_empty() && !line.starts_with("* ") => {
                last.push(' ');
                last.push_str(line);
            }
            _ if line.is_empty() => {}
            _ => lines.push(line.to_owned()),
        }
        is_new = line.is_empty();
    }
    lines.join("\n")
}

impl ReferenceTable {
    /// Returns the heading, such as `[mirror]`.
    #[doc(hidden)]
    pub fn heading(&self) -> String {
        if self.is_list { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) }
    }

    /// Returns the variable that sets a setting; `None` in a list of tables.
    #[doc(hidden)]
    pub fn variable(&self, setting: &ReferenceSetting) -> Option<String> {
        let (part, name) = (self.name.to_ascii_uppercase(), setting.name.to_ascii_uppercase());
        (!self.is_list).then(|| format!("ONCELY_{part}__{name}"))
    }
}

impl ReferenceSetting {
    /// Returns the unit of the setting's value; empty if it has none.
    #[doc(hidden)]
    pub fn unit(&self) -> &'static str {
        let about = self.about.to_ascii_lowercase();
        match self.kind {
            "duration" => "ms, s, m, h, d",
            "whole number" if about.contains("in bytes") || about.starts_with("bytes") => "bytes",
            "whole number" if about.starts_with("percent") => "percent",
            _ => "",
        }
    }

    /// Returns the default in words; `None` if it has no default.
    #[doc(hidden)]
    pub fn default_text(&self) -> Option<String> {
        match self.default_kind {
            DefaultKind::Default => Some(self.value.clone()),
            DefaultKind::Required => None,
            // A default that depends on other settings is described in the text.
            DefaultKind::Example => {
                let remainder = self.about.split_once("y default ").map(|(_, remainder)| remainder)?;
                remainder.split(['.', ';', ')', ',']).next().map(str::to_owned)
            }
        }
    }
}

/// Maximum length in characters of a comment line of the file of defaults.
const MAX_LINE_WIDTH: usize = 120;

/// Renders the file of commented defaults.
#[must_use]
pub fn render_default_file() -> String {
    let (head, tables) = reference();
    let mut text = String::new();
    write_comment(&head, &mut text);
    for table in tables {
        text.push('\n');
        write_comment(&table.about, &mut text);
        text.push_str(&format!("{}\n", table.heading()));
        for setting in table.settings {
            write_comment(&setting.about, &mut text);
            // The one table that a file of defaults needs to be valid.
            let is_shown =
                setting.default_kind == DefaultKind::Default || table.is_list && setting.is_shown();
            let sign = if is_shown { "" } else { "# " };
            text.push_str(&format!("{sign}{} = {}\n", setting.name, setting.value));
        }
    }
    text
}

impl ReferenceSetting {
    /// Returns whether the file of defaults sets it although it is an example: a consumer needs it.
    fn is_shown(&self) -> bool {
        self.default_kind == DefaultKind::Required || self.name == "handler"
    }
}

/// Writes a comment to `text`, with lines of up to [`MAX_LINE_WIDTH`] characters.
fn write_comment(about: &str, text: &mut String) {
    for paragraph in about.lines() {
        let indent = if paragraph.starts_with("* ") { "#   " } else { "# " };
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > MAX_LINE_WIDTH {
                text.push_str(&line);
                text.push('\n');
                line = indent.trim_end().to_owned() + &" ".repeat(indent.len() - 2);
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_defaults_has_each_setting_once_and_in_order() {
        let text = render_default_file();
        let (head, tables) = reference();
        assert!(head.starts_with("Oncely's configuration:"), "{head}");
        let settings: usize = tables.iter().map(|table| table.settings.len()).sum();
        assert!(settings > 120, "{settings}");
        let mut at = 0;
        for table in &tables {
            at += text[at..].find(&format!("\n{}\n", table.heading())).expect(&table.name);
            for setting in &table.settings {
                assert!(!setting.about.is_empty(), "{}.{}", table.name, setting.name);
                let line = format!("{} = {}\n", setting.name, setting.value);
                at += text[at..].find(&line).expect(&line);
            }
        }
        let is_example = |line: &str| line.starts_with("# ") && line.contains(" = ");
        let is_short = |line: &str| line.chars().count() <= MAX_LINE_WIDTH;
        assert!(text.lines().all(|line| is_short(line) || is_example(line) || !line.starts_with('#')));
    }

    #[test]
    fn kinds_units_and_defaults_are_those_of_the_types() {
        let (_, tables) = reference();
        let of = |table: &str, name: &str| {
            let table = tables.iter().find(|entry| entry.name == table).unwrap();
            table.settings.iter().find(|entry| entry.name == name).unwrap().clone()
        };
        for (table, name, kind, unit, default) in [
            ("mirror", "key", "text", "", Some("the database's own")),
            ("mirror", "ttl", "duration", "ms, s, m, h, d", Some("\"1h\"")),
            ("gc", "load", "whole number", "percent", Some("20")),
            ("consumers", "buffer", "whole number", "bytes", Some("67108864")),
            ("consumers", "batch", "whole number", "", Some("500")),
            ("consumers", "prefetch", "whole number", "", Some("2 × batch × lanes")),
            ("consumers", "precheck", "text", "", Some("as `[mirror]` says")),
            ("consumers", "tenant", "text or table", "", None),
            ("consumers", "replies", "true or false", "", Some("false")),
            ("consumers", "bindings", "list", "", Some("[]")),
            ("postgres", "url", "text or list", "", None),
            ("worker", "name", "text", "", Some("host name and process id")),
            ("cell", "signing_key", "text", "", Some("the database's own keys")),
        ] {
            let setting = of(table, name);
            let found = (setting.kind, setting.unit(), setting.default_text());
            assert_eq!(found, (kind, unit, default.map(str::to_owned)), "{table}.{name}");
        }
        assert_eq!(of("postgres", "url").default_kind, DefaultKind::Required);
        assert_eq!(of("consumers", "handler").default_kind, DefaultKind::Example);
        assert!(of("mirror", "key").is_secret && of("cell", "known_keys").is_secret);
        assert!(of("traces", "headers").is_secret && !of("consumers", "key").is_secret);
    }
}
