//! `oncely keys settle KEY`.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::super::confirmation::{ChangeOptions, ChangePlan, Confirmation};
use super::super::connection::connect;
use super::super::key_name::{KeyName, choose_row};
use super::super::operator;
use super::super::output::{self, escape, format_age};
use oncely_core::decide::KeyStatus;
use oncely_ops::exit;
use oncely_postgres::{self as pg, KeyDetails};

const SCHEMA: &str = "oncely.key_settlement/1";

#[derive(Debug, Args)]
#[command(mut_arg("note", |note| note.help("Reason, recorded with the action")))]
pub(crate) struct KeySettleArguments {
    /// Result of your check of whether the key took effect
    #[arg(long, value_name = "YES|NO")]
    took_effect: EffectAnswer,
    #[command(flatten)]
    name: KeyName,
    #[command(flatten)]
    options: ChangeOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EffectAnswer {
    /// It took effect: the key runs no more
    Yes,
    /// It did not: the next message or request with this key runs
    No,
}

struct SettlePlan {
    key: KeyDetails,
    took_effect: bool,
    pub now: DateTime<Utc>,
}

pub(super) async fn run(file: &Path, arguments: KeySettleArguments) -> crate::VerbResult {
    let mut connection = connect(file, "oncely keys").await?;
    pg::prefer_indexes(&mut connection).await?;
    let KeySettleArguments { took_effect, name: KeyName { key, tenant, consumer }, options } = arguments;
    let rows = pg::read_key_details(&mut connection, &key, tenant.as_deref(), consumer.as_deref()).await?;
    let several = |count| format!("{} is known {count} times", escape(&key));
    let details = match choose_row(rows, several, |key| (&key.tenant, &key.consumer)) {
        Ok(Some(details)) => details,
        Ok(None) => {
            output::print_note(&format!("nothing was changed: {} is not known", escape(&key)));
            if options.json {
                output::print_json(SCHEMA, json!({ "key": null, "outcome": "not known" }))?;
            }
            return Ok(ExitCode::from(exit::NO));
        }
        Err(code) => return Ok(code),
    };
    let now = pg::read_database_time(&mut connection).await?;
    let plan = SettlePlan { key: details, took_effect: took_effect == EffectAnswer::Yes, now };
    if let Confirmation::Exit(code) = options.confirm(&plan)? {
        return Ok(code);
    }
    let (user, note) = (operator::name(), options.note.as_deref());
    let is_settled = pg::settle_claim(&mut connection, &plan.key, plan.took_effect, &user, note).await?;
    output::print_note(match (is_settled, plan.took_effect) {
        (true, true) => "settled: it took effect; the key runs no more",
        (true, false) => "settled: it did not take effect; the next message or request with this key runs",
        (false, _) => "nothing was changed: the key has changed meanwhile; check it again",
    });
    if options.json {
        plan.print_json(
            false,
            json!({ "outcome": if is_settled { "settled" } else { "changed meanwhile" } }),
        )?;
    }
    Ok(if is_settled { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

impl SettlePlan {
    /// Describes the state of the key.
    fn describe_state(&self) -> String {
        let KeyDetails { status, reason, completed_at, last_error, owner, .. } = &self.key;
        let ago = completed_at.map(|at| format!(", {} ago", format_age(at, self.now))).unwrap_or_default();
        let error = last_error.as_deref().map(|error| format!(": {}", escape(error))).unwrap_or_default();
        match status.as_str() {
            status if status == KeyStatus::Completed.as_str() => format!("it took effect{ago}"),
            status if status == KeyStatus::Failed.as_str() => {
                format!("given up as {}{ago}{error}", escape(reason.as_deref().unwrap_or("unknown")))
            }
            _ => match owner.as_deref().filter(|_| !self.key.is_to_settle(self.now)) {
                Some(owner) => {
                    format!("held by {}: wait for its end, or take it: oncely leases release", escape(owner))
                }
                None if self.key.is_to_settle(self.now) => {
                    format!("ran under a lease, and is not held{error}")
                }
                None => format!("it is tried again when its message comes{error}"),
            },
        }
    }
}

impl ChangePlan for SettlePlan {
    const ROWS: &'static str = "keys";
    const SCHEMA: &'static str = SCHEMA;

    fn verb(&self) -> &'static str {
        "settle"
    }

    fn count(&self) -> usize {
        usize::from(self.key.is_to_settle(self.now))
    }

    fn describe(&self) -> String {
        let KeyDetails { tenant, consumer, key, .. } = &self.key;
        let (finding, consequence) = match self.took_effect {
            true => (
                "it took effect",
                "It is completed without an answer: a retry over HTTP gets 204, a copy of its message is a duplicate.",
            ),
            false => (
                "it did not take effect",
                "The next retry over HTTP is sent on, the next copy of its message runs: if it did take effect, it does so again.",
            ),
        };
        let (consumer, tenant, key) = (escape(consumer), escape(tenant), escape(key));
        format!(
            "settle {consumer} · tenant {tenant} · key {key}: {finding}\n  {}\n  ! {consequence}",
            self.describe_state()
        )
    }

    fn to_json(&self) -> Value {
        json!({ "key": self.key, "took_effect": self.took_effect })
    }
}
