//! `oncely gc run`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::output::{self, Times};
use super::session;
use crate::config::Config;
use crate::maintenance::{keep_partitions, plan, sweep};
use crate::pg::{ConsumerSweep, SweepReport};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Delete keys past their retention and keep the audit partitions, now
    Run {
        /// Only count
        #[arg(long)]
        dry_run: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let Verb::Run { dry_run, json } = arguments.verb;
    let config = Config::load(file)?;
    // Refuses another cell than the configured one: nothing is deleted there.
    let mut session = session::open(&config).await?;
    let (report, made, dropped) = if dry_run {
        (plan(&config, &mut session).await?, Vec::new(), Vec::new())
    } else {
        let (made, dropped) = keep_partitions(&config.audit, &mut session).await?;
        let Some(report) = sweep(&config, &mut session, || false).await? else {
            output::note("another sweeper is at work; nothing to do here");
            if json {
                output::print_json("oncely.gc/1", json!({ "dry_run": false, "busy": true }))?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        (report, made, dropped)
    };
    let SweepReport { consumers: reports, expired } = report;
    session.close().await;
    if json {
        let consumers: Vec<_> = reports
            .iter()
            .map(|ConsumerSweep { consumer, before, deleted: [completed, failed, in_progress] }| {
                json!({
                    "consumer": consumer, "before": before, "completed": completed, "failed": failed,
                    "in_progress": in_progress,
                })
            })
            .collect();
        output::print_json(
            "oncely.gc/1",
            json!({
                "dry_run": dry_run, "busy": false, "consumers": consumers, "expired": expired, "partitions_made": made,
                "partitions_dropped": dropped,
            }),
        )?;
    } else {
        let mut table = output::table(["CONSUMER", "OLDER THAN", "COMPLETED", "FAILED", "IN PROGRESS"]);
        for ConsumerSweep { consumer, before, deleted: [completed, failed, in_progress] } in &reports {
            table.add_row([
                consumer.clone(),
                times.show(*before),
                completed.to_string(),
                failed.to_string(),
                in_progress.to_string(),
            ]);
        }
        output::print(&table.to_string())?;
        if expired > 0 {
            output::print(&format!("keys of oncely.claim, past their own end: {expired}"))?;
        }
        output::note(if dry_run { "dry run: nothing was deleted" } else { "deleted" });
    }
    Ok(ExitCode::SUCCESS)
}
