//! Formats a picture for one screen, and as JSON.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::super::output::{self, Times, age, bytes, safe};
use oncely_config::{Config, masked};
use oncely_core::units::total;
use oncely_ops::overview::QueueState;
use oncely_ops::status::{DatabaseSnapshot, Severity, StatusFinding, StatusSnapshot};

/// Formats the picture as text.
pub(super) fn show(
    config: &Config,
    picture: &StatusSnapshot,
    findings: &[StatusFinding],
    times: Times,
) -> String {
    let mut lines = servers(config, picture);
    lines.push(String::new());
    for finding in findings {
        let sign = match finding.severity {
            Severity::Danger => "✗",
            Severity::Notice => "!",
        };
        lines.push(format!("{sign} {}: {}", finding.about, finding.text));
    }
    if findings.is_empty() && picture.postgres.is_ok() && picture.rabbitmq.is_ok() {
        lines.push("✓ no findings".to_owned());
    }
    let now = picture.postgres.as_ref().map_or_else(|_| Utc::now(), |database| database.now);
    if let Ok(queues) = &picture.rabbitmq
        && picture.has_broker
    {
        lines.push(String::new());
        lines.push(consumers(picture, queues, now));
    }
    if let Ok(database) = &picture.postgres {
        lines.push(String::new());
        lines.push(processes(database));
        lines.extend(tables(database, times));
    }
    lines.join("\n")
}

fn servers(config: &Config, picture: &StatusSnapshot) -> Vec<String> {
    let line = |what: &str, url: String, error: Option<&String>| match error {
        None => format!("✓ {what:<11} {url}"),
        Some(error) => format!("✗ {what:<11} {url}: {}", safe(error)),
    };
    let redis = match (&config.mirror, &picture.redis) {
        (Some(settings), Some(answer)) => {
            line("Redis", masked(&settings.url), answer.as_ref().err().map(|missing| &missing.text))
        }
        _ => "– Redis       not configured: PostgreSQL answers for all duplicates".to_owned(),
    };
    vec![
        match &picture.postgres {
            Ok(database) if database.read_only => {
                line("PostgreSQL", config.postgres.shown(), Some(&"takes no writes".to_owned()))
            }
            Ok(_) => line("PostgreSQL", config.postgres.shown(), None),
            // Its text names the server.
            Err(missing) => format!("✗ PostgreSQL  {}", safe(&missing.text)),
        },
        match picture.has_broker {
            true => line("RabbitMQ", config.rabbitmq.shown(), picture.rabbitmq.as_ref().err()),
            false => "– RabbitMQ    not configured: gateways and doors need none".to_owned(),
        },
        redis,
    ]
}

fn consumers(picture: &StatusSnapshot, queues: &[QueueState], now: DateTime<Utc>) -> String {
    let mut table = output::table(&[
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
        let workers = picture.workers(consumer).count();
        let sum = |of: fn(&oncely_worker::worker::ConsumerReport) -> u64| {
            (workers > 0).then(|| total(picture.workers(consumer).map(|(_, report)| of(report))))
        };
        let completed = picture.completed_at(consumer);
        table.add_row([
            safe(consumer),
            safe(&state.queue),
            there(state.ready),
            shown(picture.unacknowledged(consumer, &state.queue)),
            state.retrying.to_string(),
            shown(dead(picture, state)),
            workers.to_string(),
            completed.map_or_else(|| "none known".to_owned(), |at| format!("{} ago", age(at, now))),
            shown(sum(|report| report.counts.done())),
            shown(sum(|report| report.counts.duplicates())),
        ]);
    }
    table.to_string()
}

/// Returns the open dead letters of a queue, if PostgreSQL answers.
fn dead(picture: &StatusSnapshot, state: &QueueState) -> Option<u64> {
    picture.postgres.as_ref().ok().map(|database| database.dead(&state.queue))
}

fn processes(database: &DatabaseSnapshot) -> String {
    let mut table = output::table(&["PROCESS", "NAME", "VERSION", "HOST", "PID", "LOGIN", "STARTED", "SEEN"]);
    for seen in &database.overview.processes {
        let row = &seen.row;
        table.add_row([
            row.kind.clone(),
            safe(&row.name),
            safe(&row.version),
            safe(&row.host),
            row.pid.to_string(),
            safe(&row.login),
            format!("{} ago", age(row.started_at, database.now)),
            format!("{} ago", age(row.last_seen_at, database.now)),
        ]);
    }
    table.to_string()
}

fn tables(database: &DatabaseSnapshot, times: Times) -> Vec<String> {
    let DatabaseSnapshot { now, mirror_queue, events, tables, recent, overview, .. } = database;
    let capped = |count: i64| if count >= 10_000 { "≥ 10000".to_owned() } else { count.to_string() };
    let oldest = |at: DateTime<Utc>| format!("oldest {} ({})", age(at, *now), times.show(at));
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
            age(at, *now)
        ));
    }
    lines.push(format!(
        "keys         ≈ {}, {}; {} given up",
        tables.keys,
        bytes(tables.keys_bytes),
        capped(tables.failed)
    ));
    for held in &overview.leases {
        let over = if held.over > 0 { format!(", {} over", held.over) } else { String::new() };
        lines.push(format!(
            "leases       {}: {} held{over}, oldest {}",
            safe(&held.consumer),
            capped(held.held),
            age(held.oldest, *now)
        ));
    }
    lines.push(format!(
        "audit        about {}, partitions up to the week of {}",
        bytes(tables.audit_bytes),
        tables.last_partition.as_deref().unwrap_or("(none: rows go to the default partition)")
    ));
    if recent.is_empty() {
        lines.push("last 5 min   no decision".to_owned());
        return lines;
    }
    let mut table = output::table(&["LAST 5 MIN", "OUTCOME", "REASON", "COUNT"]);
    for row in recent {
        table.add_row([
            &safe(&row.consumer),
            &row.outcome,
            row.reason.as_deref().unwrap_or(""),
            &row.count.to_string(),
        ]);
    }
    lines.push(String::new());
    lines.push(table.to_string());
    lines
}

/// Returns the picture as JSON.
pub(super) fn as_json(picture: &StatusSnapshot, findings: &[StatusFinding], code: u8) -> Value {
    let queues: Vec<Value> = picture
        .rabbitmq
        .as_deref()
        .unwrap_or_default()
        .iter()
        .map(|state| {
            json!({
                "consumer": state.consumer, "queue": state.queue, "ready": state.ready,
                "unacknowledged": picture.unacknowledged(&state.consumer, &state.queue), "retrying": state.retrying,
                "letters": dead(picture, state), "dead": state.dead, "subscriptions": state.subscriptions, "missing": state.missing,
                "workers": picture.workers(&state.consumer).count(), "completed_at": picture.completed_at(&state.consumer),
            })
        })
        .collect();
    let processes: Vec<Value> = picture
        .postgres
        .as_ref()
        .map_or(&[][..], |database| &database.overview.processes)
        .iter()
        .map(|seen| {
            let mut row = json!(seen.row);
            if let Value::Object(fields) = &mut row {
                fields.insert("silent".to_owned(), json!(seen.silent));
            }
            row
        })
        .collect();
    let postgres = picture.postgres.as_ref().ok().map(|database| {
        let mut facts = json!(database);
        if let Value::Object(fields) = &mut facts {
            fields.insert("pauses".to_owned(), json!(database.overview.pauses));
            fields.insert("leases".to_owned(), json!(database.overview.leases));
        }
        facts
    });
    json!({
        "exit": code, "findings": findings, "queues": queues, "processes": processes,
        "postgres": postgres, "postgres_error": picture.postgres.as_ref().err().map(|missing| &missing.text),
        "rabbitmq_error": picture.rabbitmq.as_ref().err(),
        "redis": picture.redis.as_ref().map(|answer| json!({ "reachable": answer.is_ok() })),
    })
}
