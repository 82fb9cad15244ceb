//! `oncely failed park KEY`: parks a message before it runs (again).

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};

use super::super::confirmation::{ChangeOptions, ChangePlan, Confirmation};
use super::super::operator;
use super::super::output::{self, Times, escape, format_age, format_count};
use super::SCHEMA;
use oncely_config::Config;
use oncely_core::decide::KeyStatus;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_ops::exit;
use oncely_postgres::{self as pg, KeyDetails, ParkOutcome};
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
#[command(
    after_help = "The next delivery of the key becomes a dead letter (reason parked) without a run; `oncely failed \
                  requeue --key KEY --tenant TENANT` lets it run again. Works for a key that is retried, that blocks \
                  a worker, or that was not seen yet. Exit 1: it took effect, was given up before, or is locked by \
                  an open transaction. 4: not confirmed.",
    mut_arg("note", |note| note.help("Reason, recorded with the action and the dead letter"))
)]
pub(crate) struct ParkArguments {
    /// Exact key
    key: String,
    /// Tenant of the message
    #[arg(long)]
    tenant: String,
    /// Consumer of the message; required if there are several
    #[arg(long)]
    consumer: Option<String>,
    #[command(flatten)]
    options: ChangeOptions,
}

struct ParkPlan {
    identity: Identity,
    details: Option<KeyDetails>,
    pub now: DateTime<Utc>,
}

pub(super) async fn run(file: &Path, arguments: ParkArguments, _times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let Some(consumer) = find_consumer(&config, arguments.consumer.as_deref()) else {
        let names: Vec<&str> = config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        output::print_note(&format!("--consumer must name one of {}", names.join(", ")));
        return Ok(ExitCode::from(exit::USAGE));
    };
    let part = |what: &str, text: &str| {
        IdentityPart::new(text.as_bytes()).with_context(|| format!("{what} {:?}", escape(text)))
    };
    let identity = Identity {
        tenant: part("the tenant", &arguments.tenant)?,
        consumer,
        key: part("the key", &arguments.key)?,
    };
    let mut session = open_session(&config).await?;
    let details = pg::read_key_details(
        &mut session.connection,
        &arguments.key,
        Some(&arguments.tenant),
        Some(identity.consumer.as_str()),
    )
    .await?
    .pop();
    let now = session.clock.now();
    let plan = ParkPlan { identity, details, now };
    let options = arguments.options;
    if let Confirmation::Exit(code) = options.confirm(&plan)? {
        return Ok(code);
    }
    let (note, user) = (options.note.as_deref(), operator::name());
    let result = match pg::park(&mut session.connection, &plan.identity, note, &user).await {
        // lock_not_available
        Err(error) if error.as_database_error().and_then(|e| e.code()).as_deref() == Some("55P03") => {
            output::print_note("the key is locked by an open transaction: nothing was changed; try again");
            return Ok(ExitCode::from(exit::NO));
        }
        result => result?,
    };
    session.close().await;
    let (outcome, code) = match &result {
        ParkOutcome::Done => ("parked".to_owned(), ExitCode::SUCCESS),
        ParkOutcome::Completed => ("took effect already".to_owned(), ExitCode::from(exit::NO)),
        ParkOutcome::Held => (
            "a run holds it by a lease; wait for its end, or release the lease: oncely leases release"
                .to_owned(),
            ExitCode::from(exit::NO),
        ),
        ParkOutcome::GivenUp(reason) => (format!("given up before: {reason}"), ExitCode::from(exit::NO)),
    };
    match result {
        ParkOutcome::Done => {
            output::print_note("parked: its next delivery becomes a dead letter without having run")
        }
        _ => output::print_note(&format!("nothing was changed: {outcome}")),
    }
    if options.json {
        plan.print_json(false, json!({ "outcome": outcome }))?;
    }
    Ok(code)
}

/// Finds the named consumer, or without a name the only configured one; `None` if no consumer has the name, or without a name if none or
/// several are configured.
fn find_consumer(config: &Config, name: Option<&str>) -> Option<IdentityPart> {
    let mut names = config.consumers.iter().map(|consumer| &consumer.name);
    match name {
        Some(name) => names.find(|other| other.as_str() == name).cloned(),
        None => names.next().filter(|_| names.next().is_none()).cloned(),
    }
}

impl ParkPlan {
    /// Returns the key's identity as JSON.
    fn identity_json(&self) -> Value {
        let Identity { tenant, consumer, key } = &self.identity;
        json!({ "tenant": tenant.as_str(), "consumer": consumer.as_str(), "key": key.as_str() })
    }
}

impl ChangePlan for ParkPlan {
    const ROWS: &'static str = "keys";
    const SCHEMA: &'static str = SCHEMA;

    fn verb(&self) -> &'static str {
        "park"
    }

    fn count(&self) -> usize {
        let is_open = |details: &KeyDetails| details.status == KeyStatus::InProgress.as_str();
        usize::from(self.details.as_ref().is_none_or(is_open))
    }

    fn describe(&self) -> String {
        let Identity { tenant, consumer, key } = &self.identity;
        let (consumer, tenant, key) =
            (escape(consumer.as_str()), escape(tenant.as_str()), escape(key.as_str()));
        let head = format!("park {consumer} · tenant {tenant} · key {key}");
        let state = match &self.details {
            None => "not known: not seen yet, or at work for the first time".to_owned(),
            Some(details) if details.status == KeyStatus::Completed.as_str() => {
                "it took effect already".to_owned()
            }
            Some(details) if details.status == KeyStatus::Failed.as_str() => {
                format!("it was given up before: {}", escape(details.reason.as_deref().unwrap_or("unknown")))
            }
            Some(details) => {
                let error = details.last_error.as_deref().unwrap_or("none");
                let since = format_age(details.created_at, self.now);
                format!(
                    "{} since {since}, last error: {}",
                    format_count(details.attempts, "attempt"),
                    escape(error)
                )
            }
        };
        format!("{head}\n  {state}")
    }

    fn to_json(&self) -> Value {
        json!({ "verb": "park", "count": self.count(), "identity": self.identity_json(), "known": self.details })
    }
}
