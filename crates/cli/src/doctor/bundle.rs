//! An archive for a bug report: the doctor's findings, the masked configuration, versions, migrations, processes, counters, groups of dead
//! letters. No secret, tenant, key or content of a message.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};

use super::mask::{Mask, mask_settings};
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
const COUNTER_RANGE: TimeDelta = TimeDelta::hours(2);
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
/// Maximum number of groups of dead letters.
const MAX_GROUPS: i64 = 200;

/// Queries the database, and writes the masked archive to a new file that only its owner can read.
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
            QuotedText::Name(name) => mask.add_name(name),
            QuotedText::Words(words) => mask.add_text(words),
        }
    }
    let mut entries = vec![
        ("doctor", serde_json::to_value(report)?),
        ("configuration", Config::read_unchecked(file).map_or(Value::Null, mask_settings)),
        ("versions", collect_versions()),
    ];
    entries.extend(match config {
        Some(config) => query_sections(config, &mask).await,
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

/// Collects version, features and operating system.
fn collect_versions() -> Value {
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

/// Queries the sections from the database; each has its own error, because a login may be able to read one and not another.
async fn query_sections(config: &Config, mask: &Mask) -> Vec<(&'static str, Value)> {
    let preflight = preflight(config).await;
    let Some(mut session) = preflight.session else {
        return vec![("migrations", query_migrations(config).await)];
    };
    let limit = config.postgres.client_timeout();
    let mut entries = vec![("migrations", query_migrations(config).await)];
    match pg::wait_for_answer(limit, pg::set_read_only(&mut session.connection)).await {
        Ok(()) => entries.extend([
            ("processes", value_or_error(query_processes(config, &mut session, mask).await)),
            ("stats", value_or_error(query_stats(config, &mut session).await)),
            ("dead_letter_groups", value_or_error(query_groups(config, &mut session).await)),
        ]),
        Err(error) => entries.push(("database", value_or_error(Err(error)))),
    }
    session.close().await;
    entries
}

/// Returns the value that was read, otherwise an object with the error.
fn value_or_error(result: Result<Value, sqlx::Error>) -> Value {
    result.unwrap_or_else(|error| json!({ "skipped": pg::describe(&error) }))
}

/// Queries the state of the migrations, on a connection of its own.
async fn query_migrations(config: &Config) -> Value {
    let query = async {
        let mut connection = config.postgres.connect("oncely doctor").await?;
        pg::wait_for_answer(config.postgres.client_timeout(), pg::read_migration_state(&mut connection)).await
    };
    value_or_error(query.await.map(|state| {
        json!({
            "known": pg::MIGRATOR.iter().filter(|migration| migration.migration_type.is_up_migration()).count(),
            "pending": state.pending,
            "changed": state.changed,
            "unknown": state.unknown,
            "contracted": state.contracted,
        })
    }))
}

/// Queries the registered processes, with masked names.
async fn query_processes(config: &Config, session: &mut Session, mask: &Mask) -> Result<Value, sqlx::Error> {
    let since = session.clock.now() - COUNTER_RANGE;
    let query = pg::list_processes(&mut session.connection, since);
    let rows = pg::wait_for_answer(config.postgres.client_timeout(), query).await?;
    let values = rows.into_iter().map(|row| {
        let consumers: Vec<Value> =
            row.consumers.as_array().into_iter().flatten().map(select_heartbeat_fields).collect();
        json!({
            "kind": row.kind,
            "name": mask.hash_name(&row.name),
            "host": mask.hash_name(&row.host),
            "login": mask.hash_name(&row.login),
            "version": row.version,
            "config_digest": row.config_digest,
            "state": row.state,
            "started_at": row.started_at,
            "last_seen_at": row.last_seen_at,
            "consumers": consumers,
        })
    });
    Ok(values.collect())
}

/// Selects the fields of a consumer's heartbeat that hold no tenant, key or error text.
fn select_heartbeat_fields(heartbeat: &Value) -> Value {
    let failure = |name: &str| {
        let failure = heartbeat.get(name).filter(|failure| failure.is_object())?;
        Some(json!({ "since": failure.get("since"), "code": failure.get("code") }))
    };
    json!({
        "consumer": heartbeat.get("consumer"),
        "counts": heartbeat.get("counts"),
        "unsettled": heartbeat.get("unsettled"),
        "completed_at": heartbeat.get("completed_at"),
        "unacknowledged": heartbeat.get("unacknowledged").and_then(Value::as_object).map(|queues| queues.values().collect::<Vec<_>>()),
        "stalled": failure("stalled"),
        "failed": failure("failed"),
        "paused": heartbeat.get("paused").is_some_and(|paused| !paused.is_null()),
    })
}

/// Queries the counters of consumers and relays.
async fn query_stats(config: &Config, session: &mut Session) -> Result<Value, sqlx::Error> {
    let since = session.clock.now() - COUNTER_RANGE;
    let limit = config.postgres.client_timeout();
    let consumers =
        pg::wait_for_answer(limit, pg::read_consumer_stats(&mut session.connection, since, MINUTE)).await?;
    let relays =
        pg::wait_for_answer(limit, pg::read_relay_stats(&mut session.connection, since, MINUTE)).await?;
    Ok(json!({ "consumers": consumers, "relays": relays }))
}

/// Queries the groups of dead letters, without details of messages.
async fn query_groups(config: &Config, session: &mut Session) -> Result<Value, sqlx::Error> {
    let filter = LetterFilter { limit: MAX_GROUPS, ..LetterFilter::default() };
    let query = pg::list_letter_groups(&mut session.connection, &filter);
    let groups = pg::wait_for_answer(config.postgres.client_timeout(), query).await?;
    let values = groups.into_iter().map(|group| {
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
    Ok(values.collect())
}
