//! The JSON Schema of the file, and the facts that it holds of a setting: its kind, its names, the advice where a value is wrong.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::file::File;

/// Returns the JSON Schema of `oncely.toml`, for editors.
pub fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        settings.into_generator().into_root_schema_for::<File>().to_value()
    })
}

/// Returns the schema of a value by its path, such as `consumers[0].retry.delays`; `None` if no setting has this path.
pub(crate) fn node_at(path: &str) -> Option<&'static Value> {
    split_path(path).into_iter().try_fold(schema(), |node, step| find_inner(node, &step))
}

/// Splits a path into keys; an index is a step of its own.
pub(crate) fn split_path(path: &str) -> Vec<String> {
    path.split(['.', '[', ']']).filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// Returns the schema itself and its alternatives (`anyOf`, `oneOf`).
fn choices(node: &'static Value) -> std::vec::IntoIter<&'static Value> {
    let others = ["anyOf", "oneOf"].into_iter().filter_map(|of| node[of].as_array()).flatten();
    let all: Vec<_> = std::iter::once(node).chain(others.flat_map(choices)).collect();
    all.into_iter()
}

/// Finds the schema of a table's key or a list's item; `None` if `node` has no such key or item.
fn find_inner(node: &'static Value, step: &str) -> Option<&'static Value> {
    choices(node).find_map(|node| {
        let of_name = node["properties"].get(step);
        let of_index = || step.parse::<usize>().ok().and_then(|_| node.get("items"));
        of_name.or_else(of_index).or_else(|| node.get("additionalProperties").filter(|node| node.is_object()))
    })
}

/// Returns the names that a table may have; `None` if it may have any, or is no table.
pub(crate) fn names(node: &'static Value) -> Option<Vec<&'static str>> {
    let tables: Vec<_> = choices(node).filter(|node| node["properties"].is_object()).collect();
    let is_open = choices(node).any(|node| node["additionalProperties"].is_object());
    let names = tables.iter().filter_map(|node| node["properties"].as_object());
    (!tables.is_empty() && !is_open)
        .then(|| names.flat_map(|properties| properties.keys().map(String::as_str)).collect())
}

fn has_type(node: &'static Value, name: &str) -> bool {
    choices(node).any(|node| match &node["type"] {
        Value::String(only) => only == name,
        Value::Array(all) => all.iter().any(|one| one == name),
        _ => false,
    })
}

/// Returns whether a value is a text, and nothing else.
pub(crate) fn is_text(node: &'static Value) -> bool {
    has_type(node, "string") && !["array", "object"].iter().any(|other| has_type(node, other))
}

/// Returns whether a value must not be shown.
pub(crate) fn is_secret(node: &'static Value) -> bool {
    let is_write_only =
        |node: &'static Value| node["writeOnly"] == true || node["items"]["writeOnly"] == true;
    choices(node).any(|node| is_write_only(node) || is_write_only(&node["additionalProperties"]))
}

/// Returns the words that a text may be; empty if it may be any.
fn words(node: &'static Value) -> Vec<String> {
    let listed = choices(node).filter_map(|node| node["enum"].as_array()).flatten();
    let single = choices(node).filter_map(|node| node.get("const"));
    listed.chain(single).filter(|word| word.is_string()).map(ToString::to_string).collect()
}

fn extension(node: &'static Value, name: &str) -> Option<&'static str> {
    choices(node).find_map(|node| node[name].as_str())
}

/// Returns the type of a value in words.
pub(crate) fn kind(node: &'static Value) -> &'static str {
    match extension(node, "x-kind") {
        Some(kind) => kind,
        None if has_type(node, "integer") => "whole number",
        None if has_type(node, "number") => "number",
        None if has_type(node, "boolean") => "true or false",
        None if has_type(node, "array") => "list",
        None if has_type(node, "object") && has_type(node, "string") => "text or table",
        None if has_type(node, "object") => "table",
        None => "text",
    }
}

/// Returns the advice for a wrong value. It quotes no value: that may be a secret in the wrong place.
pub(crate) fn advice(node: &'static Value) -> String {
    let words = words(node);
    match (extension(node, "x-advice"), kind(node)) {
        (Some(advice), _) => advice.to_owned(),
        (None, "whole number") => {
            let limit = |name: &str| choices(node).find_map(|node| node[name].as_i64());
            match (limit("minimum"), limit("maximum")) {
                (Some(min), Some(max)) => format!("must be a whole number from {min} to {max}"),
                _ => "must be a whole number".to_owned(),
            }
        }
        (None, "true or false") => "must be true or false".to_owned(),
        (None, "list") if has_type(&node["items"], "object") => "must be tables".to_owned(),
        (None, "list") => "must be a list of texts".to_owned(),
        (None, "table") => "must be a table".to_owned(),
        (None, _) if !words.is_empty() => format!("must be one of {}", words.join(", ")),
        (None, kind) => format!("must be a {kind}"),
    }
}
