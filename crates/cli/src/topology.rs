//! `oncely topology apply|show`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use serde::Serialize;

use super::observer_bindings;
use super::output::{self, List, Output, Row, Times};
use oncely_amqp::{ExistingObject, RefusedObject, Topology, TopologyReport, connect};
use oncely_config::Config;
use oncely_ops::exit;

#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum TopologyCommand {
    /// Declare each consumer's queue with its dead-letter and retry queues; existing ones are not changed
    Apply,
    /// Show existing and missing queues and exchanges; exit 1 if any is missing
    Show {
        #[command(flatten)]
        output: Output,
    },
}

/// A consumed queue, with its retry and dead-letter queues.
#[derive(Debug, Default, Serialize)]
struct QueueRow {
    queue: String,
    /// Null if the queue does not exist.
    ready: Option<u32>,
    /// Messages in its dead-letter queue.
    dead: Option<u32>,
    subscriptions: Option<u32>,
    /// Missing queues and exchanges.
    missing: Vec<String>,
}

impl QueueRow {
    fn new(queue: &str, report: TopologyReport) -> Self {
        let missing = [report.missing_queues, report.missing_exchanges, report.missing_sources];
        Self {
            queue: queue.to_owned(),
            ready: report.ready,
            dead: report.dead,
            subscriptions: report.subscriptions,
            missing: missing.into_iter().flatten().collect(),
        }
    }
}

impl Row for QueueRow {
    const SCHEMA: &'static str = "oncely.topology.queue/1";
    const HEADS: &'static [&'static str] = &["QUEUE", "READY", "DEAD", "CONSUMERS", "MISSING"];

    fn cells(&self, _: Times) -> Vec<String> {
        let show = |count: Option<u32>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        vec![
            self.queue.clone(),
            show(self.ready),
            show(self.dead),
            show(self.subscriptions),
            self.missing.join(", "),
        ]
    }
}

pub(super) async fn run(file: &Path, verb: TopologyCommand, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let server = config.rabbitmq.redacted();
    let connection = connect(&config.rabbitmq, "oncely topology")
        .await
        .with_context(|| format!("cannot connect to {server}"))?;
    let limit = config.rabbitmq.timeout;
    let topologies = config.consumers.iter().flat_map(Topology::for_consumer);
    if let TopologyCommand::Show { output } = verb {
        let mut rows = Vec::new();
        for topology in topologies {
            rows.push(QueueRow::new(topology.queue(), topology.inspect(&connection, limit).await?));
        }
        let code = List {
            schema: "oncely.topology/1",
            field: "queues",
            rows: &rows,
            none: "no consumer is configured",
        }
        .print(output, times)?;
        let missing = rows.iter().any(|row| !row.missing.is_empty());
        return Ok(if missing { ExitCode::from(exit::NO) } else { code });
    }
    let mut code = ExitCode::SUCCESS;
    for mut topology in topologies {
        if let Some(observed) = topology.observed_queue() {
            match observer_bindings::resolve_bindings(observed, topology.bindings(), &config).await {
                Ok(bindings) => topology = topology.with_bindings(bindings),
                Err(why) => {
                    output::print_note(&format!("{}: {why}", topology.queue()));
                    code = ExitCode::from(exit::NO);
                    continue;
                }
            }
        }
        let report = topology
            .apply(&connection, limit)
            .await
            .map_err(|(name, error)| anyhow::Error::new(error).context(format!("declaring {name}")))?;
        output::print(&report.done.join("\n"))?;
        if report.is_unbound {
            output::print_note(&format!(
                "queue {} is new: what was bound to an earlier one of this name is gone; bind it, or name its bindings in the \
                 configuration",
                topology.queue()
            ));
        }
        for object in &report.refused {
            output::print_note(&describe_refusal(object));
            code = ExitCode::from(exit::NO);
        }
    }
    Ok(code)
}

/// Describes the broker's refusal, the existing queue or exchange, and the remedies.
fn describe_refusal(RefusedObject { name, error, existing }: &RefusedObject) -> String {
    match existing {
        ExistingObject::Same => format!(
            "{name} exists, and can't be declared as configured; it is left as it is: {error}\n  \
             it has other arguments, or the broker does not take one of these for it. Where it is rightly as it is, name its further \
             arguments in queue_arguments, or leave it to whoever declares it (declare = false); else delete it when it is empty and \
             apply again"
        ),
        ExistingObject::Nothing => format!(
            "{name} does not exist, and the broker does not take the arguments that it would be declared with: {error}\n  \
             change or leave out the one that it names (queue_arguments, queue_type)"
        ),
        ExistingObject::Missing(missing) if missing.is_empty() => {
            format!("{name} can't be made: {error}\n  what it binds exists: apply again")
        }
        ExistingObject::Missing(missing) => format!(
            "{name} can't be made, because there is no {}: {error}\n  \
             declare it where it belongs to (an exchange of `bindings` is its producer's), or correct its name, and apply again",
            missing.join(" and no ")
        ),
    }
}
