//! `oncely handler test`: a file of messages through a consumer's function and back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::super::publish::{Frame, Line, Lines, PropertyArguments};
use super::super::{completions, output};
use super::report;
use crate::amqp::Delivery;
use crate::config::{Config, Consumer};
use crate::exit;
use crate::extract::Source;
use crate::handler::SqlFunction;
use crate::pg;
use crate::preflight::{fit, preflight_without_broker};
use crate::worker::{BrokenOff, Common, DryRun};

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
pub(super) struct Arguments {
    /// JSON Lines ("-": standard input), a message each, as `oncely publish --lines` takes them: {"tenant", "message_id",
    /// "correlation_id", "user_id", "app_id", "type", "routing_key", "headers", "payload"}, of which only the payload must be there; a body that
    /// is no JSON is "body" (text) or "body_base64" instead
    file: PathBuf,
    /// Whose function runs; may be left out where only one consumer has one
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// Each message as if nothing had come before it, in a transaction of its own; none in batches
    #[arg(long)]
    one_by_one: bool,
    /// Which run of the handler it is, from 1: on the last one a message that fails is dead-lettered
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: u32,
    /// The queue that the messages come from; by default the consumer's first
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The exchange that they were published to; by default the default exchange
    #[arg(long, default_value = "", value_name = "NAME")]
    exchange: String,
    /// The routing key of lines that name none; by default the name of the queue
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
    /// The header that carries a line's tenant; by default the one that the consumer reads it from, or x-tenant-id
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<String>,
    #[command(flatten)]
    properties: PropertyArguments,
    /// Print JSON (schema oncely.handler/1)
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let mut config = Config::load(file)?;
    let (consumer, function) = match chosen(&config, arguments.consumer.as_deref()) {
        Ok(chosen) => chosen,
        Err(why) => {
            output::note(&format!("error: {why}"));
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    // In PostgreSQL's list of sessions.
    config.worker.name = "handler test".to_owned();
    // Others' functions may be missing.
    config.consumers.retain(|one| one.name == consumer.name);
    let queue = match arguments.queue {
        Some(queue) => queue,
        None => consumer.queues.first().cloned().context("the consumer has no queue")?,
    };
    let frame = Frame {
        exchange: arguments.exchange,
        routing_key: arguments.routing_key.unwrap_or_else(|| queue.clone()),
        tenant_header: match (arguments.tenant_header, &consumer.tenant) {
            (Some(name), _) => name,
            (None, Source::Header(name)) => name.clone(),
            (None, _) => "x-tenant-id".to_owned(),
        },
        properties: arguments.properties.read(),
    };
    // All of it before anything runs.
    let (numbers, deliveries) = read(&arguments.file, &frame, &queue)?;

    pg::tell_server_texts(config.log.server_errors);
    let mut found = preflight_without_broker(&config).await;
    let opened = match found.session.take() {
        Some(mut session) => {
            found.read_secrets(&config, &mut session).await.map(|secrets| (session, secrets))
        }
        None => None,
    };
    let (session, secrets) = fit(opened, found)?;
    let common = Common::without_broker(config.clone(), &session, &secrets);
    session.close().await;

    let dry_run = DryRun {
        consumer: &consumer,
        function: function.clone(),
        attempt: arguments.attempt,
        one_by_one: arguments.one_by_one,
    };
    let rehearsed = dry_run.run(&common, deliveries).await.map_err(|BrokenOff { at, why }| {
        let error = anyhow::Error::from(why);
        match at.and_then(|position| numbers.get(position)) {
            Some(line) => error.context(format!("line {line}")),
            None => error,
        }
    })?;
    match arguments.json {
        true => output::print_json("oncely.handler/1", report::json(&dry_run, &numbers, &rehearsed))?,
        false => output::print(&report::text(&dry_run, &numbers, &rehearsed))?,
    }
    let is_good = rehearsed.messages.iter().all(report::is_good)
        && rehearsed.batches.iter().all(|batch| batch.result.is_ok());
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// The consumer of this name, or the only one with a function; or what is wrong with the choice.
fn chosen(config: &Config, name: Option<&str>) -> Result<(Consumer, SqlFunction), String> {
    let with_function: Vec<(&Consumer, &SqlFunction)> =
        config.consumers.iter().filter_map(|one| Some((one, one.handler.as_ref()?))).collect();
    let names = |of: Vec<&Consumer>| of.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(name) = name else {
        return match with_function[..] {
            [(consumer, function)] => Ok((consumer.clone(), function.clone())),
            [] => Err("no consumer has a SQL function as its handler".to_owned()),
            _ => {
                let there = names(with_function.into_iter().map(|(one, _)| one).collect());
                Err(format!(
                    "several consumers have a SQL function as their handler; name one with --consumer: {there}"
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

/// The messages as a broker would deliver them, with the numbers of their lines; or all that is wrong with the file.
fn read(file: &Path, frame: &Frame, queue: &str) -> anyhow::Result<(Vec<usize>, Vec<Box<Delivery>>)> {
    let (mut numbers, mut deliveries, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (tag, line) in (1..).zip(Lines::open(file, frame)?) {
        let Line { number, message } = line.with_context(|| format!("{} can't be read", file.display()))?;
        match message.and_then(|message| Delivery::without_broker(message, queue, false, tag)) {
            Ok(delivery) => {
                numbers.push(number);
                deliveries.push(delivery);
            }
            Err(why) => wrong.push(format!("line {number}: {why}")),
        }
    }
    anyhow::ensure!(wrong.is_empty(), "nothing was run; {}", wrong.join("; "));
    anyhow::ensure!(!deliveries.is_empty(), "{} holds no message", file.display());
    Ok((numbers, deliveries))
}
