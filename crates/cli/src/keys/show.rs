//! `oncely keys show KEY`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::super::explain::to_json;
use super::super::key_name::{KeyName, choose_row};
use super::super::output::{self, Times, escape};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::story::read_stories;
use oncely_postgres as pg;
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
pub(crate) struct KeyShowArguments {
    #[command(flatten)]
    name: KeyName,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: KeyShowArguments, times: Times) -> crate::VerbResult {
    let config = Config::load_without_broker(file)?;
    let mut session = open_session(&config).await?;
    pg::prefer_indexes(&mut session.connection).await?;
    let KeyName { key, tenant, consumer } = arguments.name;
    let stories = read_stories(&config, &mut session, &key, tenant.as_deref(), consumer.as_deref()).await?;
    session.close().await;
    let several = |count| format!("{} is known {count} times", escape(&key));
    match choose_row(stories, several, |story| (&story.tenant, &story.consumer)) {
        Ok(Some(story)) => {
            let story = to_json(&story);
            match arguments.json {
                true => output::print_json("oncely.key/1", story)?,
                false => output::print(&format_story(&story, times))?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => {
            output::print_note(&format!(
                "{}: nothing is known (`oncely explain` says since when)",
                escape(&key)
            ));
            Ok(ExitCode::from(exit::NO))
        }
        Err(code) => Ok(code),
    }
}

/// Formats the facts of a key, one per line.
fn format_story(story: &Value, times: Times) -> String {
    let mut lines = Vec::new();
    let mut add_line = |name: &str, value: &Value| {
        let text = match value {
            Value::Null => return,
            Value::String(text) => {
                match text.parse().ok().filter(|_| name.ends_with("_at") || name.ends_with("_until")) {
                    Some(time) => times.format_time(time),
                    None => escape(text),
                }
            }
            Value::Array(values) if values.is_empty() => return,
            Value::Array(values) => values.len().to_string(),
            other => escape(&other.to_string()),
        };
        lines.push(format!("{name:<16} {text}"));
    };
    for name in ["tenant", "consumer"] {
        add_line(name, &story[name]);
    }
    for name in [
        "key",
        "status",
        "attempts",
        "created_at",
        "completed_at",
        "expires_at",
        "reason",
        "last_error",
        "fingerprint",
        "http_status",
        "response",
    ] {
        add_line(name, &story["key"][name]);
    }
    for name in ["protected_until", "mirrored", "timeline", "letters", "verdict"] {
        add_line(name, &story[name]);
    }
    lines.join("\n")
}
