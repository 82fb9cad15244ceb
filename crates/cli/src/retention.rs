//! `oncely retention list|set`: how long keys are remembered. The database has it, so that every process sees the same.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;

use super::output::{self, List, Output, Row, Times, escape};
use super::{completions, operator};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, KnownConsumer};
use oncely_process::preflight::open_session;

#[derive(Debug, Subcommand)]
pub(super) enum RetentionCommand {
    /// List the consumers in the database; exit 1 if none exists
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Set how long a consumer's keys are remembered, longer or shorter
    #[command(
        after_help = "A worker that starts with a longer retention or horizon lengthens it again: change its \
                      configuration first. Exit 1: no worker has started with this consumer. 4: it would be shorter \
                      than the redelivery horizon or mirror.ttl."
    )]
    Set(SetRetentionArguments),
}

#[derive(Debug, Args)]
pub(super) struct SetRetentionArguments {
    /// Consumer to change
    #[arg(add = ArgValueCompleter::new(completions::complete_consumers))]
    consumer: String,
    /// The new retention, such as 7d, 12h, 30days
    #[arg(value_parser = humantime::parse_duration)]
    retention: Duration,
    /// Greatest age of a copy that can still arrive, such as 1d [default: unchanged]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    redelivery_horizon: Option<Duration>,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const SCHEMA: &str = "oncely.retention/1";
const MIN_HORIZON: Duration = Duration::from_secs(1);
const MAX_RETENTION: Duration = Duration::from_secs(3_650 * 86_400);

pub(super) async fn run(file: &Path, verb: RetentionCommand, times: Times) -> crate::VerbResult {
    let config = Config::load_read_only(file)?;
    let mut session = open_session(&config).await?;
    let consumers = pg::list_consumers(&mut session.connection).await?;
    let code = match verb {
        RetentionCommand::List { output } => {
            let none = "no worker has started on this database";
            List { schema: SCHEMA, field: "consumers", rows: &consumers, none }.print(output, times)?
        }
        RetentionCommand::Set(arguments) => {
            let code = change_retention(&config, &mut session, &consumers, &arguments).await?;
            if arguments.json && code == ExitCode::SUCCESS {
                output::print_json(
                    SCHEMA,
                    json!({ "consumer": arguments.consumer, "retention": arguments.retention.as_secs_f64() }),
                )?;
            }
            code
        }
    };
    session.close().await;
    Ok(code)
}

impl Row for KnownConsumer {
    const SCHEMA: &'static str = "oncely.retention.consumer/1";
    const HEADS: &'static [&'static str] =
        &["CONSUMER", "RETENTION", "REDELIVERY HORIZON", "FINGERPRINT", "SINCE", "BY"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.consumer.clone(),
            humantime::format_duration(self.retention).to_string(),
            humantime::format_duration(self.redelivery_horizon).to_string(),
            self.fingerprint.clone(),
            times.format_time(self.changed_at),
            self.changed_by.clone(),
        ]
    }
}

/// Sets a consumer's retention and redelivery horizon, and prints the effect; otherwise prints the reason of the refusal.
async fn change_retention(
    config: &Config,
    session: &mut pg::Session,
    consumers: &[KnownConsumer],
    arguments: &SetRetentionArguments,
) -> crate::VerbResult {
    let format_duration = humantime::format_duration;
    let name = escape(&arguments.consumer);
    let Some(current) = consumers.iter().find(|one| one.consumer == arguments.consumer) else {
        output::print_note(&format!("no worker has started with the consumer {name} on this database"));
        return Ok(ExitCode::from(exit::NO));
    };
    let horizon = arguments.redelivery_horizon.unwrap_or(current.redelivery_horizon);
    if arguments.retention < horizon || arguments.retention > MAX_RETENTION || horizon < MIN_HORIZON {
        output::print_note(&format!(
            "nothing was changed: a copy may still come for {} (redelivery_horizon, one second at least), so keys are remembered for \
             that long at least, and for 3650 days at most",
            format_duration(horizon)
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let mirror_ttl = pg::read_mirror_ttl(&mut session.connection).await?;
    if arguments.retention < mirror_ttl {
        output::print_note(&format!(
            "nothing was changed: a mirror entry may live for {} (mirror.ttl), and must not outlive its key; shorten mirror.ttl first, \
             restart the relays, and try again three hours after that time is over",
            format_duration(mirror_ttl)
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let user = operator::name();
    pg::set_retention(
        &mut session.connection,
        &arguments.consumer,
        arguments.retention,
        arguments.redelivery_horizon,
        &user,
        arguments.note.as_deref(),
    )
    .await?;
    output::print_note(&format!(
        "keys of {name} are remembered for {}; before for {}",
        format_duration(arguments.retention),
        format_duration(current.retention)
    ));
    if horizon != current.redelivery_horizon {
        output::print_note(&format!(
            "a copy of a message of {name} may come for {}; before for {}",
            format_duration(horizon),
            format_duration(current.redelivery_horizon)
        ));
    }
    let configured = config.consumers.iter().find(|one| one.name.as_str() == arguments.consumer);
    if let Some(longer) = configured.map(|one| one.horizon()).filter(|longer| *longer > horizon) {
        output::print_note(&format!(
            "! by the configuration a copy may come for {} (redelivery_horizon, or retry.delays and half an hour): the next worker that starts with it lengthens it again",
            format_duration(longer)
        ));
    }
    if let Some(longer) =
        configured.map(|one| one.retention).filter(|retention| *retention > arguments.retention)
    {
        output::print_note(&format!(
            "! the configuration says {}: the next worker that starts with it lengthens it again",
            format_duration(longer)
        ));
    }
    Ok(ExitCode::SUCCESS)
}
