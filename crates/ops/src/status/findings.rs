//! Findings about a snapshot, the worst first.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::snapshot::{DatabaseSnapshot, StatusSnapshot};
use crate::exit;
use crate::overview::{CONTENTION_TEXT, QueueState};
use oncely_core::shown;
use oncely_core::units::{Times, format_age, format_count};
use oncely_postgres::{MAX_RECENT_ROWS, RecentOutcome};
use oncely_worker::worker::FailureNotice;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Messages are blocked, or many of them are dead-lettered.
    Danger,
    /// Can wait for working hours.
    #[serde(rename = "look")]
    Notice,
}

/// A sentence, and its subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusFinding {
    pub severity: Severity,
    /// A consumer, or another subject.
    pub about: String,
    pub text: String,
    /// Whether the console counts it on another page, and not as a finding.
    #[serde(skip)]
    pub has_page: bool,
}

/// Maximum wait of a record, event or key that is no finding.
const MAX_WAIT: chrono::Duration = chrono::Duration::seconds(60);
/// Maximum time without a seal that is no finding: the relay seals the trail every hour.
const MAX_SEAL_AGE: chrono::Duration = chrono::Duration::days(2);
/// Dead letters of the last five minutes below which a consumer may have had single bad messages.
const MIN_DEAD_LETTERS: i64 = 10;
/// Decisions per dead letter: with fewer, something other than single bad messages fails.
const DECISIONS_PER_DEAD_LETTER: i64 = 20;

/// Escapes control characters of a text for display.
fn escape(text: &str) -> String {
    shown::escape_value(text).into_owned()
}

/// Returns the exit code: unreachable if PostgreSQL or RabbitMQ is, otherwise that of the worst finding.
pub fn exit_code(snapshot: &StatusSnapshot, findings: &[StatusFinding]) -> u8 {
    match findings.iter().map(|finding| finding.severity).min() {
        _ if snapshot.rabbitmq.is_err()
            || snapshot.postgres.as_ref().is_err_and(|missing| missing.is_away) =>
        {
            exit::UNREACHABLE
        }
        Some(Severity::Danger) => exit::DANGER,
        Some(Severity::Notice) => exit::NO,
        None => 0,
    }
}

/// Returns the findings about a snapshot, the worst first.
pub fn collect_findings(snapshot: &StatusSnapshot, times: Times) -> Vec<StatusFinding> {
    let mut found = StatusFindings(Vec::new());
    if let Ok(queues) = &snapshot.rabbitmq {
        queues.iter().for_each(|queue| found.add_queue(snapshot, queue));
    }
    if let Err(failure) = &snapshot.postgres
        && !failure.is_away
    {
        found.add_notice("PostgreSQL", format!("answers, but a query failed: {}", escape(&failure.text)));
    }
    if let Ok(database) = &snapshot.postgres
        && database.read_only
    {
        let text = "takes no writes: default_transaction_read_only is on, so nothing is processed and no \
                    process reports. Workers and relays wait until it is off (providers set it when the disk is \
                    full)";
        found.add_danger("PostgreSQL", text.to_owned());
        found.add_pauses(database, times);
    } else if let Ok(database) = &snapshot.postgres {
        found.add_pauses(database, times);
        found.add_stalls(database, times);
        found.add_failing(database);
        found.add_dead_letter_share(&database.recent);
        found.add_letters(database, snapshot.rabbitmq.as_deref().unwrap_or_default());
        found.add_quotas(database);
        found.add_leases(database);
        found.add_processes(database);
        found.add_relay(database, snapshot.has_broker);
    }
    if let Some(Err(failure)) = &snapshot.redis {
        let text = if failure.is_away { "does not answer" } else { "can't be used" };
        let text = format!("{text}, so PostgreSQL decides alone, only slower: {}", escape(&failure.text));
        found.add_notice("Redis", text);
    }
    let mut findings = found.0;
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Formats an error, and a message that it occurred with.
fn format_example(notice: &FailureNotice, code: Option<&str>) -> String {
    let code = code.map(|code| format!(" (SQLSTATE {})", escape(code))).unwrap_or_default();
    let text = escape(&notice.text) + &code;
    match (&notice.tenant, &notice.key) {
        (Some(tenant), Some(key)) => format!("{text}; tenant {} · key {}", escape(tenant), escape(key)),
        _ => text,
    }
}

struct StatusFindings(Vec<StatusFinding>);

impl StatusFindings {
    fn add_danger(&mut self, about: &str, text: String) {
        self.0.push(StatusFinding {
            severity: Severity::Danger,
            about: escape(about),
            text,
            has_page: false,
        });
    }

    fn add_notice(&mut self, about: &str, text: String) {
        self.0.push(StatusFinding {
            severity: Severity::Notice,
            about: escape(about),
            text,
            has_page: false,
        });
    }

    fn add_page_notice(&mut self, about: &str, text: String) {
        self.0.push(StatusFinding { severity: Severity::Notice, about: escape(about), text, has_page: true });
    }

    /// Adds a queue's findings: it is missing, or no worker consumes it.
    fn add_queue(&mut self, snapshot: &StatusSnapshot, state: &QueueState) {
        for missing in &state.missing {
            let text = format!("the queue {} does not exist (`oncely topology apply`)", escape(missing));
            self.add_danger(&state.consumer, text);
        }
        let paused =
            snapshot.postgres.as_ref().is_ok_and(|database| database.pause(&state.consumer).is_some());
        let workers = snapshot.workers(&state.consumer).count();
        // If PostgreSQL does not answer, or takes no reports, the state of workers is unknown.
        let reports = snapshot.postgres.as_ref().is_ok_and(|database| !database.read_only);
        let is_alone = reports && workers == 0 && state.subscriptions.is_some();
        if (state.subscriptions == Some(0) || is_alone) && !paused {
            let state_text = match (workers, state.subscriptions) {
                (0, None | Some(0)) => "no worker is running".to_owned(),
                (0, Some(_)) => "its workers died, hang, or can't reach PostgreSQL".to_owned(),
                (1, _) => "1 worker is running and not subscribed".to_owned(),
                (count, _) => format!("{count} workers are running and not subscribed"),
            };
            let ready = state.ready.unwrap_or_default();
            self.add_danger(
                &state.consumer,
                format!(
                    "no worker consumes {}: {state_text}; {} ready",
                    escape(&state.queue),
                    format_count(ready, "message")
                ),
            );
        }
    }

    /// Adds the paused consumers.
    fn add_pauses(&mut self, database: &DatabaseSnapshot, times: Times) {
        for pause in &database.overview.pauses {
            let until = match pause.paused_until {
                Some(until) => format!("until {}", times.format_time(until)),
                None => {
                    format!("until it is resumed (run `oncely consumers resume {}`)", escape(&pause.consumer))
                }
            };
            let text = format!(
                "is paused by {} since {} ({}), {until}: {}",
                escape(&pause.paused_by),
                times.format_time(pause.paused_at),
                format_age(pause.paused_at, database.now),
                escape(&pause.reason)
            );
            self.add_page_notice(&pause.consumer, text);
        }
    }

    /// Adds consumers in which nothing succeeds or many fail, and messages that can't be acknowledged.
    fn add_stalls(&mut self, database: &DatabaseSnapshot, times: Times) {
        for process in database.overview.processes.iter().filter(|process| !process.silent) {
            for report in &process.reports {
                if report.unsettled > 0 {
                    let text = format!(
                        "{} can't be acknowledged: the copies for retry or dead-letter queues \
                         are not published (see the log of worker {})",
                        format_count(report.unsettled, "message"),
                        escape(&process.row.name)
                    );
                    self.add_notice(&report.consumer, text);
                }
                let since = |at| format!("{} ({})", times.format_time(at), format_age(at, database.now));
                let text = match (&report.condition.stalled, &report.condition.failing) {
                    (Some(stalled), _) => {
                        format!(
                            "is stalled since {}: {}",
                            since(stalled.since),
                            format_example(stalled, stalled.code.as_deref())
                        )
                    }
                    (None, Some(failing)) => {
                        // Its text has the SQLSTATE.
                        let last = report
                            .condition
                            .failed
                            .as_ref()
                            .map(|failed| format_example(failed, None))
                            .unwrap_or_default();
                        format!(
                            "every message fails since {} and is retried, {} new ones so far. The last one: {last}",
                            since(failing.since),
                            failing.messages
                        )
                    }
                    (None, None) => {
                        if let Some(contended) = &report.condition.contended {
                            let text = format!(
                                "since {} {CONTENTION_TEXT} (worker {})",
                                since(contended.since),
                                escape(&process.row.name)
                            );
                            self.add_notice(&report.consumer, text);
                        }
                        continue;
                    }
                };
                self.add_danger(&report.consumer, format!("{text} (worker {})", escape(&process.row.name)));
            }
        }
    }

    /// Adds keys that fail while others succeed.
    fn add_failing(&mut self, database: &DatabaseSnapshot) {
        for state in database.consumers.iter().filter(|state| state.failing > 0) {
            let examples: Vec<String> = database
                .failing
                .iter()
                .filter(|key| key.consumer == state.consumer)
                .map(|key| {
                    let error = escape(key.last_error.as_deref().unwrap_or("no error is known"));
                    let (tenant, name) = (escape(&key.tenant), escape(&key.key));
                    let next = match key.not_before.map(|at| at - database.now) {
                        Some(wait) if wait > chrono::Duration::zero() => {
                            format!(", the next in {}", format_age(database.now, database.now + wait))
                        }
                        _ => String::new(),
                    };
                    format!(
                        "tenant {tenant} · key {name}, {}{next}: {error}",
                        format_count(key.attempts, "attempt")
                    )
                })
                .collect();
            let and_more = match state.failing > i64::try_from(examples.len()).unwrap_or(i64::MAX) {
                true => "\n      …",
                false => "",
            };
            let text = format!(
                "{} failed and will be retried:\n      {}{and_more}",
                format_count(state.failing, "message"),
                examples.join("\n      ")
            );
            self.add_notice(&state.consumer, text);
        }
    }

    /// Adds consumers for which too large a share of the recent decisions are dead letters.
    fn add_dead_letter_share(&mut self, recent: &[RecentOutcome]) {
        let read = recent.iter().map(|row| row.count).sum::<i64>();
        let which = if read < MAX_RECENT_ROWS { "decisions" } else { "decisions that were read" };
        // The rows are sorted by consumer.
        let mut consumers: Vec<&str> = recent.iter().map(|row| row.consumer.as_str()).collect();
        consumers.dedup();
        for consumer in consumers {
            let rows = || recent.iter().filter(|row| row.consumer == consumer);
            let all: i64 = rows().map(|row| row.count).sum();
            let dead: i64 = rows().filter(|row| row.outcome == "dead_lettered").map(|row| row.count).sum();
            if dead >= MIN_DEAD_LETTERS && dead * DECISIONS_PER_DEAD_LETTER > all {
                let text = format!(
                    "{dead} of {all} {which} of the last 5 minutes were dead letters (`oncely failed groups`)"
                );
                self.add_danger(consumer, text);
            }
        }
    }

    /// Adds dead letters that wait, and dead-letter queues with fewer messages than that.
    fn add_letters(&mut self, database: &DatabaseSnapshot, queues: &[QueueState]) {
        for letters in &database.letters {
            let dead = queues.iter().find(|state| state.queue == letters.queue).and_then(|state| state.dead);
            let about = queues.iter().find(|state| state.queue == letters.queue).map_or("", |s| &s.consumer);
            let about = if about.is_empty() { &letters.queue } else { about };
            self.add_page_notice(
                about,
                format!("{} waiting (`oncely failed groups`)", format_count(letters.waiting, "dead letter")),
            );
            if let Some(dead) = dead
                && i64::from(dead) < letters.settled
            {
                let text = format!(
                    "{}.dead holds {}, but {} waiting: the queue was purged or deleted. Letters whose body is stored whole can still be requeued",
                    escape(&letters.queue),
                    format_count(dead, "message"),
                    format_count(letters.settled, "dead letter")
                );
                self.add_notice(about, text);
            }
        }
    }

    /// Adds the tenants over their quota.
    fn add_quotas(&mut self, database: &DatabaseSnapshot) {
        for over in &database.over_quota {
            let text = format!(
                "the tenant {} is over its quota: {} not stored, and in the dead-letter queue alone (`oncely tenant usage`)",
                escape(&over.tenant),
                match over.left_out {
                    1 => "the message of 1 dead letter is".to_owned(),
                    count => format!("the messages of {count} dead letters are"),
                }
            );
            self.add_notice("dead letters", text);
        }
    }

    /// Adds expired leases: a copy arrives within half a minute if a worker is subscribed.
    fn add_leases(&mut self, database: &DatabaseSnapshot) {
        for held in database.overview.leases.iter().filter(|held| database.now - held.first_end > MAX_WAIT) {
            let text = format!(
                "{} held by an expired lease, the first expired {} ago, and no run took over \
                 (`oncely leases list --over`)",
                match held.over {
                    1 => "1 key is".to_owned(),
                    count => format!("{count} keys are"),
                },
                format_age(held.first_end, database.now)
            );
            self.add_notice(&held.consumer, text);
        }
    }

    /// Adds the silent processes.
    fn add_processes(&mut self, database: &DatabaseSnapshot) {
        for process in database.overview.processes.iter().filter(|process| process.silent) {
            let row = &process.row;
            let text = format!(
                "has been silent for {} (host {}, process {}): it died, hangs, or can't reach PostgreSQL; if it does not come back: \
                 oncely processes forget",
                format_age(row.last_seen_at, database.now),
                escape(&row.host),
                row.pid
            );
            self.add_notice(&format!("{} {}", row.kind, row.name), text);
        }
    }

    /// Adds a missing relay, events and mirror records that wait for too long, an unsealed trail, and parked events.
    fn add_relay(&mut self, database: &DatabaseSnapshot, has_broker: bool) {
        let relays =
            database.overview.processes.iter().any(|process| process.row.kind == "relay" && !process.silent);
        let late = |since: Option<DateTime<Utc>>| since.filter(|at| database.now - *at > MAX_WAIT);
        // Without a broker no relay runs.
        if !relays && has_broker {
            let text =
                "no relay runs: no event is published, nothing is mirrored, nothing is collected".to_owned();
            self.add_notice("relay", text);
        }
        match late(database.events.oldest_due) {
            Some(oldest) if !relays => {
                let text = format!(
                    "are not published: the oldest was written {} ago",
                    format_age(oldest, database.now)
                );
                self.add_danger("events", text);
            }
            // It may be delayed on purpose, or wait behind a parked one.
            Some(oldest) => {
                let text = format!(
                    "are late: the oldest that is due was written {} ago",
                    format_age(oldest, database.now)
                );
                self.add_notice("events", text);
            }
            None => {}
        }
        if let Some(oldest) = late(database.mirror_queue.oldest) {
            let text = format!(
                "the oldest record waits for {}: duplicates are slower meanwhile",
                format_age(oldest, database.now)
            );
            self.add_notice("mirror queue", text);
        }
        if let Some(since) = database.tables.sealing_since.filter(|at| database.now - *at > MAX_SEAL_AGE) {
            let text = format!(
                "was last sealed {} ago: `oncely gc run` says why, or a transaction has been open for as long",
                format_age(since, database.now)
            );
            self.add_notice("trail", text);
        }
        if database.events.parked > 0 {
            let text = format!("{} parked (`oncely outbox list --state parked`)", database.events.parked);
            self.add_notice("events", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(outcome: &str, count: i64) -> RecentOutcome {
        RecentOutcome { consumer: "payments".to_owned(), outcome: outcome.to_owned(), reason: None, count }
    }

    fn growing(completed: i64, dead: i64) -> usize {
        let mut found = StatusFindings(Vec::new());
        found.add_dead_letter_share(&[recent("completed", completed), recent("dead_lettered", dead)]);
        found.0.len()
    }

    #[test]
    fn one_bad_message_is_no_danger_and_more_than_one_in_twenty_are() {
        assert_eq!(growing(0, 1), 0);
        assert_eq!(growing(1_000, 20), 0);
        assert_eq!(growing(190, 10), 0);
        assert_eq!(growing(189, 10), 1);
    }
}
