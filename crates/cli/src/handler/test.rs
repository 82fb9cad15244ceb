//! `oncely handler test`: runs a consumer's function on a file of messages, and rolls back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::super::publish::{MessageDefaults, MessageFile, MessageLine, PropertyArguments};
use super::super::{completions, output};
use super::report;
use oncely_amqp::Delivery;
use oncely_config::{Config, ConsumerSettings};
use oncely_core::extract::Source;
use oncely_handler::SqlFunction;
use oncely_ops::exit;
use oncely_postgres as pg;
use oncely_process::preflight::{ensure_opened, preflight_without_broker};
use oncely_worker::worker::{DryRun, DryRunError, ProcessContext};

#[derive(Debug, Args)]
#[command(
    after_help = "The messages run in the order of the file, in one transaction that is always rolled back: each sees what those before it \
                  wrote, and a\nfailure takes back its own. Those that succeed run once more in batches, as a worker runs them first. For each \
                  message: its identity, the\nhandler's response or the SQLSTATE, what a worker would make of it, the rows changed in each table, \
                  the events emitted. A deferred\nconstraint or trigger runs, too, as at COMMIT.\n\nNeeds PostgreSQL alone, with the rights of a \
                  worker (role oncely_worker). Nothing is left behind, also when this is killed. What a\nrollback does not take back: numbers \
                  drawn from sequences, and what a function does outside of PostgreSQL or through a connection of its\nown (dblink, an HTTP \
                  extension). Rows stay locked until the end, so a busy table of a live database is not the place for a large file.\n\nExit \
                  codes: 0 all messages take effect, are refused by oncely.refuse or are duplicates, 1 some fail."
)]
pub(crate) struct HandlerTestArguments {
    /// File of JSON Lines ("-": standard input), one message each, in the format of `oncely publish --lines`: {"tenant", "message_id",
    /// "correlation_id", "user_id", "app_id", "type", "routing_key", "headers", "payload"}, of which only the payload is required; a body
    /// that is not JSON is "body" (text) or "body_base64" instead
    file: PathBuf,
    /// Consumer of the function; optional if only one consumer has a function
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: Option<String>,
    /// Run each message without the others, in a transaction of its own; none in batches
    #[arg(long)]
    one_by_one: bool,
    /// Number of the handler's run, from 1: in the last one a failing message is dead-lettered
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: u32,
    /// Queue that the messages come from [default: the consumer's first]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Exchange that they were published to; by default the default exchange
    #[arg(long, default_value = "", value_name = "NAME")]
    exchange: String,
    /// Routing key of lines without one [default: the name of the queue]
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
    /// Header with a line's tenant [default: the one that the consumer reads it from, or x-tenant-id]
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<String>,
    #[command(flatten)]
    properties: PropertyArguments,
    /// Print JSON (schema oncely.handler/1)
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: HandlerTestArguments) -> crate::VerbResult {
    let mut config = Config::load(file)?;
    let (consumer, function) = match choose_consumer(&config, arguments.consumer.as_deref()) {
        Ok(chosen) => chosen,
        Err(why) => {
            output::print_note(&format!("error: {why}"));
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    // The name in `pg_stat_activity`.
    config.worker.name = "handler test".to_owned();
    // Functions of other consumers may be missing.
    config.consumers.retain(|one| one.name == consumer.name);
    let queue = match arguments.queue {
        Some(queue) => queue,
        None => consumer.queues.first().cloned().context("the consumer has no queue")?,
    };
    let defaults = MessageDefaults {
        exchange: arguments.exchange,
        routing_key: arguments.routing_key.unwrap_or_else(|| queue.clone()),
        tenant_header: match (arguments.tenant_header, &consumer.tenant) {
            (Some(name), _) => name,
            (None, Source::Header(name)) => name.clone(),
            (None, _) => "x-tenant-id".to_owned(),
        },
        properties: arguments.properties.into_properties(),
    };
    // Read completely before the first run.
    let (numbers, deliveries) = read_messages(&arguments.file, &defaults, &queue)?;

    pg::set_server_texts_shown(config.log.server_errors);
    let mut preflight = preflight_without_broker(&config).await;
    let opening = match preflight.session.take() {
        Some(mut session) => {
            preflight.read_secrets(&config, &mut session).await.map(|secrets| (session, secrets))
        }
        None => None,
    };
    let (session, secrets) = ensure_opened(opening, preflight)?;
    let context = ProcessContext::without_broker(config.clone(), &session, &secrets);
    session.close().await;

    let dry_run = DryRun {
        consumer: &consumer,
        function: function.clone(),
        attempt: arguments.attempt,
        one_by_one: arguments.one_by_one,
    };
    let dry_run_report = dry_run.run(&context, deliveries).await.map_err(|DryRunError { at, why }| {
        let error = anyhow::Error::from(why);
        match at.and_then(|position| numbers.get(position)) {
            Some(line) => error.context(format!("line {line}")),
            None => error,
        }
    })?;
    match arguments.json {
        true => output::print_json("oncely.handler/1", report::to_json(&dry_run, &numbers, &dry_run_report))?,
        false => output::print(&report::format_text(&dry_run, &numbers, &dry_run_report))?,
    }
    let is_good = dry_run_report.messages.iter().all(report::is_good)
        && dry_run_report.batches.iter().all(|batch| batch.result.is_ok());
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Chooses the consumer of this name, or the only one with a function; the error is a message for the user.
fn choose_consumer(config: &Config, name: Option<&str>) -> Result<(ConsumerSettings, SqlFunction), String> {
    let with_function: Vec<(&ConsumerSettings, &SqlFunction)> =
        config.consumers.iter().filter_map(|one| Some((one, one.handler.as_ref()?))).collect();
    let names =
        |of: Vec<&ConsumerSettings>| of.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(name) = name else {
        return match with_function[..] {
            [(consumer, function)] => Ok((consumer.clone(), function.clone())),
            [] => Err("no consumer has a SQL function as its handler".to_owned()),
            _ => {
                let available = names(with_function.into_iter().map(|(one, _)| one).collect());
                Err(format!(
                    "several consumers have a SQL function as their handler; name one with --consumer: {available}"
                ))
            }
        };
    };
    let Some(consumer) = config.consumers.iter().find(|one| one.name.as_str() == name) else {
        return Err(format!(
            "there is no consumer {name}; there is {}",
            names(config.consumers.iter().collect())
        ));
    };
    match &consumer.handler {
        Some(function) => Ok((consumer.clone(), function.clone())),
        None => Err(format!(
            "the handler of {name} is in a program, not in PostgreSQL: test it there, with oncely::testing, also one that runs under leases"
        )),
    }
}

/// Reads the messages in the form in which a broker delivers them, with their line numbers; reports all errors of the file.
fn read_messages(
    file: &Path,
    defaults: &MessageDefaults,
    queue: &str,
) -> anyhow::Result<(Vec<usize>, Vec<Box<Delivery>>)> {
    let (mut numbers, mut deliveries, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (tag, line) in (1..).zip(MessageFile::open(file, defaults)?) {
        let MessageLine { number, message } =
            line.with_context(|| format!("{} can't be read", file.display()))?;
        match message.and_then(|message| Delivery::without_broker(message, queue, false, tag)) {
            Ok(delivery) => {
                numbers.push(number);
                deliveries.push(delivery);
            }
            Err(why) => errors.push(format!("line {number}: {why}")),
        }
    }
    anyhow::ensure!(errors.is_empty(), "nothing was run; {}", errors.join("; "));
    anyhow::ensure!(!deliveries.is_empty(), "{} holds no message", file.display());
    Ok((numbers, deliveries))
}
