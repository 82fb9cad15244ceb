//! Processes and the state of consumers: `live.*`.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use super::words::format_delta;
use oncely_config::Config;
use oncely_postgres::{self as pg, Pause, ProcessRow};
use oncely_process::preflight::{CheckFindings, QuotedText};

/// Maximum silence of a process that is listed.
const MAX_LISTED_SILENCE: TimeDelta = TimeDelta::hours(1);

const CHECKS: [&str; 9] = [
    "live.relay",
    "live.workers",
    "live.routes",
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
    /// Deliveries that were forwarded, and those that were sent to the node that keeps their tenant.
    routes: [u64; 2],
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

/// Runs the checks of processes, consumers, leases and pauses. Those that need the heartbeats are skipped if these can't be read.
pub(super) async fn run_checks(config: &Config, limits: &Limits, session: &mut CheckSession<'_>) {
    check_pauses(limits, session).await;
    let Some(clock) = query_or_skip!(session, "live.processes", pg::read_clock) else {
        return skip_all(session.findings);
    };
    let now = clock.database;
    let Some(rows) = query_or_skip!(session, "live.processes", pg::list_processes, now - MAX_LISTED_SILENCE)
    else {
        return skip_all(session.findings);
    };
    let names = rows.iter().flat_map(|row| [&row.name, &row.host]);
    session.findings.quoted.extend(names.cloned().map(QuotedText::Name));
    let (living, silent): (Vec<LiveProcess>, Vec<LiveProcess>) = rows
        .into_iter()
        .map(into_live_process)
        .partition(|process| now - process.row.last_seen_at <= pg::SILENCE_TIME);
    for check in CHECKS {
        session
            .findings
            .add_read(check, format!("{} processes live, {} are silent", living.len(), silent.len()));
    }
    check_relay(&living, session.findings);
    check_workers(config, &living, session.findings);
    check_routes(&living, session.findings);
    check_processes(&living, &silent, now, session.findings);
    check_versions(&living, session.findings);
    check_config_digests(&living, session.findings);
    check_stalls(&living, now, session.findings);
    check_contention(&living, now, session.findings);
    check_leases(&living, now, session).await;
}

/// Maximum time until an expired lease is taken over. A copy arrives within seconds if a worker consumes the queue and the queue is short.
const MAX_TAKEOVER_TIME: TimeDelta = TimeDelta::minutes(10);

/// Checks that no key is held by a lease that ended more than ten minutes ago.
async fn check_leases(living: &[LiveProcess], now: DateTime<Utc>, session: &mut CheckSession<'_>) {
    const CHECK: &str = "live.leases";
    let Some(leases) = query_or_skip!(session, CHECK, pg::count_held_leases, now) else { return };
    session.findings.add_read(CHECK, format!("{} consumers with keys that are held", leases.len()));
    for lease_count in
        leases.into_iter().filter(|lease_count| now - lease_count.first_end > MAX_TAKEOVER_TIME)
    {
        let has_worker = living
            .iter()
            .flat_map(|process| &process.beats)
            .any(|beat| beat.consumer == lease_count.consumer);
        let text = format!(
            "{} held by an expired lease, the first expired {} ago, and no run took over \
             (`oncely leases list --over`): {}",
            if lease_count.over == 1 {
                "1 key is".to_owned()
            } else {
                format!("{} keys are", lease_count.over)
            },
            format_delta(now - lease_count.first_end),
            match has_worker {
                true => "the messages have not come back to its workers yet",
                false => "no worker of this consumer is running",
            }
        );
        session.findings.quoted.push(QuotedText::Name(lease_count.consumer.clone()));
        if has_worker {
            session.findings.add_info(CHECK, lease_count.consumer, text);
        } else {
            session.findings.add_warning(CHECK, lease_count.consumer, text);
        }
    }
}

fn skip_all(findings: &mut CheckFindings) {
    for check in CHECKS.into_iter().filter(|check| *check != "live.processes") {
        findings.add_skipped(check, "the heartbeats could not be read: see live.processes");
    }
}

/// Converts the row of a process, and parses the consumers' part of its heartbeat, which is empty if it can't be parsed.
fn into_live_process(row: ProcessRow) -> LiveProcess {
    LiveProcess { beats: serde_json::from_value(row.consumers.clone()).unwrap_or_default(), row }
}

fn check_relay(living: &[LiveProcess], findings: &mut CheckFindings) {
    if !living.iter().any(|process| process.row.kind == "relay") {
        let text = "none is running: no event is published, nothing is mirrored, nothing is collected";
        findings.add_warning("live.relay", "relay", text);
    }
}

/// Number of a worker's deliveries from which their routes are judged.
const MIN_ROUTED: u64 = 1_000;

/// Checks that workers in a cluster send most messages to the node that keeps their tenant.
fn check_routes(living: &[LiveProcess], findings: &mut CheckFindings) {
    for process in living {
        for ConsumerBeat { consumer, routes: [forwarded, to_owner], .. } in &process.beats {
            let all = forwarded + to_owner;
            if all >= MIN_ROUTED && forwarded * 10 > all {
                let text = format!(
                    "{} forwards {forwarded} of {all} messages of {consumer}: their nodes are unknown to it, or their tenants",
                    process.row.name
                );
                findings.quoted.push(QuotedText::Name(consumer.clone()));
                findings.add_info("live.routes", consumer.as_str(), text);
            }
        }
    }
}

/// Checks that every configured consumer has a live worker, and that no worker has another consumer.
fn check_workers(config: &Config, living: &[LiveProcess], findings: &mut CheckFindings) {
    const CHECK: &str = "live.workers";
    let live_consumers: BTreeSet<&str> =
        living.iter().flat_map(|process| process.beats.iter().map(|beat| beat.consumer.as_str())).collect();
    for consumer in &config.consumers {
        if !live_consumers.contains(consumer.name.as_str()) {
            let text = "no worker of it is running: its messages wait";
            findings.add_warning(CHECK, format!("consumers.{}", consumer.name), text);
        }
    }
    let configured_consumers: BTreeSet<&str> =
        config.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
    for name in live_consumers.difference(&configured_consumers) {
        let text = format!("a worker has the consumer {name}, which this configuration does not name");
        findings.add_info(CHECK, "", text);
    }
}

/// Checks that no process is silent or unready.
fn check_processes(
    living: &[LiveProcess],
    silent: &[LiveProcess],
    now: DateTime<Utc>,
    findings: &mut CheckFindings,
) {
    const CHECK: &str = "live.processes";
    let name = |process: &LiveProcess| format!("{} {}", process.row.kind, process.row.name);
    for process in silent {
        let text = format!(
            "is silent for {} (host {}, process {}): it died, hangs, or can't reach PostgreSQL",
            format_delta(now - process.row.last_seen_at),
            process.row.host,
            process.row.pid
        );
        findings.add_warning(CHECK, name(process), text);
    }
    for process in living.iter().filter(|process| process.row.state == "unready") {
        let reason = process.row.reason.as_deref().unwrap_or("no reason is known");
        findings.add_warning(CHECK, name(process), format!("is not ready: {reason}"));
    }
}

fn check_versions(living: &[LiveProcess], findings: &mut CheckFindings) {
    let mut versions: BTreeSet<&str> = living.iter().map(|process| process.row.version.as_str()).collect();
    versions.insert(env!("CARGO_PKG_VERSION"));
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        let text = format!("processes and this program are of several versions: {}", versions.join(", "));
        findings.add_info("live.versions", "", text);
    }
}

/// Checks that the live workers were started with one configuration, and likewise the live relays.
fn check_config_digests(living: &[LiveProcess], findings: &mut CheckFindings) {
    for kind in ["worker", "relay"] {
        let of_kind = living.iter().filter(|process| process.row.kind == kind);
        let configurations: BTreeSet<(&str, &str)> =
            of_kind.map(|process| (process.row.config_digest.as_str(), process.row.name.as_str())).collect();
        let digests: BTreeSet<&str> = configurations.iter().map(|(digest, _)| *digest).collect();
        if digests.len() > 1 {
            let configurations: Vec<String> =
                configurations.iter().map(|(digest, name)| format!("{name} has {digest}")).collect();
            let text = format!("were started with different configurations: {}", configurations.join(", "));
            findings.add_warning("live.config", format!("{kind}s"), text);
        }
    }
}

/// Reports the consumers of which no message succeeds.
fn check_stalls(living: &[LiveProcess], now: DateTime<Utc>, findings: &mut CheckFindings) {
    for process in living {
        for beat in &process.beats {
            let Some(stall) = &beat.stalled else { continue };
            let code = stall.code.as_deref().map(|code| format!(" (SQLSTATE {code})")).unwrap_or_default();
            let text = format!(
                "has been stalled for {}{code}: no message succeeds (worker {}; `oncely status` says why)",
                format_delta(now - stall.since),
                process.row.name
            );
            findings.add_error("live.stalled", beat.consumer.as_str(), text);
        }
    }
}

/// Reports the consumers with transactions that collide.
fn check_contention(living: &[LiveProcess], now: DateTime<Utc>, findings: &mut CheckFindings) {
    for process in living {
        for beat in &process.beats {
            let Some(stall) = &beat.contended else { continue };
            let text = format!(
                "has had transactions that collide for {} (worker {})",
                format_delta(now - stall.since),
                process.row.name
            );
            findings.add_warning("live.contended", beat.consumer.as_str(), text);
        }
    }
}

/// Reports the paused consumers; a pause longer than the limit is a warning.
async fn check_pauses(limits: &Limits, session: &mut CheckSession<'_>) {
    const CHECK: &str = "live.paused";
    let Some(clock) = query_or_skip!(session, CHECK, pg::read_clock) else { return };
    let Some(pauses) = query_or_skip!(session, CHECK, pg::list_pauses) else { return };
    session.findings.add_read(CHECK, format!("{} pauses", pauses.len()));
    for Pause { consumer, paused_at, paused_until, paused_by, reason } in pauses {
        let age = clock.database - paused_at;
        session.findings.quoted.push(QuotedText::Words(reason.clone()));
        let until = paused_until.map_or_else(
            || "until it is resumed".to_owned(),
            |at| format!("until {}", at.format("%Y-%m-%d %H:%M:%SZ")),
        );
        let text = format!("is paused for {} by {paused_by}, {until}: {reason}", format_delta(age));
        if age.to_std().unwrap_or_default() > limits.pause {
            session.findings.add_warning(CHECK, consumer, text);
        } else {
            session.findings.add_info(CHECK, consumer, text);
        }
    }
}
