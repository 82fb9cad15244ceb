//! Reads one table of the configuration and reports all of its problems, instead of stopping at the first.

use std::ops::RangeInclusive;
use std::time::Duration;

use figment::value::{Dict, Value};

use super::Problems;

/// A table that is being read, with the names of its requested keys and the remaining values.
pub struct Section {
    path: String,
    values: Dict,
    asked: Vec<&'static str>,
}

impl Section {
    pub(crate) fn new(path: impl Into<String>, values: Dict) -> Self {
        Self { path: path.into(), values, asked: Vec::new() }
    }

    /// Returns the full name of a key, for messages.
    pub(crate) fn place(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Returns whether a key is set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns whether a key is set to a list.
    pub(crate) fn has_list(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(Value::Array(..)))
    }

    /// Takes a value of any type.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Value> {
        self.asked.push(key);
        self.values.remove(key)
    }

    pub(crate) fn text(&mut self, key: &'static str, problems: &mut Problems) -> Option<String> {
        match self.take(key)? {
            Value::String(_, text) => Some(text),
            // Digits in an environment variable arrive as a number.
            Value::Num(_, number) => {
                number.to_i128().map(|n| n.to_string()).or_else(|| number.to_u128().map(|n| n.to_string()))
            }
            _ => {
                problems.add(self.place(key), "must be a text");
                None
            }
        }
    }

    pub(crate) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
        problems: &mut Problems,
    ) -> Duration {
        let place = self.place(key);
        match self.take(key) {
            None => default,
            Some(value) => duration(&value, &place, &range, problems).unwrap_or(default),
        }
    }

    pub(crate) fn durations(&mut self, key: &'static str, problems: &mut Problems) -> Option<Vec<Duration>> {
        let place = self.place(key);
        let range = Duration::from_millis(1)..=Duration::from_secs(7 * 86_400);
        match self.take(key)? {
            Value::Array(_, values) => Some(
                values
                    .iter()
                    .enumerate()
                    .filter_map(|(index, value)| {
                        duration(value, &format!("{place}[{index}]"), &range, problems)
                    })
                    .collect(),
            ),
            _ => {
                problems.add(place, "must be a list of durations, like [\"1s\", \"1m\"]");
                None
            }
        }
    }

    pub(crate) fn integer(
        &mut self,
        key: &'static str,
        default: u32,
        range: RangeInclusive<u32>,
        problems: &mut Problems,
    ) -> u32 {
        let number = match self.take(key) {
            None => return default,
            // Numbers in the file are signed, those in the environment are not.
            Some(value) => value.to_i128().or_else(|| value.to_u128().and_then(|n| i128::try_from(n).ok())),
        };
        match number.and_then(|n| u32::try_from(n).ok()).filter(|n| range.contains(n)) {
            Some(number) => number,
            None => {
                let (low, high) = (range.start(), range.end());
                problems.add(self.place(key), format!("must be a whole number from {low} to {high}"));
                default
            }
        }
    }

    pub(crate) fn boolean(&mut self, key: &'static str, default: bool, problems: &mut Problems) -> bool {
        match self.take(key) {
            None => default,
            Some(value) => value.to_bool().unwrap_or_else(|| {
                problems.add(self.place(key), "must be true or false");
                default
            }),
        }
    }

    /// Takes a share, from 0 (none) to 1 (all).
    pub(crate) fn share(&mut self, key: &'static str, default: f64, problems: &mut Problems) -> f64 {
        let number = match self.take(key) {
            None => return default,
            Some(value) => value.to_f64(),
        };
        number.filter(|number| (0.0..=1.0).contains(number)).unwrap_or_else(|| {
            problems.add(self.place(key), "must be a number from 0 (none) to 1 (all)");
            default
        })
    }

    /// Takes one of several words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
        problems: &mut Problems,
    ) -> T {
        let Some(word) = self.text(key, problems) else {
            return default;
        };
        match choices.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => *value,
            None => {
                let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
                problems.add(self.place(key), format!("must be one of {}, not {word:?}", names.join(", ")));
                default
            }
        }
    }

    pub(crate) fn texts(&mut self, key: &'static str, problems: &mut Problems) -> Option<Vec<String>> {
        let texts = match self.take(key)? {
            Value::Array(_, values) => {
                values.into_iter().map(|value| value.into_string()).collect::<Option<Vec<_>>>()
            }
            _ => None,
        };
        if texts.is_none() {
            problems.add(self.place(key), "must be a list of texts");
        }
        texts
    }

    /// Takes a nested table; an absent one is empty.
    pub(crate) fn table(&mut self, key: &'static str, problems: &mut Problems) -> Section {
        let place = self.place(key);
        let values = match self.take(key) {
            None => Dict::new(),
            Some(Value::Dict(_, values)) => values,
            Some(_) => {
                problems.add(&place, "must be a table");
                Dict::new()
            }
        };
        Self::new(place, values)
    }

    /// Takes a list of tables.
    pub(crate) fn tables(&mut self, key: &'static str, problems: &mut Problems) -> Vec<Section> {
        let place = self.place(key);
        match self.take(key) {
            None => Vec::new(),
            Some(Value::Array(_, values)) => values
                .into_iter()
                .enumerate()
                .filter_map(|(index, value)| match value {
                    Value::Dict(_, values) => Some(Self::new(format!("{place}[{index}]"), values)),
                    _ => {
                        problems.add(format!("{place}[{index}]"), "must be a table");
                        None
                    }
                })
                .collect(),
            Some(_) => {
                problems.add(&place, format!("must be tables: write [[{place}]] before each"));
                Vec::new()
            }
        }
    }

    /// Returns the only key of a one-key table such as `{ header = "x" }`, with its value.
    pub(crate) fn only(mut self, asked: &[&'static str], problems: &mut Problems) -> Option<(String, Value)> {
        self.asked.extend(asked);
        if self.values.len() != 1 {
            problems.add(&self.path, format!("must name one of {}", self.asked.join(", ")));
            return None;
        }
        if let Some(key) = asked.iter().find(|key| self.values.contains_key(**key)) {
            let value = self.values.remove(*key)?;
            return Some(((*key).to_owned(), value));
        }
        self.finish(problems);
        None
    }

    /// Reports all keys that were not requested: most often a typing error, which must not silently become a default.
    pub(crate) fn finish(self, problems: &mut Problems) {
        for key in self.values.keys() {
            let nearest = self
                .asked
                .iter()
                .map(|known| (strsim::damerau_levenshtein(known, key), known))
                .min()
                .filter(|(distance, _)| *distance <= 3);
            let hint = match nearest {
                Some((_, known)) => format!("did you mean {known}?"),
                None => format!("known here: {}", self.asked.join(", ")),
            };
            problems.add(self.place(key), format!("unknown key; {hint}"));
        }
    }
}

fn duration(
    value: &Value,
    place: &str,
    range: &RangeInclusive<Duration>,
    problems: &mut Problems,
) -> Option<Duration> {
    let parsed = value.as_str().map(humantime::parse_duration);
    match parsed {
        Some(Ok(duration)) if range.contains(&duration) => Some(duration),
        Some(Ok(_)) => {
            let show = humantime::format_duration;
            problems.add(place, format!("must be from {} to {}", show(*range.start()), show(*range.end())));
            None
        }
        Some(Err(error)) => {
            problems.add(place, format!("must be a duration like \"30s\" or \"7d\" ({error})"));
            None
        }
        None => {
            problems.add(place, "must be a duration with its unit, like \"30s\" or \"7d\"");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_environment_are_numbers() {
        // figment's values of ONCELY_RELAY__BATCH=50 and ONCELY_WORKER__NAME=7.
        let values = Dict::from([
            ("batch".to_owned(), Value::from(50_usize)),
            ("name".to_owned(), Value::from(7_usize)),
        ]);
        let mut section = Section::new("relay", values);
        let mut problems = Problems::default();
        assert_eq!(section.integer("batch", 1, 1..=100, &mut problems), 50);
        assert_eq!(section.text("name", &mut problems).as_deref(), Some("7"));
        assert!(problems.is_empty(), "{problems}");
    }
}
