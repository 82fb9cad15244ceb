//! Formats a snapshot for one screen, and as JSON.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::super::output::{self, Times, escape, format_age, format_bytes};
use oncely_config::{Config, mask_url};
use oncely_core::units::total;
use oncely_ops::overview::QueueState;
use oncely_ops::status::{DatabaseSnapshot, Severity, StatusFinding, StatusSnapshot};

/// Formats the snapshot as text.
pub(super) fn format_status(
    config: &Config,
    snapshot: &StatusSnapshot,
    findings: &[StatusFinding],
    times: Times,
) -> String {
    let mut lines = format_servers(config, snapshot);
    lines.push(String::new());
    for finding in findings {
        let sign = match finding.severity {
            Severity::Danger => "✗",
            Severity::Notice => "!",
        };
        lines.push(format!("{sign} {}: {}", finding.about, finding.text));
    }
    if findings.is_empty() && snapshot.postgres.is_ok() && snapshot.rabbitmq.is_ok() {
        lines.push("✓ no findings".to_owned());
    }
    let now = snapshot.postgres.as_ref().map_or_else(|_| Utc::now(), |database| database.now);
    if let Ok(queues) = &snapshot.rabbitmq
        && snapshot.has_broker
    {
        lines.push(String::new());
        lines.push(format_queues(snapshot, queues, now));
    }
    if let Ok(database) = &snapshot.postgres {
        lines.push(String::new());
        lines.push(format_processes(database));
        lines.extend(format_tables(database, times));
    }
    lines.join("\n")
}

/// Formats a line for each server: its address, or the reason for the missing answer.
fn format_servers(config: &Config, snapshot: &StatusSnapshot) -> Vec<String> {
    let line = |what: &str, url: String, error: Option<&String>| match error {
        None => format!("✓ {what:<11} {url}"),
        Some(error) => format!("✗ {what:<11} {url}: {}", escape(error)),
    };
    let redis = match (&config.mirror, &snapshot.redis) {
        (Some(settings), Some(redis)) => {
            line("Redis", mask_url(&settings.url), redis.as_ref().err().map(|failure| &failure.text))
        }
        _ => "– Redis       not configured: PostgreSQL answers for all duplicates".to_owned(),
    };
    vec![
        match &snapshot.postgres {
            Ok(database) if database.read_only => {
                line("PostgreSQL", config.postgres.redacted(), Some(&"takes no writes".to_owned()))
            }
            Ok(_) => line("PostgreSQL", config.postgres.redacted(), None),
            // Its text names the server.
            Err(failure) => format!("✗ PostgreSQL  {}", escape(&failure.text)),
        },
        match snapshot.has_broker {
            true => line("RabbitMQ", config.rabbitmq.redacted(), snapshot.rabbitmq.as_ref().err()),
            false => "– RabbitMQ    not configured: gateways and doors need none".to_owned(),
        },
        redis,
    ]
}

/// Formats the table of queues.
fn format_queues(snapshot: &StatusSnapshot, queues: &[QueueState], now: DateTime<Utc>) -> String {
    let mut table = output::new_table(&[
        "CONSUMER",
        "QUEUE",
        "READY",
        "UNACKED",
        "RETRYING",
        "DEAD",
        "WORKERS",
        "LAST DONE",
        "DONE SINCE START",
        "DUPLICATES SINCE START",
    ]);
    let shown = |count: Option<u64>| count.map_or_else(|| "–".to_owned(), |count| count.to_string());
    for state in queues {
        let there = |count: Option<u32>| count.map_or_else(|| "missing".to_owned(), |n| n.to_string());
        let consumer = state.consumer.as_str();
        let workers = snapshot.workers(consumer).count();
        let sum = |of: fn(&oncely_worker::worker::ConsumerReport) -> u64| {
            (workers > 0).then(|| total(snapshot.workers(consumer).map(|(_, report)| of(report))))
        };
        let completed = snapshot.completed_at(consumer);
        table.add_row([
            escape(consumer),
            escape(&state.queue),
            there(state.ready),
            shown(snapshot.unacknowledged_deliveries(consumer, &state.queue)),
            state.retrying.to_string(),
            shown(open_letters(snapshot, state)),
            workers.to_string(),
            completed.map_or_else(|| "none known".to_owned(), |at| format!("{} ago", format_age(at, now))),
            shown(sum(|report| report.counts.answers())),
            shown(sum(|report| report.counts.duplicates())),
        ]);
    }
    table.to_string()
}

/// Returns the number of open dead letters of a queue; `None` if PostgreSQL does not answer.
fn open_letters(snapshot: &StatusSnapshot, state: &QueueState) -> Option<u64> {
    snapshot.postgres.as_ref().ok().map(|database| database.dead_letters(&state.queue))
}

/// Formats the table of processes.
fn format_processes(database: &DatabaseSnapshot) -> String {
    let mut table =
        output::new_table(&["PROCESS", "NAME", "VERSION", "HOST", "PID", "LOGIN", "STARTED", "SEEN"]);
    for process in &database.overview.processes {
        let row = &process.row;
        table.add_row([
            row.kind.clone(),
            escape(&row.name),
            escape(&row.version),
            escape(&row.host),
            row.pid.to_string(),
            escape(&row.login),
            format!("{} ago", format_age(row.started_at, database.now)),
            format!("{} ago", format_age(row.last_seen_at, database.now)),
        ]);
    }
    table.to_string()
}

/// Formats the backlogs, the sizes of the tables, the held leases, and the outcomes of the last minutes.
fn format_tables(database: &DatabaseSnapshot, times: Times) -> Vec<String> {
    let DatabaseSnapshot { now, mirror_queue, events, tables, recent, overview, .. } = database;
    let capped = |count: i64| if count >= 10_000 { "≥ 10000".to_owned() } else { count.to_string() };
    let oldest = |at: DateTime<Utc>| format!("oldest {} ({})", format_age(at, *now), times.format_time(at));
    let mut lines = vec![String::new()];
    lines.push(match mirror_queue.oldest {
        None => "mirror queue empty".to_owned(),
        Some(at) => format!("mirror queue {} records, {}", capped(mirror_queue.records), oldest(at)),
    });
    lines.push(match events.oldest_due {
        None if events.pending == 0 => "events       none on their way".to_owned(),
        None => format!("events       {} on their way, none due", capped(events.pending)),
        Some(at) => format!("events       {} on their way, {}", capped(events.pending), oldest(at)),
    });
    if let Some(at) = events.oldest_parked {
        lines.push(format!(
            "             {} parked, oldest {} (see `oncely outbox list --state parked`)",
            capped(events.parked),
            format_age(at, *now)
        ));
    }
    lines.push(format!(
        "keys         ≈ {}, {}; {} given up",
        tables.keys,
        format_bytes(tables.keys_bytes),
        capped(tables.failed)
    ));
    for leases in &overview.leases {
        let over = if leases.over > 0 { format!(", {} over", leases.over) } else { String::new() };
        lines.push(format!(
            "leases       {}: {} held{over}, oldest {}",
            escape(&leases.consumer),
            capped(leases.held),
            format_age(leases.oldest, *now)
        ));
    }
    lines.push(format!(
        "audit        about {}, partitions up to the week of {}",
        format_bytes(tables.audit_bytes),
        tables.last_partition.as_deref().unwrap_or("(none: rows go to the default partition)")
    ));
    if recent.is_empty() {
        lines.push("last 5 min   no decision".to_owned());
        return lines;
    }
    let mut table = output::new_table(&["LAST 5 MIN", "OUTCOME", "REASON", "COUNT"]);
    for row in recent {
        table.add_row([
            &escape(&row.consumer),
            &row.outcome,
            row.reason.as_deref().unwrap_or(""),
            &row.count.to_string(),
        ]);
    }
    lines.push(String::new());
    lines.push(table.to_string());
    lines
}

/// Formats the snapshot as JSON.
pub(super) fn to_json(snapshot: &StatusSnapshot, findings: &[StatusFinding], code: u8) -> Value {
    let queues: Vec<Value> = snapshot
        .rabbitmq
        .as_deref()
        .unwrap_or_default()
        .iter()
        .map(|state| {
            json!({
                "consumer": state.consumer, "queue": state.queue, "ready": state.ready,
                "unacknowledged": snapshot.unacknowledged_deliveries(&state.consumer, &state.queue), "retrying": state.retrying,
                "letters": open_letters(snapshot, state), "dead": state.dead, "subscriptions": state.subscriptions, "missing": state.missing,
                "workers": snapshot.workers(&state.consumer).count(), "completed_at": snapshot.completed_at(&state.consumer),
            })
        })
        .collect();
    let processes: Vec<Value> = snapshot
        .postgres
        .as_ref()
        .map_or(&[][..], |database| &database.overview.processes)
        .iter()
        .map(|process| {
            let mut row = json!(process.row);
            if let Value::Object(fields) = &mut row {
                fields.insert("silent".to_owned(), json!(process.silent));
            }
            row
        })
        .collect();
    let postgres = snapshot.postgres.as_ref().ok().map(|database| {
        let mut facts = json!(database);
        if let Value::Object(fields) = &mut facts {
            fields.insert("pauses".to_owned(), json!(database.overview.pauses));
            fields.insert("leases".to_owned(), json!(database.overview.leases));
        }
        facts
    });
    json!({
        "exit": code, "findings": findings, "queues": queues, "processes": processes,
        "postgres": postgres, "postgres_error": snapshot.postgres.as_ref().err().map(|failure| &failure.text),
        "rabbitmq_error": snapshot.rabbitmq.as_ref().err(),
        "redis": snapshot.redis.as_ref().map(|redis| json!({ "reachable": redis.is_ok() })),
    })
}
