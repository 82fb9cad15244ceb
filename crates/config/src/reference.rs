//! Descriptions of all settings, parsed from the commented defaults.

use figment::Figment;
use figment::providers::{Format as _, Toml};
use figment::value::Value;

use super::DEFAULTS;

/// Required settings of a consumer: their values in the defaults are examples.
const REQUIRED: [&str; 4] = ["name", "queue", "tenant", "key"];

/// Settings with an example that a worker with its own Rust handler does not need.
const EXAMPLES: [&str; 1] = ["handler"];

/// Settings of a consumer that take a text or a table.
const TEXT_OR_TABLE: [&str; 3] = ["tenant", "key", "fingerprint"];

/// A table of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceTable {
    /// Name, such as `mirror`.
    #[doc(hidden)]
    pub name: &'static str,
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
    pub name: &'static str,
    /// Value in the defaults, as TOML.
    #[doc(hidden)]
    pub value: &'static str,
    #[doc(hidden)]
    pub worth: DefaultKind,
    /// Comment behind the value.
    #[doc(hidden)]
    pub remark: &'static str,
    /// Description, line by line; a line of code begins with two blanks.
    #[doc(hidden)]
    pub about: String,
}

/// Kind of the value in the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultKind {
    #[doc(hidden)]
    Default,
    /// An example without a default.
    Example,
    /// An example of a required setting.
    Required,
}

/// Returns the head of the defaults, and all parts.
pub fn reference() -> (String, Vec<ReferenceTable>) {
    let (mut head, mut parts) = (String::new(), Vec::<ReferenceTable>::new());
    let mut about: Vec<&str> = Vec::new();
    for line in DEFAULTS.lines() {
        if let Some((name, value, remark)) = setting(line) {
            let about = std::mem::take(&mut about).join("\n");
            if let Some(part) = parts.last_mut() {
                let worth = match part.is_list {
                    true if REQUIRED.contains(&name) => DefaultKind::Required,
                    true if EXAMPLES.contains(&name) => DefaultKind::Example,
                    _ if line.starts_with('#') && remark.starts_with("required") => DefaultKind::Required,
                    _ if line.starts_with('#') => DefaultKind::Example,
                    _ => DefaultKind::Default,
                };
                part.settings.push(ReferenceSetting { name, value, worth, remark, about });
            }
        } else if let Some(name) = line.strip_prefix('[') {
            let is_list = line.starts_with("[[");
            let name = name.trim_matches(['[', ']']);
            let about = std::mem::take(&mut about).join("\n");
            parts.push(ReferenceTable { name, is_list, about, settings: Vec::new() });
        } else if let Some(rest) = line.strip_prefix('#') {
            about.push(rest.strip_prefix(' ').unwrap_or(rest));
        } else if parts.is_empty() {
            // This comment belongs to no setting.
            head.push_str(&std::mem::take(&mut about).join("\n"));
        }
    }
    (head, parts)
}

/// Parses `name = value   # remark`, also after `# `.
fn setting(line: &'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (name, rest) = line.split_once(" = ")?;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        return None;
    }
    let (value, remark) = rest.split_once("  #").unwrap_or((rest, ""));
    Some((name, value.trim(), remark.trim()))
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
    /// Returns the type of the setting's value in its part, and its unit.
    #[doc(hidden)]
    pub fn kind(&self, part: &ReferenceTable) -> (&'static str, &'static str) {
        let text = format!("value = {}", self.value);
        let value = Figment::new().merge(Toml::string(&text)).find_value("value");
        let is_duration = |text: &str| humantime::parse_duration(text).is_ok();
        match value {
            _ if part.is_list && TEXT_OR_TABLE.contains(&self.name) => ("text or table", ""),
            Ok(Value::String(_, text)) if is_duration(&text) => ("duration", "ms, s, m, h, d"),
            Ok(Value::String(..)) => ("text", ""),
            Ok(Value::Num(..)) => ("whole number", self.unit()),
            Ok(Value::Bool(..)) => ("true or false", ""),
            Ok(Value::Array(..)) => ("list", ""),
            Ok(Value::Dict(..)) => ("table", ""),
            Ok(_) | Err(_) => ("text", ""),
        }
    }

    fn unit(&self) -> &'static str {
        let about = self.about.to_ascii_lowercase();
        match () {
            () if about.contains("in bytes") || about.starts_with("bytes") => "bytes",
            () if about.starts_with("percent") => "percent",
            () => "",
        }
    }

    /// Returns the default in words; `None` if it has no default.
    #[doc(hidden)]
    pub fn otherwise(&self) -> Option<String> {
        // A default that depends on other settings is described in the comment.
        let told = self.about.split_once("y default ").map(|(_, rest)| rest);
        let told = told.or_else(|| self.remark.split_once("by default ").map(|(_, rest)| rest));
        let phrase =
            told.and_then(|rest| rest.split(['.', ';', ')', ',']).next()).map(|text| text.replace('\n', " "));
        match (self.worth, phrase) {
            (DefaultKind::Default, Some(phrase))
                if self.about.contains("By default ") || self.about.contains("; by default ") =>
            {
                Some(phrase)
            }
            (DefaultKind::Default, _) => Some(self.value.to_owned()),
            (DefaultKind::Example, phrase) => phrase,
            (DefaultKind::Required, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_defaults_is_part_of_the_reference() {
        let (head, parts) = reference();
        assert!(head.starts_with("Oncely's configuration:"), "{head}");
        let settings: usize = parts.iter().map(|part| part.settings.len()).sum();
        assert!(settings > 50, "{settings}");
        let told = |text: &str| text.lines().count();
        let lines: usize = parts
            .iter()
            .map(|part| {
                1 + told(&part.about) + part.settings.iter().map(|one| 1 + told(&one.about)).sum::<usize>()
            })
            .sum();
        let written = DEFAULTS.lines().filter(|line| !line.is_empty()).count();
        assert_eq!(lines + told(&head), written, "a comment behind the last setting, or a line that is none");
    }

    #[test]
    fn settings_comments_and_remarks_are_told_apart() {
        assert_eq!(setting("ttl = \"1h\""), Some(("ttl", "\"1h\"", "")));
        assert_eq!(
            setting("# url = \"redis://h\"      # or REDIS_URL"),
            Some(("url", "\"redis://h\"", "or REDIS_URL"))
        );
        assert_eq!(setting("# A key that is left out keeps its default"), None);
        assert_eq!(setting("# What wins: this < ONCELY_MIRROR__TTL=2h"), None);
    }

    #[test]
    fn kinds_units_and_what_holds_otherwise_are_read_from_the_defaults() {
        let (_, parts) = reference();
        let of = |part: &str, name: &str| {
            let part = parts.iter().find(|one| one.name == part).unwrap();
            let setting = part.settings.iter().find(|one| one.name == name).unwrap().clone();
            (setting.kind(part), setting)
        };
        for (part, name, kind, unit, otherwise) in [
            ("mirror", "key", "text", "", Some("the database's own")),
            ("mirror", "ttl", "duration", "ms, s, m, h, d", Some("\"1h\"")),
            ("gc", "load", "whole number", "percent", Some("20")),
            ("consumers", "buffer", "whole number", "bytes", Some("67108864")),
            ("consumers", "batch", "whole number", "", Some("500")),
            ("consumers", "prefetch", "whole number", "", Some("2 × batch × lanes")),
            ("consumers", "precheck", "text", "", Some("as [mirror] says")),
            ("consumers", "tenant", "text or table", "", None),
            ("consumers", "replies", "true or false", "", Some("false")),
            ("consumers", "bindings", "list", "", Some("[]")),
            ("postgres", "url", "text", "", None),
            ("worker", "name", "text", "", Some("host name and process id")),
            ("cell", "signing_key", "text", "", Some("the database's own keys")),
        ] {
            let (found, setting) = of(part, name);
            assert_eq!((found, setting.otherwise().as_deref()), ((kind, unit), otherwise), "{part}.{name}");
        }
        assert_eq!(of("postgres", "url").1.worth, DefaultKind::Required);
        assert_eq!(of("consumers", "handler").1.worth, DefaultKind::Example);
    }
}
