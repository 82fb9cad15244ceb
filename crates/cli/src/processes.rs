//! `oncely processes forget`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;

use super::connection::connect;
use super::{operator, output};
use oncely_ops::exit;
use oncely_postgres as pg;

const SCHEMA: &str = "oncely.processes/1";

#[derive(Debug, Subcommand)]
pub(super) enum ProcessesCommand {
    /// Forget processes that ended without a sign-off and do not return: `status` no longer lists them
    #[command(
        after_help = "Applies to silent processes only. One that is still running is listed again with its next \
                      heartbeat. A process that was killed and started again, on the same host and under the same \
                      name, need not be forgotten. Exit 1: no process matches."
    )]
    Forget(ForgetArguments),
}

#[derive(Debug, Args)]
pub(super) struct ForgetArguments {
    /// Only processes on this host
    #[arg(long)]
    host: Option<String>,
    /// Only processes with this name
    #[arg(long)]
    name: Option<String>,
    /// Only the process with this number on its host
    #[arg(long)]
    pid: Option<i32>,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, verb: ProcessesCommand) -> crate::VerbResult {
    let ProcessesCommand::Forget(ForgetArguments { host, name, pid, note, json }) = verb;
    let mut connection = connect(file, "oncely processes").await?;
    let selection = (host.as_deref(), name.as_deref(), pid);
    let forgotten_count =
        pg::forget_processes(&mut connection, selection, &operator::name(), note.as_deref())
            .await
            .context("forgetting processes (role oncely_operator)")?;
    output::print_note(&match forgotten_count {
        0 => "nothing was changed: no silent process matches".to_owned(),
        1 => "1 process is forgotten".to_owned(),
        count => format!("{count} processes are forgotten"),
    });
    if json {
        output::print_json(SCHEMA, json!({ "forgotten": forgotten_count }))?;
    }
    Ok(if forgotten_count == 0 { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}
