//! `oncely keys show KEY`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::Value;

use super::super::explain::as_json;
use super::super::output::{self, Times, safe};
use super::super::{completions, session};
use crate::config::Config;
use crate::exit;
use crate::pg;
use crate::story::stories;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The key, exactly
    key: String,
    /// Whose key
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let config = Config::load_without_broker(file)?;
    let mut session = session::open(&config).await?;
    pg::read_by_index(&mut session.connection).await?;
    let (tenant, consumer) = (arguments.tenant.as_deref(), arguments.consumer.as_deref());
    let found = stories(&config, &mut session, &arguments.key, tenant, consumer).await?;
    session.close().await;
    let found: Vec<Value> = found.iter().map(as_json).collect();
    let key = safe(&arguments.key);
    match found.as_slice() {
        [] => {
            output::note(&format!("{key}: nothing is known (`oncely explain` says since when)"));
            Ok(ExitCode::from(exit::NO))
        }
        [one] => {
            match arguments.json {
                true => output::print_json("oncely.key/1", one.clone())?,
                false => output::print(&lines(one, times))?,
            }
            Ok(ExitCode::SUCCESS)
        }
        several => {
            let names = several.iter().map(|one| {
                let of = |name: &str| one[name].as_str().map(safe).unwrap_or_default();
                format!("\n  --tenant {} --consumer {}", of("tenant"), of("consumer"))
            });
            output::note(&format!(
                "{key} is known {} times; name one:{}",
                several.len(),
                names.collect::<String>()
            ));
            Ok(ExitCode::from(exit::USAGE))
        }
    }
}

/// One fact a line.
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
