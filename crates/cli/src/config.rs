//! `oncely config show|docs|schema`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::output::{self, List, Output, Row, Times, escape};
use oncely_config::{
    Config, DefaultKind, EffectiveSetting, ReferenceSetting, ReferenceTable, read_effective_settings,
    reference, render_default_file, schema,
};
use oncely_ops::exit;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show the effective values and their origin; secrets are masked
    #[command(after_help = "Needs no server, and also shows the readable part of an invalid configuration.")]
    Show(ShowConfigArguments),
    /// Describe settings: type, unit, default, purpose
    #[command(after_help = "Needs neither a server nor a configuration. Exit 1: there is no such setting.")]
    Docs(ConfigDocsArguments),
    /// Print the JSON Schema of oncely.toml, for editors
    #[command(
        after_help = "Needs neither a server nor a configuration. Editors complete and check oncely.toml with it: \
        `#:schema ./oncely.schema.json` in its first line, for those with the extension Even Better TOML."
    )]
    Schema,
}

#[derive(Debug, Args)]
pub(super) struct ShowConfigArguments {
    /// Include defaults
    #[arg(long)]
    defaults: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct ConfigDocsArguments {
    /// A setting, such as consumers.retention, or a table, such as mirror [default: all]
    setting: Option<String>,
    /// Print the file of commented defaults (oncely.default.toml)
    #[arg(long, conflicts_with_all = ["setting", "output", "json"])]
    toml: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(file: &Path, verb: ConfigCommand, times: Times) -> crate::VerbResult {
    match verb {
        ConfigCommand::Show(arguments) => print_effective_settings(file, &arguments, times),
        ConfigCommand::Docs(arguments) => print_reference(&arguments, times),
        ConfigCommand::Schema => {
            output::print(&serde_json::to_string_pretty(schema())?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// An effective value.
#[derive(Debug, Default, Serialize)]
struct EffectiveSettingRow {
    key: String,
    /// As TOML.
    value: String,
    source: String,
}

impl Row for EffectiveSettingRow {
    const SCHEMA: &'static str = "oncely.config.value/1";
    const HEADS: &'static [&'static str] = &["KEY", "VALUE", "SOURCE"];

    fn cells(&self, _: Times) -> Vec<String> {
        vec![self.key.clone(), self.value.clone(), self.source.clone()]
    }
}

/// Prints the effective settings; notes the problems of the configuration.
fn print_effective_settings(file: &Path, arguments: &ShowConfigArguments, times: Times) -> crate::VerbResult {
    let rows: Vec<EffectiveSettingRow> = read_effective_settings(file, arguments.defaults)?
        .into_iter()
        .map(|EffectiveSetting { key, value, source }| EffectiveSettingRow { key, value, source })
        .collect();
    let code = List { schema: "oncely.config/1", field: "values", rows: &rows, none: "nothing is set" }
        .print(arguments.output, times)?;
    let problems = Config::examine(file).1;
    if !problems.is_empty() {
        output::print_note(&problems.to_string());
    }
    Ok(code)
}

/// A documented setting.
#[derive(Debug, Default, Serialize)]
struct SettingRow {
    key: String,
    /// `duration`, `whole number`, `text`, `true or false`, `list`, `table`, `text or table`.
    #[serde(rename = "type")]
    kind: &'static str,
    unit: Option<&'static str>,
    /// TOML, or a description if it depends on other settings; null: no default.
    default: Option<String>,
    /// TOML.
    example: String,
    required: bool,
    /// The environment variable that sets it.
    environment: Option<String>,
    about: String,
}

impl SettingRow {
    fn new(part: &ReferenceTable, setting: &ReferenceSetting) -> Self {
        Self {
            key: format!("{}.{}", part.name, setting.name),
            kind: setting.kind,
            unit: Some(setting.unit()).filter(|unit| !unit.is_empty()),
            default: setting.default_text(),
            example: setting.value.clone(),
            required: setting.default_kind == DefaultKind::Required,
            environment: part.variable(setting),
            about: setting.about.clone(),
        }
    }
}

impl Row for SettingRow {
    const SCHEMA: &'static str = "oncely.config_docs.setting/1";
    const HEADS: &'static [&'static str] = &["KEY", "TYPE", "DEFAULT", "ABOUT"];

    fn cells(&self, _: Times) -> Vec<String> {
        let about = self.about.replace('\n', " ");
        let first = about.split_once(". ").map_or(about.as_str(), |(first, _)| first);
        let default = match &self.default {
            Some(default) => default.clone(),
            None if self.required => "(required)".to_owned(),
            None => "–".to_owned(),
        };
        vec![self.key.clone(), self.kind.to_owned(), default, first.trim_end_matches('.').to_owned()]
    }
}

/// Prints the reference of the settings, as text or as JSON.
fn print_reference(arguments: &ConfigDocsArguments, times: Times) -> crate::VerbResult {
    if arguments.toml {
        output::print(render_default_file().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (head, parts) = reference();
    let name = arguments.setting.as_deref().unwrap_or_default().trim_matches(['[', ']']);
    let is_selected = |key: &str, part: &str| name.is_empty() || name == part || name == key;
    let rows: Vec<SettingRow> = parts
        .iter()
        .flat_map(|part| part.settings.iter().map(|setting| SettingRow::new(part, setting)))
        .filter(|row| is_selected(&row.key, row.key.split('.').next().unwrap_or_default()))
        .collect();
    match rows.as_slice() {
        [] => {
            output::print_note(&describe_unknown_setting(name, &parts));
            Ok(ExitCode::from(exit::NO))
        }
        [row] if row.key == name && !arguments.output.is_for_programs() => {
            output::print(&describe_setting(row))?;
            Ok(ExitCode::SUCCESS)
        }
        rows => {
            let tables: Vec<_> = parts
                .iter()
                .map(|part| json!({ "table": part.name, "heading": part.heading(), "about": part.about }))
                .collect();
            List { schema: "oncely.config_docs/1", field: "settings", rows, none: "" }.print_with(
                arguments.output,
                times,
                json!({ "about": head, "tables": tables }),
            )
        }
    }
}

/// Describes an unknown setting, with similar names.
fn describe_unknown_setting(name: &str, parts: &[ReferenceTable]) -> String {
    let keys = parts.iter().flat_map(|part| {
        let full = part.settings.iter().map(|setting| format!("{}.{}", part.name, setting.name));
        full.chain([part.name.clone()])
    });
    let is_name = |key: &String| key.rsplit('.').next() == Some(name);
    let keys: Vec<String> = keys.collect();
    let candidates: Vec<&str> = keys.iter().filter(|key| is_name(key)).map(String::as_str).collect();
    let nearest = keys.iter().min_by_key(|key| strsim::damerau_levenshtein(key, name));
    let candidates =
        if candidates.is_empty() { nearest.into_iter().map(String::as_str).collect() } else { candidates };
    format!("there is no setting {}; did you mean {}?", escape(name), candidates.join(" or "))
}

/// Formats a setting of the reference for a terminal.
fn describe_setting(row: &SettingRow) -> String {
    let mut lines = vec![row.key.clone()];
    let mut fact = |name: &str, value: &str| lines.push(format!("  {name:<12} {value}"));
    match row.unit {
        Some(unit) => fact("type", &format!("{} ({unit})", row.kind)),
        None => fact("type", row.kind),
    }
    match &row.default {
        Some(default) => fact("default", default),
        None if row.required => fact("default", "none: it must be set"),
        None => fact("default", "none"),
    }
    let name = row.key.rsplit('.').next().unwrap_or_default();
    fact("example", &format!("{name} = {}", row.example));
    if let Some(variable) = &row.environment {
        fact("environment", variable);
    }
    if !row.about.is_empty() {
        lines.push(String::new());
        lines.push(row.about.clone());
    }
    lines.join("\n")
}
