//! Processes and the state of consumers: `live.*`.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;

use super::check_session::{CheckSession, ask};
use super::limits::Limits;
use super::words::delta;
use oncely_config::Config;
use oncely_postgres::{self as pg, Pause, ProcessRow};
use oncely_process::preflight::{CheckFindings, QuotedText};

/// Silence after which a process counts as gone.
const GONE: TimeDelta = TimeDelta::hours(1);

const CHECKS: [&str; 8] = [
    "live.relay",
    "live.workers",
    "live.processes",
    "live.versions",
    "live.config",
    "live.stalled",
    "live.contended",
    "live.leases",
];

/// The part of a heartbeat about a consumer that matters here. Unknown fields are ignored: it may be of another build.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsumerBeat {
    consumer: String,
    stalled: Option<Stall>,
    contended: Option<Stall>,
}

#[derive(Debug, Deserialize)]
struct Stall {
    since: DateTime<Utc>,
    #[serde(default)]
    code: Option<String>,
}

struct LiveProcess {
    pub row: ProcessRow,
    beats: Vec<ConsumerBeat>,
}

pub(super) async fn run_checks(config: &Config, limits: &Limits, asking: &mut CheckSession<'_>) {
    paused(limits, asking).await;
    let Some(clock) = ask!(asking, "live.processes", pg::read_clock) else {
        return skip_all(asking.found);
    };
    let now = clock.database;
    let Some(rows) = ask!(asking, "live.processes", pg::processes, now - GONE) else {
        return skip_all(asking.found);
    };
    let names = rows.iter().flat_map(|row| [&row.name, &row.host]);
    asking.found.quoted.extend(names.cloned().map(QuotedText::Name));
    let (living, silent): (Vec<LiveProcess>, Vec<LiveProcess>) =
        rows.into_iter().map(seen).partition(|seen| now - seen.row.last_seen_at <= pg::SILENT);
    for check in CHECKS {
        asking.found.add_read(check, format!("{} processes live, {} are silent", living.len(), silent.len()));
    }
    relay(&living, asking.found);
    workers(config, &living, asking.found);
    processes(&living, &silent, now, asking.found);
    versions(&living, asking.found);
    digests(&living, asking.found);
    stalled(&living, now, asking.found);
    contended(&living, now, asking.found);
    leases(&living, now, asking).await;
}

/// A copy arrives within seconds if a worker consumes the queue and the queue is short.
const TAKEN_OVER: TimeDelta = TimeDelta::minutes(10);

async fn leases(living: &[LiveProcess], now: DateTime<Utc>, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "live.leases";
    let Some(leases) = ask!(asking, CHECK, pg::held_counts, now) else { return };
    asking.found.add_read(CHECK, format!("{} consumers with keys that are held", leases.len()));
    for held in leases.into_iter().filter(|held| now - held.first_end > TAKEN_OVER) {
        let has_worker =
            living.iter().flat_map(|seen| &seen.beats).any(|beat| beat.consumer == held.consumer);
        let what = format!(
            "{} held by an expired lease, the first expired {} ago, and no run took over \
             (`oncely leases list --over`): {}",
            if held.over == 1 { "1 key is".to_owned() } else { format!("{} keys are", held.over) },
            delta(now - held.first_end),
            match has_worker {
                true => "the messages have not come back to its workers yet",
                false => "no worker of this consumer is running",
            }
        );
        asking.found.quoted.push(QuotedText::Name(held.consumer.clone()));
        if has_worker {
            asking.found.info(CHECK, held.consumer, what);
        } else {
            asking.found.warning(CHECK, held.consumer, what);
        }
    }
}

fn skip_all(found: &mut CheckFindings) {
    for check in CHECKS.into_iter().filter(|check| *check != "live.processes") {
        found.skipped(check, "the heartbeats could not be read: see live.processes");
    }
}

fn seen(row: ProcessRow) -> LiveProcess {
    LiveProcess { beats: serde_json::from_value(row.consumers.clone()).unwrap_or_default(), row }
}

fn relay(living: &[LiveProcess], found: &mut CheckFindings) {
    if !living.iter().any(|seen| seen.row.kind == "relay") {
        let what = "none is running: no event is published, nothing is mirrored, nothing is collected";
        found.warning("live.relay", "relay", what);
    }
}

fn workers(config: &Config, living: &[LiveProcess], found: &mut CheckFindings) {
    const CHECK: &str = "live.workers";
    let named: BTreeSet<&str> =
        living.iter().flat_map(|seen| seen.beats.iter().map(|beat| beat.consumer.as_str())).collect();
    for consumer in &config.consumers {
        if !named.contains(consumer.name.as_str()) {
            let what = "no worker of it is running: its messages wait";
            found.warning(CHECK, format!("consumers.{}", consumer.name), what);
        }
    }
    let known: BTreeSet<&str> = config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
    for name in named.difference(&known) {
        let what = format!("a worker has the consumer {name}, which this configuration does not name");
        found.info(CHECK, "", what);
    }
}

fn processes(living: &[LiveProcess], silent: &[LiveProcess], now: DateTime<Utc>, found: &mut CheckFindings) {
    const CHECK: &str = "live.processes";
    let name = |seen: &LiveProcess| format!("{} {}", seen.row.kind, seen.row.name);
    for seen in silent {
        let what = format!(
            "is silent for {} (host {}, process {}): it died, hangs, or can't reach PostgreSQL",
            delta(now - seen.row.last_seen_at),
            seen.row.host,
            seen.row.pid
        );
        found.warning(CHECK, name(seen), what);
    }
    for seen in living.iter().filter(|seen| seen.row.state == "unready") {
        let why = seen.row.reason.as_deref().unwrap_or("no reason is known");
        found.warning(CHECK, name(seen), format!("is not ready: {why}"));
    }
}

fn versions(living: &[LiveProcess], found: &mut CheckFindings) {
    let mut versions: BTreeSet<&str> = living.iter().map(|seen| seen.row.version.as_str()).collect();
    versions.insert(env!("CARGO_PKG_VERSION"));
    if versions.len() > 1 {
        let listed: Vec<&str> = versions.into_iter().collect();
        let what = format!("processes and this program are of several versions: {}", listed.join(", "));
        found.info("live.versions", "", what);
    }
}

fn digests(living: &[LiveProcess], found: &mut CheckFindings) {
    for kind in ["worker", "relay"] {
        let of_kind = living.iter().filter(|seen| seen.row.kind == kind);
        let listed: BTreeSet<(&str, &str)> =
            of_kind.map(|seen| (seen.row.config_digest.as_str(), seen.row.name.as_str())).collect();
        let digests: BTreeSet<&str> = listed.iter().map(|(digest, _)| *digest).collect();
        if digests.len() > 1 {
            let listed: Vec<String> =
                listed.iter().map(|(digest, name)| format!("{name} has {digest}")).collect();
            let what = format!("were started with different configurations: {}", listed.join(", "));
            found.warning("live.config", format!("{kind}s"), what);
        }
    }
}

fn stalled(living: &[LiveProcess], now: DateTime<Utc>, found: &mut CheckFindings) {
    for seen in living {
        for beat in &seen.beats {
            let Some(stall) = &beat.stalled else { continue };
            let code = stall.code.as_deref().map(|code| format!(" (SQLSTATE {code})")).unwrap_or_default();
            let what = format!(
                "has been stalled for {}{code}: no message succeeds (worker {}; `oncely status` says why)",
                delta(now - stall.since),
                seen.row.name
            );
            found.error("live.stalled", beat.consumer.as_str(), what);
        }
    }
}

fn contended(living: &[LiveProcess], now: DateTime<Utc>, found: &mut CheckFindings) {
    for seen in living {
        for beat in &seen.beats {
            let Some(since) = &beat.contended else { continue };
            let what = format!(
                "has had transactions that collide for {} (worker {})",
                delta(now - since.since),
                seen.row.name
            );
            found.warning("live.contended", beat.consumer.as_str(), what);
        }
    }
}

async fn paused(limits: &Limits, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "live.paused";
    let Some(clock) = ask!(asking, CHECK, pg::read_clock) else { return };
    let Some(pauses) = ask!(asking, CHECK, pg::pauses) else { return };
    asking.found.add_read(CHECK, format!("{} pauses", pauses.len()));
    for Pause { consumer, paused_at, paused_until, paused_by, reason } in pauses {
        let age = clock.database - paused_at;
        asking.found.quoted.push(QuotedText::Words(reason.clone()));
        let until = paused_until.map_or_else(
            || "until it is resumed".to_owned(),
            |at| format!("until {}", at.format("%Y-%m-%d %H:%M:%SZ")),
        );
        let what = format!("is paused for {} by {paused_by}, {until}: {reason}", delta(age));
        if age.to_std().unwrap_or_default() > limits.pause {
            asking.found.warning(CHECK, consumer, what);
        } else {
            asking.found.info(CHECK, consumer, what);
        }
    }
}
