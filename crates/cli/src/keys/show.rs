//! `oncely keys show KEY`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::super::explain::as_json;
use super::super::key_name::{KeyName, only_row};
use super::super::output::{self, Times, safe};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::story::stories;
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
    pg::read_by_index(&mut session.connection).await?;
    let KeyName { key, tenant, consumer } = arguments.name;
    let found = stories(&config, &mut session, &key, tenant.as_deref(), consumer.as_deref()).await?;
    session.close().await;
    let several = |count| format!("{} is known {count} times", safe(&key));
    match only_row(found, several, |story| (&story.tenant, &story.consumer)) {
        Ok(Some(story)) => {
            let story = as_json(&story);
            match arguments.json {
                true => output::print_json("oncely.key/1", story)?,
                false => output::print(&lines(&story, times))?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => {
            output::note(&format!("{}: nothing is known (`oncely explain` says since when)", safe(&key)));
            Ok(ExitCode::from(exit::NO))
        }
        Err(code) => Ok(code),
    }
}

/// Formats one fact per line.
fn lines(one: &Value, times: Times) -> String {
    let mut lines = Vec::new();
    let mut tell = |name: &str, value: &Value| {
        let text = match value {
            Value::Null => return,
            Value::String(text) => {
                match text.parse().ok().filter(|_| name.ends_with("_at") || name.ends_with("_until")) {
                    Some(time) => times.show(time),
                    None => safe(text),
                }
            }
            Value::Array(values) if values.is_empty() => return,
            Value::Array(values) => values.len().to_string(),
            other => safe(&other.to_string()),
        };
        lines.push(format!("{name:<16} {text}"));
    };
    for name in ["tenant", "consumer"] {
        tell(name, &one[name]);
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
        tell(name, &one["key"][name]);
    }
    for name in ["protected_until", "mirrored", "timeline", "letters", "verdict"] {
        tell(name, &one[name]);
    }
    lines.join("\n")
}
