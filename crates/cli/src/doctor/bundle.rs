//! An archive for a bug report: the doctor's findings, the masked configuration, versions, migrations, processes, counters, groups of dead
//! letters. No secret, tenant, key or content of a message.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};

use super::mask::{Mask, settings};
use oncely_config::Config;
use oncely_doctor::Report;
use oncely_postgres::{self as pg, LetterFilter, Session};
use oncely_process::preflight::{QuotedText, preflight};

const READ_ME: &str = "\
What `oncely doctor --bundle` wrote. Each file is JSON:

doctor.json               what the doctor found, and what it read
configuration.json        the documented settings that hold no secret; all other values are masked
versions.json             of the program and of the system
migrations.json           what is applied, pending or changed
processes.json            heartbeats; names of processes, hosts and logins are hashes that mean nothing outside of this archive
stats.json                the counters of the last two hours, by minute
dead_letter_groups.json   how many dead letters of which reason; without details, which may hold what a message held

Nothing of a message is in it, no tenant and no key, and no reason that a person wrote. Names of consumers, queues and functions, of other
sessions' applications and of the database's users are (the book has a table, \"Let the doctor look\"): look at it before you send it to
anybody.
";

/// Time range of the counters.
const SPAN: TimeDelta = TimeDelta::hours(2);
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
/// Maximum number of groups of dead letters.
const GROUPS: i64 = 200;

/// Writes the archive to a new file that only its owner can read.
///
/// # Errors
/// If the file exists, or can't be written.
pub(super) async fn write(
    path: &Path,
    file: &Path,
    config: Option<&Config>,
    report: &Report,
) -> anyhow::Result<()> {
    let mut mask = Mask::new(config);
    for quoted in &report.quoted {
        match quoted {
            QuotedText::Name(name) => mask.hide(name),
            QuotedText::Words(words) => mask.silence(words),
        }
    }
    let mut entries = vec![
        ("doctor", serde_json::to_value(report)?),
        ("configuration", Config::written(file).map_or(Value::Null, settings)),
        ("versions", versions()),
    ];
    entries.extend(match config {
        Some(config) => database(config, &mask).await,
        None => Vec::new(),
    });
    let out = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(out, flate2::Compression::default()));
    let modified = u64::try_from(Utc::now().timestamp()).unwrap_or(0);
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        header.set_mode(0o600);
        header.set_mtime(modified);
        archive.append_data(&mut header, format!("oncely-doctor/{name}"), bytes)
    };
    append("README.txt", READ_ME.as_bytes())?;
    for (name, value) in entries {
        let text = serde_json::to_string_pretty(&mask.apply(value))?;
        append(&format!("{name}.json"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()?;
    Ok(())
}

fn versions() -> Value {
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    json!({
        "oncely": env!("CARGO_PKG_VERSION"),
        "features": {
            "tls": cfg!(feature = "tls"),
            "management": cfg!(feature = "management"),
            "failpoints": cfg!(feature = "failpoints"),
        },
        "system": system.map(|name| name.trim_matches('"')),
        "architecture": std::env::consts::ARCH,
        "written_at": Utc::now(),
    })
}

/// Returns the database's part, each section by itself, because a login may be able to read one and not another.
async fn database(config: &Config, mask: &Mask) -> Vec<(&'static str, Value)> {
    let found = preflight(config).await;
    let Some(mut session) = found.session else {
        return vec![("migrations", migrations(config).await)];
    };
    let limit = config.postgres.client_timeout();
    let mut entries = vec![("migrations", migrations(config).await)];
    match pg::within(limit, pg::read_only(&mut session.connection)).await {
        Ok(()) => entries.extend([
            ("processes", value_or_error(processes(config, &mut session, mask).await)),
            ("stats", value_or_error(stats(config, &mut session).await)),
            ("dead_letter_groups", value_or_error(groups(config, &mut session).await)),
        ]),
        Err(error) => entries.push(("database", value_or_error(Err(error)))),
    }
    session.close().await;
    entries
}

/// Returns the value that was read, or the reason why it could not be.
fn value_or_error(read: Result<Value, sqlx::Error>) -> Value {
    read.unwrap_or_else(|error| json!({ "skipped": pg::describe(&error) }))
}

async fn migrations(config: &Config) -> Value {
    let asked = async {
        let mut connection = config.postgres.connect("oncely doctor").await?;
        pg::within(config.postgres.client_timeout(), pg::migration_state(&mut connection)).await
    };
    value_or_error(asked.await.map(|state| {
        json!({
            "known": pg::MIGRATOR.iter().filter(|migration| migration.migration_type.is_up_migration()).count(),
            "pending": state.pending,
            "changed": state.changed,
            "unknown": state.unknown,
            "contracted": state.contracted,
        })
    }))
}

async fn processes(config: &Config, session: &mut Session, mask: &Mask) -> Result<Value, sqlx::Error> {
    let since = session.clock.now() - SPAN;
    let asked = pg::processes(&mut session.connection, since);
    let rows = pg::within(config.postgres.client_timeout(), asked).await?;
    let shown = rows.into_iter().map(|row| {
        let consumers: Vec<Value> = row.consumers.as_array().into_iter().flatten().map(consumer).collect();
        json!({
            "kind": row.kind,
            "name": mask.name(&row.name),
            "host": mask.name(&row.host),
            "login": mask.name(&row.login),
            "version": row.version,
            "config_digest": row.config_digest,
            "state": row.state,
            "started_at": row.started_at,
            "last_seen_at": row.last_seen_at,
            "consumers": consumers,
        })
    });
    Ok(shown.collect())
}

/// Returns the fields of a consumer's heartbeat that hold no tenant, key or error text.
fn consumer(beat: &Value) -> Value {
    let trouble = |name: &str| {
        let trouble = beat.get(name).filter(|trouble| trouble.is_object())?;
        Some(json!({ "since": trouble.get("since"), "code": trouble.get("code") }))
    };
    json!({
        "consumer": beat.get("consumer"),
        "counts": beat.get("counts"),
        "unsettled": beat.get("unsettled"),
        "completed_at": beat.get("completed_at"),
        "unacknowledged": beat.get("unacknowledged").and_then(Value::as_object).map(|queues| queues.values().collect::<Vec<_>>()),
        "stalled": trouble("stalled"),
        "failed": trouble("failed"),
        "paused": beat.get("paused").is_some_and(|paused| !paused.is_null()),
    })
}

async fn stats(config: &Config, session: &mut Session) -> Result<Value, sqlx::Error> {
    let since = session.clock.now() - SPAN;
    let limit = config.postgres.client_timeout();
    let consumers = pg::within(limit, pg::consumer_stats(&mut session.connection, since, MINUTE)).await?;
    let relays = pg::within(limit, pg::relay_stats(&mut session.connection, since, MINUTE)).await?;
    Ok(json!({ "consumers": consumers, "relays": relays }))
}

async fn groups(config: &Config, session: &mut Session) -> Result<Value, sqlx::Error> {
    let filter = LetterFilter { limit: GROUPS, ..LetterFilter::default() };
    let asked = pg::letter_groups(&mut session.connection, &filter);
    let groups = pg::within(config.postgres.client_timeout(), asked).await?;
    let shown = groups.into_iter().map(|group| {
        json!({
            "consumer": group.consumer,
            "group": group.failure_group,
            "reason": group.reason,
            "error_code": group.error_code,
            "waiting": group.waiting,
            "requeueing": group.requeueing,
            "requeued": group.requeued,
            "discarded": group.discarded,
            "came_back": group.came_back,
            "first_at": group.first_at,
            "last_at": group.last_at,
        })
    });
    Ok(shown.collect())
}
