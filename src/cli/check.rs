//! `oncely check`: the configuration, then the servers; all problems at once.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::output;
use crate::config::{Config, Problems, masked};
use crate::exit;
use crate::mirror::Mirror;
use crate::preflight::Preflight;

#[derive(Debug, Args)]
#[command(after_help = "Exit 0: fit. 78: something must be changed. 3: a server does not answer.")]
pub(super) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (config, mut problems) = Config::examine(file);
    let mut found = match &config {
        Some(config) => look(config, &problems).await,
        None => Preflight::default(),
    };
    for problem in found.problems.list() {
        problems.add(&problem.place, &problem.message);
    }
    if let Some(session) = found.session.take() {
        session.close().await;
    }
    if arguments.json {
        let listed: Vec<_> =
            problems.list().iter().map(|p| json!({ "place": p.place, "problem": p.message })).collect();
        let fine: Vec<_> =
            found.fine.iter().map(|(what, text)| json!({ "what": what, "text": text })).collect();
        output::print_json(
            "oncely.check/1",
            json!({ "problems": listed, "unreachable": found.unreachable, "notes": found.notes, "fine": fine }),
        )?;
    } else {
        let mut lines = Vec::new();
        lines.extend(found.fine.iter().map(|(what, text)| format!("✓ {what}: {text}")));
        lines.extend(found.notes.iter().map(|text| format!("! {text}")));
        lines.extend(found.unreachable.iter().map(|text| format!("! not reached: {text}")));
        lines.extend(problems.list().iter().map(|p| format!("✗ {}: {}", p.place, p.message)));
        output::print(&lines.join("\n"))?;
    }
    Ok(match (problems.is_empty(), found.unreachable.is_empty()) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(exit::UNREACHABLE),
        (false, _) => ExitCode::from(exit::CONFIG),
    })
}

async fn look(config: &Config, problems: &Problems) -> Preflight {
    let bad = |section: &str| problems.list().iter().any(|p| p.place.starts_with(section));
    let mut found = Preflight::default();
    if !bad("postgres.") {
        crate::preflight::postgres(config, true, &mut found).await;
    }
    if !bad("rabbitmq.") {
        crate::preflight::rabbitmq(config, &mut found).await;
    }
    if let Some(settings) = &config.mirror
        && !bad("redis.")
    {
        let server = masked(&settings.url);
        let answer = match Mirror::new(settings) {
            Ok(mirror) => mirror.ping().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => found.fine.push(("Redis".to_owned(), server)),
            Err(error) if error.is_refusal() => {
                found.problems.add("redis.url", format!("{server}: user or password is refused"));
            }
            Err(error) => {
                found.unreachable.push(format!("Redis at {server}: {error} (slower, never wrong)"));
            }
        }
    }
    if problems.is_empty() {
        let names: Vec<_> = config.consumers.iter().map(|c| c.name.as_str()).collect();
        found.fine.push(("configuration".to_owned(), format!("consumers {}", names.join(", "))));
    }
    found
}
