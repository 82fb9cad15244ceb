//! `oncely gc run`.

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::operator;
use super::output::{self, Times, escape};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, CollectionReport, ConsumerCollection};
use oncely_process::preflight::open_session;
use oncely_relay::maintenance::{
    CollectionOutcome, PartitionReport, collect, describe_clock_refusal, maintain_partitions, plan_collection,
};

/// The schema of the JSON object.
const SCHEMA: &str = "oncely.gc/1";

#[derive(Debug, Subcommand)]
pub(super) enum GcCommand {
    /// Delete keys past their retention and maintain the audit partitions now
    #[command(
        after_help = "The retention of keys is stored in the database: `oncely retention list`. Exit 4: nothing was \
                      deleted, since the database's clock jumped without an explanation; use --accept-clock if it is \
                      right."
    )]
    Run {
        /// Only count
        #[arg(long)]
        dry_run: bool,
        /// Accept the database's clock although it jumped far ahead without an explanation
        #[arg(long, conflicts_with = "dry_run")]
        accept_clock: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(file: &Path, verb: GcCommand, times: Times) -> crate::VerbResult {
    let GcCommand::Run { dry_run, accept_clock, json } = verb;
    let config = Config::load_without_broker(file)?;
    // Refuses a cell other than the configured one: nothing is deleted there.
    let mut session = open_session(&config).await?;
    if accept_clock {
        pg::accept_clock(&mut session.connection, &operator::name(), None).await?;
    }
    let (report, partitions) = if dry_run {
        (plan_collection(&mut session).await?, PartitionReport::default())
    } else {
        let partitions = maintain_partitions(&config, &mut session, || false).await?;
        for problem in partitions.notes.iter().chain(&partitions.failures) {
            output::print_note(&format!("! {problem}"));
        }
        match collect(&config, &mut session, || false).await? {
            CollectionOutcome::Done(report) => (report, partitions),
            CollectionOutcome::Busy => {
                output::print_note("another collection is at work; nothing to do here");
                if json {
                    output::print_json(SCHEMA, json!({ "dry_run": false, "busy": true }))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            CollectionOutcome::Refused(clock) => {
                if json {
                    let why = describe_clock_refusal(&clock);
                    output::print_json(SCHEMA, json!({ "dry_run": false, "busy": false, "refused": why }))?;
                }
                return Ok(ExitCode::from(exit::REFUSED));
            }
        }
    };
    session.close().await;
    for consumer in &config.consumers {
        if !report.consumers.iter().any(|collection| collection.consumer == consumer.name.as_str()) {
            output::print_note(&format!(
                "! {}: no worker has started with it on this database, so nothing of it is collected",
                escape(consumer.name.as_str())
            ));
        }
    }
    for failure in &report.failures {
        output::print_note(&format!("! {failure}"));
    }
    if json {
        print_report_json(dry_run, &report, &partitions)?;
    } else {
        print_report_table(dry_run, &report, times)?;
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report of a collection and of the partitions as JSON.
fn print_report_json(
    dry_run: bool,
    report: &CollectionReport,
    partitions: &PartitionReport,
) -> anyhow::Result<()> {
    let consumers: Vec<_> = report
        .consumers
        .iter()
        .map(|ConsumerCollection { consumer, before, deleted: [completed, failed, in_progress] }| {
            json!({
                "consumer": consumer, "before": before, "completed": completed, "failed": failed,
                "in_progress": in_progress,
            })
        })
        .collect();
    output::print_json(
        SCHEMA,
        json!({
            "dry_run": dry_run, "busy": false, "consumers": consumers, "expired": report.expired,
            "partitions_made": partitions.made, "partitions_dropped": partitions.dropped, "seals": partitions.seals,
            "failures": partitions.failures.iter().chain(&report.failures).collect::<Vec<_>>(),
            "notes": partitions.notes,
        }),
    )
}

/// Prints the collected rows of each consumer as a table; a dry run only counted them.
fn print_report_table(dry_run: bool, report: &CollectionReport, times: Times) -> anyhow::Result<()> {
    let mut table = output::new_table(&["CONSUMER", "OLDER THAN", "COMPLETED", "FAILED", "IN PROGRESS"]);
    for ConsumerCollection { consumer, before, deleted: [completed, failed, in_progress] } in
        &report.consumers
    {
        table.add_row([
            escape(consumer),
            times.format_time(*before),
            completed.to_string(),
            failed.to_string(),
            in_progress.to_string(),
        ]);
    }
    output::print(&table.to_string())?;
    if report.expired > 0 {
        output::print(&format!("keys of oncely.claim, past their own end: {}", report.expired))?;
    }
    output::print_note(if dry_run { "dry run: nothing was deleted" } else { "deleted" });
    Ok(())
}
