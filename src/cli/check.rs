//! `oncely check`: the configuration, then the servers; all problems at once.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;
use crate::config::{Config, Problems, masked};
use crate::exit;
use crate::mirror::Mirror;
use crate::pg;
use crate::preflight::{self, Preflight};

#[derive(Debug, Args)]
#[command(after_help = "Exit 0: fit. 78: something must be changed. 3: a server does not answer.")]
pub(super) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// What the login is for: only what that needs is checked [default: what its roles say]
    #[arg(long = "as", value_enum)]
    role: Option<Role>,
}

/// What a login is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Worker,
    Relay,
    Operator,
    Auditor,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let (config, mut problems) = Config::examine(file);
    let mut found = match &config {
        Some(config) => look(config, arguments.role, &problems).await,
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
        let warnings: Vec<_> =
            found.warnings.iter().map(|(place, text)| json!({ "place": place, "warning": text })).collect();
        output::print_json(
            "oncely.check/1",
            json!({ "problems": listed, "warnings": warnings, "unreachable": found.unreachable, "notes": found.notes, "fine": fine }),
        )?;
    } else {
        let mut lines = Vec::new();
        lines.extend(found.fine.iter().map(|(what, text)| format!("✓ {what}: {text}")));
        lines.extend(found.warnings.iter().map(|(place, text)| format!("! {place}: {text}")));
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

async fn look(config: &Config, role: Option<Role>, problems: &Problems) -> Preflight {
    let bad = |section: &str| problems.list().iter().any(|p| p.place.starts_with(section));
    let mut found = Preflight::default();
    if !bad("postgres.") {
        preflight::postgres(config, &mut found).await;
    }
    let role = match role {
        Some(role) => role,
        None => of_login(&mut found).await,
    };
    let has_key = config.mirror.as_ref().is_some_and(|mirror| mirror.key.is_some());
    let needs_secret = match role {
        Role::Worker => true,
        Role::Relay => config.mirror.is_some() && !has_key,
        Role::Operator | Role::Auditor => false,
    };
    if role == Role::Worker {
        preflight::handlers(config, &mut found).await;
    }
    if needs_secret && let Some(mut session) = found.session.take() {
        found.read_secret(config, &mut session).await;
        found.session = Some(session);
    }
    if role != Role::Auditor && !bad("rabbitmq.") {
        // A relay publishes where an event says.
        preflight::rabbitmq(config, role != Role::Relay, &mut found).await;
    }
    if let Some(settings) = &config.mirror
        && matches!(role, Role::Worker | Role::Relay)
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
    let role = format!("{role:?}").to_lowercase();
    found.fine.push(("checked as".to_owned(), role));
    found
}

/// The first of the roles that the login has; a superuser has all.
async fn of_login(found: &mut Preflight) -> Role {
    let Some(mut session) = found.session.take() else { return Role::Worker };
    let roles = pg::login_roles(&mut session.connection).await;
    found.session = Some(session);
    // Without an answer, and without any role, everything is looked at.
    let roles = roles.unwrap_or_default();
    let all = [
        ("oncely_worker", Role::Worker),
        ("oncely_relay", Role::Relay),
        ("oncely_operator", Role::Operator),
        ("oncely_auditor", Role::Auditor),
    ];
    let first = all.iter().find(|(name, _)| roles.iter().any(|role| role == name));
    first.map_or(Role::Worker, |(_, role)| *role)
}
