//! `oncely leases release KEY`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};

use super::super::completions;
use super::super::consent::{self, Agreement, Consent, Proposal};
use super::super::output::{self, age, safe};
use super::super::session;
use crate::config::Config;
use crate::exit;
use crate::pg::{self, HeldLease, LeaseFilter};

const SCHEMA: &str = "oncely.lease_release/1";
/// More of one key are not told apart by hand.
const MOST: i64 = 20;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The key, exactly
    key: String,
    /// Whose message it is; needed where there are several
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
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

struct Plan {
    lease: HeldLease,
    now: DateTime<Utc>,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    pg::read_by_index(&mut session.connection).await?;
    let filter = LeaseFilter {
        tenant: arguments.tenant,
        consumer: arguments.consumer,
        key: Some(arguments.key.clone()),
        limit: MOST,
        ..LeaseFilter::default()
    };
    let now = session.clock.now();
    let mut held = pg::held_leases(&mut session.connection, &filter, now).await?;
    if held.len() > 1 {
        output::note("this key is held more than once; name one:");
        for lease in &held {
            output::note(&format!("  --tenant {} --consumer {}", safe(&lease.tenant), safe(&lease.consumer)));
        }
        return Ok(ExitCode::from(exit::USAGE));
    }
    let Some(lease) = held.pop() else {
        output::note(&format!("nothing was changed: no run holds {} by a lease", safe(&arguments.key)));
        if arguments.json {
            output::print_json(
                SCHEMA,
                json!({ "key": arguments.key, "lease": null, "outcome": "nobody holds it" }),
            )?;
        }
        return Ok(ExitCode::from(exit::NO));
    };
    let plan = Plan { lease, now };
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
    let done = pg::revoke_lease(&mut session.connection, &plan.lease, &user, note).await?;
    session.close().await;
    output::note(match done {
        true => {
            "released: the run that held it can complete nothing any more, and the next copy runs at once"
        }
        false => "nothing was changed: that run holds it no more, or another one does; list the leases again",
    });
    if agreement.json {
        output::print_json(SCHEMA, plan.told(false, if done { "released" } else { "another lease" }))?;
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

impl Plan {
    fn told(&self, dry_run: bool, outcome: &str) -> Value {
        json!({ "key": self.lease.key, "dry_run": dry_run, "lease": self.lease, "outcome": outcome })
    }
}

impl Proposal for Plan {
    const ROWS: &'static str = "leases";

    fn verb(&self) -> &'static str {
        "release"
    }

    fn count(&self) -> usize {
        1
    }

    fn describe(&self) -> String {
        let HeldLease { tenant, consumer, key, owner, since, .. } = &self.lease;
        let mut lines = vec![
            format!("release {} · tenant {} · key {}", safe(consumer), safe(tenant), safe(key)),
            format!(
                "  held by {} for {}, {}",
                safe(owner),
                age(*since, self.now),
                super::remaining(&self.lease)
            ),
        ];
        if let Some(steps) = self.lease.steps.as_deref().filter(|steps| !steps.is_empty()) {
            lines.push(format!("  steps: {}", safe(&super::steps(steps))));
        }
        lines.extend(self.lease.consequences().into_iter().map(|line| format!("  ! {}", safe(&line))));
        lines.join("\n")
    }

    fn print_dry_run(&self) -> anyhow::Result<()> {
        output::print_json(SCHEMA, self.told(true, "nothing was changed"))
    }
}
