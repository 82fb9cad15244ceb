//! `oncely config show|docs|schema`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::output::{self, List, Output, Row, Times, safe};
use oncely_config::{
    Config, DefaultKind, EffectiveSetting, ReferenceSetting, ReferenceTable, default_file,
    effective_settings, reference, schema,
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
        ConfigCommand::Show(asked) => show(file, &asked, times),
        ConfigCommand::Docs(asked) => docs(&asked, times),
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

fn show(file: &Path, asked: &ShowConfigArguments, times: Times) -> crate::VerbResult {
    let rows: Vec<EffectiveSettingRow> = effective_settings(file, asked.defaults)?
        .into_iter()
        .map(|EffectiveSetting { key, value, source }| EffectiveSettingRow { key, value, source })
        .collect();
    let code = List { schema: "oncely.config/1", field: "values", rows: &rows, none: "nothing is set" }
        .print(asked.output, times)?;
    let problems = Config::examine(file).1;
    if !problems.is_empty() {
        output::note(&problems.to_string());
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
            default: setting.otherwise(),
            example: setting.value.clone(),
            required: setting.worth == DefaultKind::Required,
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

fn docs(asked: &ConfigDocsArguments, times: Times) -> crate::VerbResult {
    if asked.toml {
        output::print(default_file().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (head, parts) = reference();
    let wanted = asked.setting.as_deref().unwrap_or_default().trim_matches(['[', ']']);
    let is_meant = |key: &str, part: &str| wanted.is_empty() || wanted == part || wanted == key;
    let rows: Vec<SettingRow> = parts
        .iter()
        .flat_map(|part| part.settings.iter().map(|setting| SettingRow::new(part, setting)))
        .filter(|row| is_meant(&row.key, row.key.split('.').next().unwrap_or_default()))
        .collect();
    match rows.as_slice() {
        [] => {
            output::note(&unknown(wanted, &parts));
            Ok(ExitCode::from(exit::NO))
        }
        [one] if one.key == wanted && !asked.output.is_for_programs() => {
            output::print(&describe(one))?;
            Ok(ExitCode::SUCCESS)
        }
        rows => {
            let tables: Vec<_> = parts
                .iter()
                .map(|part| json!({ "table": part.name, "heading": part.heading(), "about": part.about }))
                .collect();
            List { schema: "oncely.config_docs/1", field: "settings", rows, none: "" }.print_with(
                asked.output,
                times,
                json!({ "about": head, "tables": tables }),
            )
        }
    }
}

/// Returns the error for an unknown setting, with similar names.
fn unknown(wanted: &str, parts: &[ReferenceTable]) -> String {
    let keys = parts.iter().flat_map(|part| {
        let full = part.settings.iter().map(|setting| format!("{}.{}", part.name, setting.name));
        full.chain([part.name.clone()])
    });
    let is_name = |key: &String| key.rsplit('.').next() == Some(wanted);
    let keys: Vec<String> = keys.collect();
    let meant: Vec<&str> = keys.iter().filter(|key| is_name(key)).map(String::as_str).collect();
    let nearest = keys.iter().min_by_key(|key| strsim::damerau_levenshtein(key, wanted));
    let meant = if meant.is_empty() { nearest.into_iter().map(String::as_str).collect() } else { meant };
    format!("there is no setting {}; did you mean {}?", safe(wanted), meant.join(" or "))
}

fn describe(row: &SettingRow) -> String {
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
