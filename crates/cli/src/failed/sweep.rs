//! `oncely failed sweep`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::output;
use super::SCHEMA;
use oncely_amqp::Topology;
use oncely_config::Config;
use oncely_ops::letters::{LONG, SweepReport, SweepResult, sweep};
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
            .filter(|consumer| !consumer.observes())
            .flat_map(|consumer| consumer.queues.clone())
            .collect(),
    };
    let mut passes = Vec::new();
    for queue in &queues {
        passes.extend(sweep(&config, &mut session, queue, None, &[]).await?);
    }
    session.close().await;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "swept": passes }))?;
    } else {
        passes.iter().for_each(report);
    }
    Ok(ExitCode::SUCCESS)
}

fn report(swept: &SweepReport) {
    let SweepReport { queue, dropped, requeued, kept, forgotten, unreadable_marks, unproven: _ } = swept;
    let dead = Topology::dead_letter_queue(queue);
    output::note(&format!("swept {dead}: {dropped} gone, {requeued} requeued from there, {kept} stay"));
    if *forgotten > 0 {
        output::note(&format!(
            "! {forgotten} of an earlier requeue that was broken off were not published: their keys are not remembered any more \
             (`oncely failed requeue --queue {queue} --dry-run` says what is known of them)"
        ));
    }
    unreadable_marks.advice(queue).iter().for_each(|line| output::note(line));
}

/// Prints the sweeps that followed a change; returns the completed ones.
pub(super) fn report_passes(passes: &[SweepResult]) -> Vec<&SweepReport> {
    let mut made = Vec::new();
    for pass in passes {
        match pass {
            SweepResult::Done(swept) => {
                report(swept);
                made.push(swept);
            }
            SweepResult::TooLong(queue) => output::note(&format!(
                "{} holds more than {LONG} messages and was not swept: run `oncely failed sweep --queue {queue}`",
                Topology::dead_letter_queue(queue)
            )),
        }
    }
    made
}
