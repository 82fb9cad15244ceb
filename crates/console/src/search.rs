//! The search box of the trail: `order-1182`, or `tenant:acme consumer:payments outcome:retried since:2h`.

use chrono::{DateTime, SecondsFormat, Utc};

use oncely_core::units;
use oncely_postgres::TrailFilter;

/// Known fields, in the order of a search's text.
const FIELDS: [&str; 8] = ["tenant", "consumer", "key", "outcome", "reason", "worker", "since", "until"];

/// Outcomes in the trail.
pub(crate) const OUTCOMES: [&str; 8] =
    ["completed", "refused", "duplicate", "retried", "dead_lettered", "observed", "taken_over", "fenced"];

/// A search as words: each field at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search(Vec<(&'static str, String)>);

/// The search as a database query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchQuery {
    pub(crate) filter: TrailFilter,
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) until: Option<DateTime<Utc>>,
}

impl Search {
    /// Parses the text of the search box, such as `tenant:acme "order 1182"`. Every text is valid: words without a known field, or with an
    /// empty value, are joined by spaces as the key, and replace that of a field `key`. Quotes keep white space in a value. The last of
    /// repeated fields counts.
    pub(crate) fn parse(text: &str) -> Self {
        let mut search = Self::default();
        let mut key = String::new();
        for word in split_words(text) {
            let field = word.split_once(':').filter(|_| !word.starts_with('"')).and_then(|(name, value)| {
                let name = FIELDS.into_iter().find(|field| *field == name)?;
                (!value.is_empty()).then_some((name, value))
            });
            match field {
                Some((name, value)) => search = search.with(name, Some(&unquote(value))),
                None => {
                    if !key.is_empty() {
                        key.push(' ');
                    }
                    key.push_str(&unquote(&word));
                }
            }
        }
        if key.is_empty() { search } else { search.with("key", Some(&key)) }
    }

    /// Returns the value of a field; `None` if the search lacks the field.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the search with another value of a field, or without the field.
    pub(crate) fn with(&self, name: &'static str, value: Option<&str>) -> Self {
        let mut fields: Vec<_> = self.0.iter().filter(|(known, _)| *known != name).cloned().collect();
        fields.extend(value.map(|value| (name, value.to_owned())));
        let position = |name: &str| FIELDS.iter().position(|field| *field == name);
        fields.sort_by_key(|(name, _)| position(name));
        Self(fields)
    }

    /// Formats the search as text for the search box; [`parse`](Self::parse) of it gives the same search.
    pub(crate) fn to_text(&self) -> String {
        let word = |(name, value): &(&str, String)| format!("{name}:{}", quote(value));
        match &self.0[..] {
            // A key alone needs no field name, unless it would be parsed as something else.
            [("key", value)] if Self::parse(&quote(value)) == *self => quote(value),
            fields => fields.iter().map(word).collect::<Vec<_>>().join(" "),
        }
    }

    /// Converts the search to a database query.
    ///
    /// # Errors
    /// If a value is invalid: a message that names it, with valid examples.
    pub(crate) fn to_query(&self, now: DateTime<Utc>) -> Result<SearchQuery, String> {
        let own = |name: &str| self.get(name).map(str::to_owned);
        let time = |name: &str| {
            let read =
                |text: &str| units::parse_time(text, now).map_err(|what| format!("{name}:{text} is {what}"));
            self.get(name).map(read).transpose()
        };
        if let Some(outcome) = self.get("outcome")
            && !OUTCOMES.contains(&outcome)
        {
            return Err(format!("outcome:{outcome} is none; there are {}", OUTCOMES.join(", ")));
        }
        let filter = TrailFilter {
            tenant: own("tenant"),
            consumer: own("consumer"),
            key: own("key"),
            outcome: own("outcome"),
            reason: own("reason"),
            worker: own("worker"),
        };
        Ok(SearchQuery { filter, since: time("since")?, until: time("until")? })
    }
}

/// Formats a time for a search.
pub(crate) fn format_instant(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Splits a text at white space outside quotes.
fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut in_quotes = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' if in_quotes => {
                word.push(character);
                word.extend(characters.next());
            }
            // Only at the beginning or end of a value.
            '"' if in_quotes || word.is_empty() || word.ends_with(':') => {
                in_quotes = !in_quotes;
                word.push(character);
            }
            c if c.is_whitespace() && !in_quotes => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Removes the quotes of a quoted value.
fn unquote(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"').map(|inner| inner.strip_suffix('"').unwrap_or(inner)) else {
        return text.to_owned();
    };
    let mut out = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => out.extend(characters.next()),
            c => out.push(c),
        }
    }
    out
}

/// Quotes a value, unless it needs no quotes.
fn quote(value: &str) -> String {
    let is_plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\');
    if is_plain {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_as_it_is_written() {
        for key in [
            "order-1182",
            "order:1182",
            "a b",
            "tenant:acme",
            "\"quoted\"",
            "back\\slash \"and\" quotes",
            "<script>",
            "line\nbreak",
            "since:",
            ":",
            "\u{202e}rtl",
            "key:x",
        ] {
            let search = Search::default().with("key", Some(key));
            assert_eq!(Search::parse(&search.to_text()), search, "{key:?} as {}", search.to_text());
            let both = search.with("tenant", Some(key));
            assert_eq!(Search::parse(&both.to_text()), both, "{key:?} as {}", both.to_text());
        }
        assert_eq!(Search::default().with("key", Some("order-1182")).to_text(), "order-1182");
        assert_eq!(Search::parse("order 1182").get("key"), Some("order 1182"));
        assert_eq!(Search::parse("urn:x:1").get("key"), Some("urn:x:1"));
    }

    #[test]
    fn fields_are_read_in_any_order_and_the_last_of_a_name_counts() {
        let search = Search::parse("  since:2h outcome:retried tenant:acme tenant:\"globex inc\" k1 ");
        assert_eq!(search.to_text(), "tenant:\"globex inc\" key:k1 outcome:retried since:2h");
        assert_eq!(search.with("outcome", None).with("tenant", None).with("since", None).to_text(), "k1");
        assert_eq!(Search::parse("").to_text(), "");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let query = |text: &str| Search::parse(text).to_query(now);
        assert_eq!(query("since:2h").unwrap().since, Some(now - chrono::Duration::hours(2)));
        assert!(query("since:soon").unwrap_err().starts_with("since:soon is not a time"));
        assert!(query("outcome:lost").unwrap_err().contains("dead_lettered"));
        let at = now + chrono::Duration::microseconds(123_456);
        assert_eq!(query(&format!("until:{}", format_instant(at))).unwrap().until, Some(at));
    }
}
