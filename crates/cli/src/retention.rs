//! `oncely retention list|set`: how long keys are remembered. The database has it, so that every process sees the same.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;

use super::output::{self, List, Output, Row, Times, safe};
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
    #[arg(add = ArgValueCompleter::new(completions::consumers))]
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
const SHORTEST_HORIZON: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);

pub(super) async fn run(file: &Path, verb: RetentionCommand, times: Times) -> crate::VerbResult {
    let config = Config::load_to_look(file)?;
    let mut session = open_session(&config).await?;
    let known = pg::known_consumers(&mut session.connection).await?;
    let code = match verb {
        RetentionCommand::List { output } => {
            let none = "no worker has started on this database";
            List { schema: SCHEMA, field: "consumers", rows: &known, none }.print(output, times)?
        }
        RetentionCommand::Set(set) => {
            let code = change(&config, &mut session, &known, &set).await?;
            if set.json && code == ExitCode::SUCCESS {
                output::print_json(
                    SCHEMA,
                    json!({ "consumer": set.consumer, "retention": set.retention.as_secs_f64() }),
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
            times.show(self.changed_at),
            self.changed_by.clone(),
        ]
    }
}

async fn change(
    config: &Config,
    session: &mut pg::Session,
    known: &[KnownConsumer],
    set: &SetRetentionArguments,
) -> crate::VerbResult {
    let show = humantime::format_duration;
    let name = safe(&set.consumer);
    let Some(before) = known.iter().find(|one| one.consumer == set.consumer) else {
        output::note(&format!("no worker has started with the consumer {name} on this database"));
        return Ok(ExitCode::from(exit::NO));
    };
    let horizon = set.redelivery_horizon.unwrap_or(before.redelivery_horizon);
    if set.retention < horizon || set.retention > LONGEST || horizon < SHORTEST_HORIZON {
        output::note(&format!(
            "nothing was changed: a copy may still come for {} (redelivery_horizon, one second at least), so keys are remembered for \
             that long at least, and for 3650 days at most",
            show(horizon)
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let longest_entry = pg::mirror_ttl(&mut session.connection).await?;
    if set.retention < longest_entry {
        output::note(&format!(
            "nothing was changed: a mirror entry may live for {} (mirror.ttl), and must not outlive its key; shorten mirror.ttl first, \
             restart the relays, and try again three hours after that time is over",
            show(longest_entry)
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let user = operator::name();
    pg::set_retention(
        &mut session.connection,
        &set.consumer,
        set.retention,
        set.redelivery_horizon,
        &user,
        set.note.as_deref(),
    )
    .await?;
    output::note(&format!(
        "keys of {name} are remembered for {}; before for {}",
        show(set.retention),
        show(before.retention)
    ));
    if horizon != before.redelivery_horizon {
        output::note(&format!(
            "a copy of a message of {name} may come for {}; before for {}",
            show(horizon),
            show(before.redelivery_horizon)
        ));
    }
    let configured = config.consumers.iter().find(|one| one.name.as_str() == set.consumer);
    if let Some(longer) = configured.map(|one| one.horizon()).filter(|longer| *longer > horizon) {
        output::note(&format!(
            "! by the configuration a copy may come for {} (redelivery_horizon, or retry.delays and half an hour): the next worker that starts with it lengthens it again",
            show(longer)
        ));
    }
    if let Some(longer) = configured.map(|one| one.retention).filter(|retention| *retention > set.retention) {
        output::note(&format!(
            "! the configuration says {}: the next worker that starts with it lengthens it again",
            show(longer)
        ));
    }
    Ok(ExitCode::SUCCESS)
}
