//! `oncely failed discard`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::consent::{self, Consent};
use super::super::output::{self, Times};
use super::super::session;
use super::plan::{Change, print_json};
use super::sweep;
use crate::config::Config;
use crate::letters::{self, Decision, Plan, Swept};

#[derive(Debug, Args)]
#[command(
    after_help = "A discarded message does not run, and its key stays as it is. Of a requeue that was broken off a copy may be on \
                  its way already: that one runs. Exit 1: none matches. 4: nobody agreed."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    change: Change,
}

pub(super) async fn run(file: &Path, arguments: Arguments, _times: Times) -> anyhow::Result<ExitCode> {
    let change = arguments.change;
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let now = session.clock.now();
    let made =
        Plan::make(&mut session.connection, now, letters::Change::Discard, change.filter(), |_| None).await;
    let plan = made?;
    if let Consent::Over(code) = change.agree(&plan)? {
        return Ok(code);
    }
    let (filter, user) = (serde_json::to_value(&plan.filter)?, consent::user());
    let decision = Decision { user: &user, filter: &filter, reason: change.agreement.note.as_deref() };
    let done = letters::discard(&mut session, &plan.names(), decision).await?;
    output::note(&format!("discarded {}", done.len()));
    let swept: Vec<Swept> = sweep::after_change(&config, &mut session, &plan.queues(), &[]).await?;
    if change.agreement.json {
        print_json(&plan, false, json!({ "done": done.len(), "swept": swept }))?;
    }
    session.close().await;
    Ok(ExitCode::SUCCESS)
}
