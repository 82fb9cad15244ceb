//! `oncely leases release KEY`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};

use super::super::confirmation::{ChangeOptions, ChangePlan, Confirmation};
use super::super::key_name::{KeyName, choose_row};
use super::super::operator;
use super::super::output::{self, escape, format_age};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, HeldLease, LeaseFilter};
use oncely_process::preflight::open_session;

const SCHEMA: &str = "oncely.lease_release/1";
/// Maximum number of leases of one key that are read, and listed if there are several.
const MAX_LEASES: i64 = 20;

#[derive(Debug, Args)]
pub(crate) struct LeaseReleaseArguments {
    #[command(flatten)]
    name: KeyName,
    #[command(flatten)]
    options: ChangeOptions,
}

struct LeaseReleasePlan {
    lease: HeldLease,
    pub now: DateTime<Utc>,
}

pub(super) async fn run(file: &Path, arguments: LeaseReleaseArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    pg::prefer_indexes(&mut session.connection).await?;
    let LeaseReleaseArguments { name: KeyName { key, tenant, consumer }, options } = arguments;
    let filter =
        LeaseFilter { tenant, consumer, key: Some(key.clone()), limit: MAX_LEASES, ..LeaseFilter::default() };
    let now = session.clock.now();
    let leases = pg::list_held_leases(&mut session.connection, &filter, now).await?;
    let several = |_| "this key is held more than once".to_owned();
    let lease = match choose_row(leases, several, |lease| (&lease.tenant, &lease.consumer)) {
        Ok(Some(lease)) => lease,
        Ok(None) => {
            output::print_note(&format!("nothing was changed: no run holds {} by a lease", escape(&key)));
            if options.json {
                output::print_json(SCHEMA, json!({ "key": key, "lease": null, "outcome": "not held" }))?;
            }
            return Ok(ExitCode::from(exit::NO));
        }
        Err(code) => return Ok(code),
    };
    let plan = LeaseReleasePlan { lease, now };
    if let Confirmation::Exit(code) = options.confirm(&plan)? {
        return Ok(code);
    }
    let (user, note) = (operator::name(), options.note.as_deref());
    let is_released = pg::revoke_lease(&mut session.connection, &plan.lease, &user, note).await?;
    session.close().await;
    output::print_note(match is_released {
        true => "released: the run that held it can complete nothing, and the next copy runs at once",
        false => "nothing was changed: that run no longer holds it, or another does; list the leases again",
    });
    if options.json {
        plan.print_json(false, json!({ "outcome": if is_released { "released" } else { "another lease" } }))?;
    }
    Ok(if is_released { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

impl ChangePlan for LeaseReleasePlan {
    const ROWS: &'static str = "leases";
    const SCHEMA: &'static str = SCHEMA;

    fn verb(&self) -> &'static str {
        "release"
    }

    fn count(&self) -> usize {
        1
    }

    fn describe(&self) -> String {
        let HeldLease { tenant, consumer, key, owner, since, .. } = &self.lease;
        let mut lines = vec![
            format!("release {} · tenant {} · key {}", escape(consumer), escape(tenant), escape(key)),
            format!(
                "  held by {} for {}, {}",
                escape(owner),
                format_age(*since, self.now),
                super::format_remaining(&self.lease)
            ),
        ];
        if let Some(steps) = self.lease.steps.as_deref().filter(|steps| !steps.is_empty()) {
            lines.push(format!("  steps: {}", escape(&super::format_steps(steps))));
        }
        lines.extend(
            self.lease.describe_consequences().into_iter().map(|line| format!("  ! {}", escape(&line))),
        );
        lines.join("\n")
    }

    fn to_json(&self) -> Value {
        json!({ "key": self.lease.key, "lease": self.lease })
    }
}
