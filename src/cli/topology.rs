//! `oncely topology apply|show`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use super::output;
use crate::amqp::{Topology, connect};
use crate::config::{Config, masked};
use crate::exit;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Verb {
    /// Declare each consumer's queue with its dead-letter and retry queues; what exists stays as it is
    Apply,
    /// Show what is there and what is missing; exit 1 where something is
    Show,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let server = masked(&config.rabbitmq.url);
    let connection = connect(&config.rabbitmq, "oncely topology")
        .await
        .with_context(|| format!("cannot connect to {server}"))?;
    let limit = config.rabbitmq.timeout;
    let mut code = ExitCode::SUCCESS;
    for topology in config.consumers.iter().flat_map(Topology::of) {
        match arguments.verb {
            Verb::Apply => {
                let applied = topology.apply(&connection, limit).await.map_err(|(name, error)| {
                    anyhow::Error::new(error).context(format!("declaring {name}"))
                })?;
                output::print(&applied.done.join("\n"))?;
                if applied.is_unbound {
                    output::note(&format!(
                        "queue {} is new: what was bound to an earlier one of this name is gone; bind it, or name its \
                         bindings in the configuration",
                        topology.queue()
                    ));
                }
                for (name, error) in &applied.refused {
                    output::note(&format!(
                        "{name} exists with other arguments and is left as it is: {error}\n  \
                         delete it when it is empty and apply again; where it is rightly so, name its further arguments in \
                         queue_arguments, or leave it to whoever declares it (declare = false)"
                    ));
                    code = ExitCode::from(exit::NO);
                }
            }
            Verb::Show => {
                let report = topology.inspect(&connection, limit).await?;
                let mut table = output::table(["QUEUE", "READY", "DEAD", "CONSUMERS", "MISSING"]);
                let missing: Vec<_> = report
                    .missing_queues
                    .iter()
                    .chain(&report.missing_exchanges)
                    .chain(&report.missing_sources)
                    .map(String::as_str)
                    .collect();
                let show =
                    |count: Option<u32>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
                table.add_row([
                    topology.queue(),
                    &show(report.ready),
                    &show(report.dead),
                    &show(report.subscriptions),
                    &missing.join(", "),
                ]);
                output::print(&table.to_string())?;
                if !missing.is_empty() {
                    code = ExitCode::from(exit::NO);
                }
            }
        }
    }
    Ok(code)
}
