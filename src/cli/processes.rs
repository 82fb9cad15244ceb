//! `oncely processes forget`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;

use super::connection::connect;
use super::{consent, output};
use crate::exit;
use crate::pg;

const SCHEMA: &str = "oncely.processes/1";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Forget processes that ended without a word and do not come back: `status` no longer tells of them
    #[command(
        after_help = "Only of processes that are silent. One that lives after all is there again with its next heartbeat. A process \
                            that was killed and started again, on the same host and under the same name, needs none of it. Exit 1: none \
                            matches."
    )]
    Forget(Forget),
}

#[derive(Debug, Args)]
struct Forget {
    /// Only of this host
    #[arg(long)]
    host: Option<String>,
    /// Only of this name
    #[arg(long)]
    name: Option<String>,
    /// Only with this number on its host
    #[arg(long)]
    pid: Option<i32>,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Verb::Forget(Forget { host, name, pid, note, json }) = arguments.verb;
    let mut connection = connect(file, "oncely processes").await?;
    let which = (host.as_deref(), name.as_deref(), pid);
    let gone = pg::forget_processes(&mut connection, which, &consent::user(), note.as_deref())
        .await
        .context("forgetting processes (role oncely_operator)")?;
    output::note(&match gone {
        0 => "nothing was changed: no silent process matches".to_owned(),
        1 => "1 process is forgotten".to_owned(),
        some => format!("{some} processes are forgotten"),
    });
    if json {
        output::print_json(SCHEMA, json!({ "forgotten": gone }))?;
    }
    Ok(if gone == 0 { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}
