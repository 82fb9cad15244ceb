//! `oncely failed sweep`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::output;
use super::SCHEMA;
use oncely_amqp::Topology;
use oncely_config::Config;
use oncely_ops::letters::{MAX_AUTOMATIC_MESSAGES, SweepReport, SweepResult, sweep};
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
#[command(after_help = "Runs by itself after requeue and discard. Several may run at the same time.")]
pub(crate) struct SweepArguments {
    /// Only the dead letters of this queue [default: all configured ones]
    #[arg(long)]
    queue: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: SweepArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let queues: Vec<String> = match arguments.queue {
        Some(queue) => vec![queue],
        None => config
            .consumers
            .iter()
            .filter(|consumer| !consumer.is_observer())
            .flat_map(|consumer| consumer.queues.clone())
            .collect(),
    };
    let mut reports = Vec::new();
    for queue in &queues {
        reports.extend(sweep(&config, &mut session, queue, None, &[]).await?);
    }
    session.close().await;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "swept": reports }))?;
    } else {
        reports.iter().for_each(print_sweep);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the result of a sweep, with advice on messages that it left.
fn print_sweep(report: &SweepReport) {
    let SweepReport { queue, dropped, requeued, kept, forgotten, unreadable_marks, unproven: _ } = report;
    let dead = Topology::dead_letter_queue(queue);
    output::print_note(&format!("swept {dead}: {dropped} gone, {requeued} requeued from there, {kept} stay"));
    if *forgotten > 0 {
        output::print_note(&format!(
            "! {forgotten} of an earlier requeue that was broken off were not published: their keys are not remembered any more \
             (`oncely failed requeue --queue {queue} --dry-run` says what is known of them)"
        ));
    }
    unreadable_marks.advice(queue).iter().for_each(|line| output::print_note(line));
}

/// Prints the results of the sweeps after a change; returns the reports of the completed ones.
pub(super) fn print_sweeps(results: &[SweepResult]) -> Vec<&SweepReport> {
    let mut reports = Vec::new();
    for result in results {
        match result {
            SweepResult::Done(report) => {
                print_sweep(report);
                reports.push(report);
            }
            SweepResult::TooLong(queue) => output::print_note(&format!(
                "{} holds more than {MAX_AUTOMATIC_MESSAGES} messages and was not swept: run `oncely failed sweep --queue {queue}`",
                Topology::dead_letter_queue(queue)
            )),
        }
    }
    reports
}
