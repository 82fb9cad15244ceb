//! `oncely keys settle KEY`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};

use super::super::completions;
use super::super::consent::{self, Agreement, Consent, Proposal};
use super::super::output::{self, age, safe};
use crate::config::Config;
use crate::decide::KeyStatus;
use crate::exit;
use crate::pg::{self, KeyDetails};

const SCHEMA: &str = "oncely.key_settlement/1";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The key, exactly
    key: String,
    /// What you have found where it would have taken effect
    #[arg(long, value_name = "YES|NO")]
    took_effect: Answer,
    /// Whose key; needed where there are several
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer; needed where there are several
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Agree to it without being asked
    #[arg(long)]
    yes: bool,
    /// How you know, for the record
    #[arg(long)]
    note: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Answer {
    /// It did: nothing of this key runs any more
    Yes,
    /// It did not: what comes next with this key runs
    No,
}

struct Plan {
    key: KeyDetails,
    took_effect: bool,
    now: DateTime<Utc>,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = Config::load_postgres(file)?;
    let connected = settings.connect("oncely keys").await;
    let mut connection = connected.with_context(|| format!("cannot connect to {}", settings.shown()))?;
    pg::read_by_index(&mut connection).await?;
    let (tenant, consumer) = (arguments.tenant.as_deref(), arguments.consumer.as_deref());
    let mut found = pg::key_details(&mut connection, &arguments.key, tenant, consumer).await?;
    if found.len() > 1 {
        output::note(&format!("{} is known {} times; name one:", safe(&arguments.key), found.len()));
        for key in &found {
            output::note(&format!("  --tenant {} --consumer {}", safe(&key.tenant), safe(&key.consumer)));
        }
        return Ok(ExitCode::from(exit::USAGE));
    }
    let Some(key) = found.pop() else {
        output::note(&format!("nothing was changed: {} is not known", safe(&arguments.key)));
        if arguments.json {
            output::print_json(SCHEMA, json!({ "key": null, "outcome": "not known" }))?;
        }
        return Ok(ExitCode::from(exit::NO));
    };
    let now = pg::database_time(&mut connection).await?;
    let plan = Plan { key, took_effect: arguments.took_effect == Answer::Yes, now };
    let agreement = Agreement {
        all: false,
        dry_run: arguments.dry_run,
        yes: arguments.yes,
        max: 1,
        note: arguments.note,
        json: arguments.json,
    };
    if let Consent::Over(code) = agreement.seek(&plan)? {
        return Ok(code);
    }
    let (user, note) = (consent::user(), agreement.note.as_deref());
    let done = pg::settle_claim(&mut connection, &plan.key, plan.took_effect, &user, note).await?;
    output::note(match (done, plan.took_effect) {
        (true, true) => "settled: it took effect, and nothing of this key runs any more",
        (true, false) => "settled: it did not take effect, and what comes next with this key runs",
        (false, _) => "nothing was changed: the key has changed meanwhile; look at it again",
    });
    if agreement.json {
        output::print_json(SCHEMA, plan.told(false, if done { "settled" } else { "changed meanwhile" }))?;
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

impl Plan {
    /// How it stands.
    fn state(&self) -> String {
        let KeyDetails { status, reason, completed_at, last_error, owner, .. } = &self.key;
        let ago = completed_at.map(|at| format!(", {} ago", age(at, self.now))).unwrap_or_default();
        let error = last_error.as_deref().map(|error| format!(": {}", safe(error))).unwrap_or_default();
        match status.as_str() {
            status if status == KeyStatus::Completed.as_str() => format!("it took effect{ago}"),
            status if status == KeyStatus::Failed.as_str() => {
                format!("given up as {}{ago}{error}", safe(reason.as_deref().unwrap_or("unknown")))
            }
            _ => match owner.as_deref().filter(|_| !self.key.is_to_settle(self.now)) {
                Some(owner) => {
                    format!("held by {}: wait for its end, or take it: oncely leases release", safe(owner))
                }
                None if self.key.is_to_settle(self.now) => {
                    format!("ran under a lease, and nobody holds it{error}")
                }
                None => format!("it is tried again when its message comes{error}"),
            },
        }
    }

    fn told(&self, dry_run: bool, outcome: &str) -> Value {
        json!({ "key": self.key, "took_effect": self.took_effect, "dry_run": dry_run, "outcome": outcome })
    }
}

impl Proposal for Plan {
    const ROWS: &'static str = "keys";

    fn verb(&self) -> &'static str {
        "settle"
    }

    fn count(&self) -> usize {
        usize::from(self.key.is_to_settle(self.now))
    }

    fn describe(&self) -> String {
        let KeyDetails { tenant, consumer, key, .. } = &self.key;
        let (said, follows) = match self.took_effect {
            true => (
                "it took effect",
                "It is completed without an answer: a retry over HTTP gets 204, a copy of its message is a duplicate.",
            ),
            false => (
                "it did not take effect",
                "The next retry over HTTP is sent on, the next copy of its message runs: if it did take effect, it does so again.",
            ),
        };
        let (consumer, tenant, key) = (safe(consumer), safe(tenant), safe(key));
        format!("settle {consumer} · tenant {tenant} · key {key}: {said}\n  {}\n  ! {follows}", self.state())
    }

    fn print_dry_run(&self) -> anyhow::Result<()> {
        output::print_json(SCHEMA, self.told(true, "nothing was changed"))
    }
}
