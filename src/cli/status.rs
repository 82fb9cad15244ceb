//! `oncely status`: one screen.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output::{self, Times, age, bytes};
use super::session;
use crate::amqp::{Topology, connect};
use crate::config::{Config, masked};
use crate::exit;
use crate::mirror::Mirror;
use crate::pg::{self, Session};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// How far back outcomes are counted.
const RECENT: chrono::Duration = chrono::Duration::minutes(5);

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut lines = Vec::new();
    let mut all_there = true;
    let mut reach = |lines: &mut Vec<String>, what: &str, server: String, error: Option<String>| {
        all_there &= error.is_none();
        match error {
            None => lines.push(format!("✓ {what:<11} {server}")),
            Some(error) => lines.push(format!("✗ {what:<11} {server}: {error}")),
        }
    };

    let mut postgres = json!(null);
    let mut body = Vec::new();
    match session::open(&config).await {
        Ok(mut session) => {
            reach(&mut lines, "PostgreSQL", masked(&config.postgres.url), None);
            let (text, value) = database(&mut session, times).await?;
            body = text;
            postgres = value;
            session.close().await;
        }
        Err(error) if exit::code(&error) == exit::CONFIG => return Err(error),
        Err(error) => reach(
            &mut lines,
            "PostgreSQL",
            masked(&config.postgres.url),
            Some(error.root_cause().to_string()),
        ),
    }

    let mut queues = Vec::new();
    match connect(&config.rabbitmq, "oncely status").await {
        Ok(connection) => {
            reach(&mut lines, "RabbitMQ", masked(&config.rabbitmq.url), None);
            let mut table = output::table(["CONSUMER", "QUEUE", "READY", "DEAD", "SUBSCRIPTIONS"]);
            for consumer in &config.consumers {
                for topology in Topology::of(consumer) {
                    let report = topology.inspect(&connection, config.rabbitmq.timeout).await?;
                    let counts = report.ready;
                    let show =
                        |count: Option<u32>| count.map_or_else(|| "missing".to_owned(), |n| n.to_string());
                    table.add_row([
                        consumer.name.to_string(),
                        topology.queue().to_owned(),
                        show(counts.map(|(ready, _, _)| ready)),
                        show(counts.map(|(_, dead, _)| dead)),
                        show(counts.map(|(_, _, users)| users)),
                    ]);
                    queues.push(json!({
                        "consumer": consumer.name.as_str(), "queue": topology.queue(),
                        "ready": counts.map(|c| c.0), "dead": counts.map(|c| c.1), "subscriptions": counts.map(|c| c.2),
                    }));
                }
            }
            body.push(String::new());
            body.push(table.to_string());
        }
        Err(error) => reach(&mut lines, "RabbitMQ", masked(&config.rabbitmq.url), Some(error.to_string())),
    }

    let mut redis = json!(null);
    match &config.mirror {
        None => lines.push("– Redis       not configured: PostgreSQL answers for all duplicates".to_owned()),
        Some(settings) => {
            let answer = match Mirror::new(settings) {
                Ok(mirror) => mirror.ping().await,
                Err(error) => Err(error),
            };
            redis = json!({ "reachable": answer.is_ok() });
            reach(&mut lines, "Redis", masked(&settings.url), answer.err().map(|error| error.to_string()));
        }
    }

    if arguments.json {
        output::print_json(
            "oncely.status/1",
            json!({ "postgres": postgres, "queues": queues, "redis": redis }),
        )?;
    } else {
        lines.extend(body);
        output::print(&lines.join("\n"))?;
    }
    Ok(if all_there { ExitCode::SUCCESS } else { ExitCode::from(exit::UNREACHABLE) })
}

async fn database(session: &mut Session, times: Times) -> anyhow::Result<(Vec<String>, Value)> {
    let now = session.clock.now();
    let outbox = pg::outbox_status(&mut session.connection).await?;
    let events = pg::event_status(&mut session.connection, now).await?;
    let tables = pg::table_statistics(&mut session.connection).await?;
    let recent = pg::recent_outcomes(&mut session.connection, now - RECENT).await?;
    let mut lines = vec![String::new()];
    lines.push(match outbox.oldest {
        None => "outbox       empty".to_owned(),
        Some(oldest) => format!(
            "outbox       {} records, oldest {} ({})",
            if outbox.records >= 10_000 { "≥ 10000".to_owned() } else { outbox.records.to_string() },
            age(oldest, now),
            times.show(oldest)
        ),
    });
    let capped = |count: i64| if count >= 10_000 { "≥ 10000".to_owned() } else { count.to_string() };
    lines.push(match events.oldest_due {
        None if events.pending == 0 => "events       none on their way".to_owned(),
        None => format!("events       {} on their way, none due", capped(events.pending)),
        Some(oldest) => format!(
            "events       {} on their way, oldest {} ({})",
            capped(events.pending),
            age(oldest, now),
            times.show(oldest)
        ),
    });
    if let Some(oldest) = events.oldest_parked {
        lines.push(format!(
            "             {} parked, oldest {} (see `oncely outbox list --state parked`)",
            capped(events.parked),
            age(oldest, now)
        ));
    }
    lines.push(format!(
        "keys         ≈ {}, {}; {} given up",
        tables.keys,
        bytes(tables.keys_bytes),
        tables.failed
    ));
    lines.push(format!(
        "audit        {}, partitions up to the week of {}",
        bytes(tables.audit_bytes),
        tables.last_partition.as_deref().unwrap_or("(none: rows go to the default partition)")
    ));
    let clock_refused_at = pg::clock_refused_at(&mut session.connection).await?;
    if let Some(at) = clock_refused_at {
        lines.push(format!(
            "collection   refused: the database's clock said {}, and nothing explains that; see `oncely gc run`",
            times.show(at)
        ));
    }
    if recent.is_empty() {
        lines.push("last 5 min   no decision".to_owned());
    } else {
        let mut table = output::table(["LAST 5 MIN", "OUTCOME", "REASON", "COUNT"]);
        for row in &recent {
            table.add_row([
                &row.consumer,
                &row.outcome,
                row.reason.as_deref().unwrap_or(""),
                &row.count.to_string(),
            ]);
        }
        lines.push(String::new());
        lines.push(table.to_string());
    }
    Ok((
        lines,
        json!({
            "epoch": session.cell.epoch, "cell": session.cell.name, "outbox": outbox, "events": events, "tables": tables,
            "clock_refused_at": clock_refused_at, "recent": recent,
        }),
    ))
}
