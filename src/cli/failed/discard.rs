//! `oncely failed discard`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use sqlx::Connection as _;

use super::super::consent::Consent;
use super::super::output::{self, Times};
use super::super::session;
use super::plan::{Change, Plan};
use super::sweep;
use super::swept::Swept;
use crate::config::Config;
use crate::pg;

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
    let open = ["waiting", "requeueing"];
    let mut plan = Plan::make(&mut session, &change, "discard", &open, |_| None).await?;
    let unfinished = plan.letters.iter().filter(|letter| letter.state == "requeueing").count();
    plan.note(
        unfinished,
        "from an earlier requeue that was broken off: a copy that is in its queue already runs",
    );
    let now = session.clock.now();
    if let Consent::Over(code) = plan.agree(&change)? {
        return Ok(code);
    }
    let mut transaction = session.connection.begin().await?;
    let done = pg::change_letters(&mut transaction, now, &plan.names(), &open, "discarded").await?;
    plan.record(&mut transaction, &done, change.agreement.note.as_deref()).await?;
    transaction.commit().await?;
    output::note(&format!("discarded {}", done.len()));
    let swept: Vec<Swept> = sweep::after_change(&config, &mut session, &plan.queues(), &[]).await?;
    if change.agreement.json {
        plan.print_json(false, json!({ "done": done.len(), "swept": swept }))?;
    }
    session.close().await;
    Ok(ExitCode::SUCCESS)
}
