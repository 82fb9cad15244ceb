//! Reads the file's tables, with all problems at once.

use garde::Validate as _;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::file::File;
use super::problems::Problems;
use super::schema;

/// Reads the tables from the values of a file, and checks their limits. A value with a problem has its default.
pub(crate) fn read(values: &Map<String, Value>, problems: &mut Problems) -> File {
    let mut values = Value::Object(values.clone());
    remove_unknown(&mut values, schema::schema(), "", problems);
    let file = loop {
        match serde_path_to_error::deserialize::<_, File>(&values) {
            Ok(file) => break file,
            Err(error) => {
                let path: Vec<String> = error.path().iter().filter_map(to_step).collect();
                let place = format_path(&path);
                let advice =
                    schema::node_at(&place).map_or_else(|| "can't be read".to_owned(), schema::advice);
                problems.add(place, advice);
                if !remove_value(&mut values, &path) {
                    break File::default();
                }
            }
        }
    };
    if let Err(report) = file.validate() {
        for (path, error) in report.iter() {
            let place = path.to_string();
            let message = match schema::node_at(&place) {
                // "lower than 1s", "greater than 1h"
                Some(node) if schema::kind(node) == "duration" => format!("must not be {error}"),
                Some(node) => schema::advice(node),
                None => error.to_string(),
            };
            problems.add(place, message);
        }
    }
    file
}

/// Removes keys that no table has, most often typing errors, which must not silently become defaults.
fn remove_unknown(value: &mut Value, node: &'static Value, path: &str, problems: &mut Problems) {
    match value {
        Value::Object(table) => {
            if let Some(names) = schema::names(node) {
                table.retain(|key, _| {
                    let is_known = names.contains(&key.as_str());
                    if !is_known {
                        problems
                            .add(join_path(path, key), format!("unknown key; {}", build_hint(key, &names)));
                    }
                    is_known
                });
            }
            for (key, value) in table {
                let place = join_path(path, key);
                if let Some(node) = schema::node_at(&place) {
                    remove_unknown(value, node, &place, problems);
                }
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter_mut().enumerate() {
                let place = format!("{path}[{index}]");
                if let Some(node) = schema::node_at(&place) {
                    remove_unknown(value, node, &place, problems);
                }
            }
        }
        _ => {}
    }
}

/// Builds the advice for an unknown key: a similar one, or all known ones.
fn build_hint(key: &str, names: &[&str]) -> String {
    let distance = |name: &&str| strsim::damerau_levenshtein(name, key);
    let nearest = names.iter().min_by_key(|name| distance(name)).filter(|name| distance(name) <= 3);
    match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("known here: {}", names.join(", ")),
    }
}

/// Joins a path and a key with a dot.
pub(crate) fn join_path(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Returns the key or index of a segment; `None` if it has none.
fn to_step(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    }
}

/// Formats a path, with indexes in brackets.
fn format_path(path: &[String]) -> String {
    path.iter().fold(String::new(), |text, step| match step.parse::<usize>() {
        Ok(index) => format!("{text}[{index}]"),
        Err(_) => join_path(&text, step),
    })
}

/// Removes the value at a path, or the innermost one around it. Returns false if it finds neither.
fn remove_value(value: &mut Value, path: &[String]) -> bool {
    let [step, remainder @ ..] = path else { return false };
    let inner = match value {
        Value::Object(table) => table.get_mut(step),
        Value::Array(values) => step.parse::<usize>().ok().and_then(|index| values.get_mut(index)),
        _ => None,
    };
    let Some(inner) = inner else { return false };
    if !remainder.is_empty() && remove_value(inner, remainder) {
        return true;
    }
    match value {
        Value::Object(table) => table.remove(step).is_some(),
        Value::Array(values) => step.parse().is_ok_and(|index: usize| {
            values.remove(index);
            true
        }),
        _ => false,
    }
}
