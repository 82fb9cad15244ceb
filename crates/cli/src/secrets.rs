//! `oncely secrets list|rotate`: the keys of tags, signed identities and marks, which are in the database. Never prints a secret.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::operator;
use super::output::{self, List, Output, Row, Times};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, SecretRow};
use oncely_process::preflight::open_session;

#[derive(Debug, Subcommand)]
pub(super) enum SecretsCommand {
    /// List keys by purpose: which one signs, which ones are accepted and until when
    #[command(
        after_help = "The id of a key is in the header of what it signed, and reveals nothing of the key. Keys of a \
                      configuration (cell.signing_key, cell.known_keys, mirror.key) are not listed."
    )]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Make a new key for a purpose; the previous ones are accepted for a time
    #[command(
        after_help = "Processes read the new key within ten seconds, and use it from the time when it signs; no \
                      restart is needed. What an old key signed is dead-lettered as signature_invalid once it is no \
                      longer accepted, so it must be accepted for longer than retries and unswept dead letters last. \
                      mirror: existing entries are no longer found, and PostgreSQL answers instead; `oncely mirror \
                      rebuild`, once the new key signs, writes them again. letter: `oncely failed sweep`, once the \
                      new key signs, marks the messages in dead-letter queues again. An earlier key that does not \
                      sign yet is replaced. Recorded in oncely.operator_actions. Exit 4: a time is out of bounds."
    )]
    Rotate(RotateArguments),
}

/// Purpose of a key.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Purpose {
    /// Identities in retried and requeued copies
    Identity,
    /// Marks of dead letters
    Letter,
    /// Tags in Redis
    Mirror,
}

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Letter => "letter",
            Self::Mirror => "mirror",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct RotateArguments {
    /// Purpose of the key
    #[arg(value_enum)]
    purpose: Purpose,
    /// How long signatures of the previous keys are accepted, from when the new one signs, such as 30d, 12h, 0s [default: the longest
    /// retention of a consumer, at least 30 days; mirror: mirror.ttl]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    accept: Option<Duration>,
    /// Delay until the new key signs, at least 5s: by then all processes have read it
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = humantime::parse_duration)]
    signs_in: Duration,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const SCHEMA: &str = "oncely.secrets/1";
const DAY: Duration = Duration::from_secs(86_400);
const MIN_SIGNING_DELAY: Duration = Duration::from_secs(5);

pub(super) async fn run(file: &Path, verb: SecretsCommand, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let code = match verb {
        SecretsCommand::List { output } => {
            let rows = pg::list_secrets(&mut session.connection)
                .await
                .context("reading oncely.secrets (roles oncely_operator, oncely_auditor)")?;
            let none = "there is no key: nothing can be signed";
            List { schema: SCHEMA, field: "secrets", rows: &rows, none }.print(output, times)?
        }
        SecretsCommand::Rotate(arguments) => rotate(&config, &mut session, &arguments, times).await?,
    };
    session.close().await;
    Ok(code)
}

impl Row for SecretRow {
    const SCHEMA: &'static str = "oncely.secrets.secret/1";
    const HEADS: &'static [&'static str] =
        &["PURPOSE", "ID", "STATE", "CREATED", "SIGNS FROM", "ACCEPTED UNTIL"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.purpose.clone(),
            self.id.clone(),
            self.state.clone(),
            times.format_time(self.created_at),
            self.signs_from.map(|from| times.format_time(from)).unwrap_or_default(),
            self.accepted_until.map(|until| times.format_time(until)).unwrap_or_default(),
        ]
    }
}

/// Adds a key that signs after a delay; older ones stay accepted for a time.
async fn rotate(
    config: &Config,
    session: &mut pg::Session,
    arguments: &RotateArguments,
    times: Times,
) -> crate::VerbResult {
    if !(MIN_SIGNING_DELAY..=DAY * 30).contains(&arguments.signs_in)
        || arguments.accept.is_some_and(|accept| accept > DAY * 3_650)
    {
        output::print_note(
            "nothing was changed: a new key signs after 5 seconds at least and 30 days at most, and old ones are accepted for 3650 days \
             at most",
        );
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let purpose = arguments.purpose.as_str();
    let secret = pg::rotate_secret(
        &mut session.connection,
        purpose,
        arguments.signs_in,
        arguments.accept,
        arguments.note.as_deref(),
        &operator::name(),
    )
    .await
    .with_context(|| format!("making a new key for {purpose} (role oncely_operator)"))?;
    output::print_note(&format!(
        "the key {} signs for {purpose} from {}; those of before are accepted until {}",
        secret.id,
        times.format_time(secret.signs_from),
        times.format_time(secret.accepted_until)
    ));
    let configured_key = match arguments.purpose {
        Purpose::Identity | Purpose::Letter => config.signing_key.is_some().then_some("cell.signing_key"),
        Purpose::Mirror => {
            let key = config.mirror.as_ref().and_then(|mirror| mirror.key.as_ref());
            key.is_some().then_some("mirror.key")
        }
    };
    match (configured_key, arguments.purpose) {
        (Some(setting), _) => output::print_note(&format!(
            "! this configuration has {setting}: processes that have it go on signing with that one; replace it in their configurations"
        )),
        (None, Purpose::Letter) => output::print_note(
            "dead letters that wait longer than that must be marked anew: `oncely failed sweep`, once the new key signs",
        ),
        (None, Purpose::Mirror) => output::print_note(
            "from then on entries of before are not found, and PostgreSQL answers: `oncely mirror rebuild` writes them again",
        ),
        (None, Purpose::Identity) => {}
    }
    if arguments.json {
        output::print_json(
            SCHEMA,
            json!({
                "purpose": purpose,
                "id": secret.id,
                "signs_from": secret.signs_from,
                "accepted_until": secret.accepted_until,
            }),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
