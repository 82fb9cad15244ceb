//! `oncely check`: the configuration, then the servers; all problems at once.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output;
use crate::config::{Config, Problems, masked};
use crate::exit;
use crate::mirror::Mirror;
use crate::pg::{self, LoginRole};
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

impl Role {
    const ALL: [Self; 4] = [Self::Worker, Self::Relay, Self::Operator, Self::Auditor];

    /// PostgreSQL's.
    fn name(self) -> &'static str {
        match self {
            Self::Worker => "oncely_worker",
            Self::Relay => "oncely_relay",
            Self::Operator => "oncely_operator",
            Self::Auditor => "oncely_auditor",
        }
    }
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
    let roles = roles(&mut found).await;
    let has = |role: Role| roles.iter().any(|one| one.role == role.name() && one.granted);
    // The first that the login has. A superuser has all; without an answer, and without any role, everything is looked at.
    let role = role.or_else(|| Role::ALL.into_iter().find(|role| has(*role))).unwrap_or(Role::Worker);
    if !has(role)
        && let Some(LoginRole { login, .. }) = roles.iter().find(|one| one.role == role.name())
    {
        let what = format!(
            "the login {login} has not the role {0}, which this work takes: grant {0} to {login}",
            role.name()
        );
        found.problems.add("postgres.url", what);
    }
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

/// Oncely's roles, and which of them the login has; none where nobody can be asked.
async fn roles(found: &mut Preflight) -> Vec<LoginRole> {
    let Some(mut session) = found.session.take() else { return Vec::new() };
    let roles = pg::login_roles(&mut session.connection).await;
    found.session = Some(session);
    roles.unwrap_or_default()
}
