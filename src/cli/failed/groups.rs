//! `oncely failed groups`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::output::{self, Times, safe};
use super::{SCHEMA, Which, reader};
use crate::exit;
use crate::pg::{LetterGroup, letter_groups};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let mut connection = reader(file).await?;
    let groups = letter_groups(&mut connection, &arguments.which.filter(50)).await?;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "groups": groups }))?;
    } else if groups.is_empty() {
        output::note("no dead letter matches");
    } else {
        output::print(&table(&groups, times))?;
    }
    Ok(if groups.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

fn table(groups: &[LetterGroup], times: Times) -> String {
    let mut table = output::table(["GROUP", "CONSUMER", "WAITING", "FIRST", "LAST", "REQUEUED", "DETAIL"]);
    for group in groups {
        table.add_row([
            group.failure_group.clone(),
            safe(&group.consumer),
            (group.waiting + group.requeueing).to_string(),
            times.show(group.first_at),
            times.show(group.last_at),
            requeued(group),
            safe(group.detail.as_deref().unwrap_or_default()),
        ]);
    }
    table.to_string()
}

/// What became of those that somebody decided on.
fn requeued(group: &LetterGroup) -> String {
    let decided = group.requeued + group.came_back;
    let mut text = match decided {
        0 => String::new(),
        _ => format!("came back: {} of {decided}", group.came_back),
    };
    if group.requeueing > 0 {
        text.push_str(&format!(" ({} not finished: requeue again)", group.requeueing));
    }
    if group.discarded > 0 {
        text.push_str(&format!(" ({} discarded)", group.discarded));
    }
    text.trim_start().to_owned()
}
