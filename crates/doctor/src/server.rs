//! PostgreSQL's settings and obstacles to vacuum: `pg.timeouts`, `pg.durability`, `pg.xmin`, `pg.bloat`, `pg.slots`, `pg.indexes`.

use std::time::Duration;

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use super::words::{format_duration, format_size};
use oncely_config::Config;
use oncely_core::decide::PrecheckMode;
use oncely_postgres::{self as pg, ServerSettings};
use oncely_process::preflight::CheckFindings;

/// Runs the checks of PostgreSQL's settings, transactions, tables, slots and indexes.
pub(super) async fn run_checks(config: &Config, limits: &Limits, session: &mut CheckSession<'_>) {
    if let Some(settings) = query_or_skip!(session, "pg.durability", pg::read_server_settings) {
        check_durability(config, &settings, session.findings);
        check_timeouts(config, &settings, session.findings);
        check_bloat(&settings, limits, session).await;
    }
    check_xmin(limits, session).await;
    check_slots(limits, session).await;
    if let Some(invalid) = query_or_skip!(session, "pg.indexes", pg::list_invalid_indexes) {
        session.findings.add_read("pg.indexes", format!("{} invalid indexes", invalid.len()));
        for index in invalid {
            let text = format!("oncely.{index} is invalid: reindex index concurrently oncely.{index}");
            session.findings.add_warning("pg.indexes", index, text);
        }
    }
}

/// Returns whether a consumer trusts mirror hits of the current epoch.
fn trusts_mirror(config: &Config) -> bool {
    config.mirror.as_ref().is_some_and(|mirror| {
        let mode = |precheck: Option<PrecheckMode>| precheck.unwrap_or(mirror.precheck);
        config.consumers.iter().any(|consumer| mode(consumer.precheck) == PrecheckMode::Trust)
    })
}

/// Checks that a reported commit survives a crash, and a failover to a standby.
fn check_durability(config: &Config, settings: &ServerSettings, findings: &mut CheckFindings) {
    const CHECK: &str = "pg.durability";
    let ServerSettings { synchronous_commit, synchronous_standby_names, standbys, physical_slots, .. } =
        settings;
    let on = |is: bool| if is { "on" } else { "off" };
    findings.add_read(
        CHECK,
        format!(
            "fsync {}, full_page_writes {}, synchronous_commit {synchronous_commit}, synchronous_standby_names \
             {synchronous_standby_names:?}, {standbys} standbys, {physical_slots} physical slots",
            on(settings.fsync),
            on(settings.full_page_writes)
        ),
    );
    if !settings.fsync {
        findings.add_error(
            CHECK,
            "fsync",
            "is off: a crash of the machine can lose or corrupt all data, with acknowledged messages",
        );
    }
    if !settings.full_page_writes {
        findings.add_warning(
            CHECK,
            "full_page_writes",
            "is off: a crash of the machine can leave torn pages",
        );
    }
    let waits = !synchronous_standby_names.is_empty();
    match synchronous_commit.as_str() {
        "off" => findings.add_error(
            CHECK,
            "synchronous_commit",
            "is off for this login: a crash loses messages that were acknowledged a moment before",
        ),
        "local" | "remote_write" if waits => {
            let text = format!(
                "is {synchronous_commit} for this login, so commits do not wait until the standby has them on its disk: a failover can \
                 lose messages that were acknowledged"
            );
            findings.add_warning(CHECK, "synchronous_commit", text);
        }
        _ => {}
    }
    if waits && *standbys == 0 {
        findings.add_error(
            CHECK,
            "synchronous_standby_names",
            "commits wait for a standby, and none is connected: nothing is finished until one is",
        );
    }
    if !waits && standbys + physical_slots > 0 {
        let risk = "a standby may take over without the latest commits: messages that were acknowledged just before are lost with them";
        if trusts_mirror(config) {
            let text = format!(
                "{risk}, and with precheck = \"trust\" the mirror may still know them, so a copy that comes again is not run; use \"auto\" \
                 or \"verify\", or let commits wait for the standby (synchronous_standby_names)"
            );
            findings.add_error(CHECK, "mirror.precheck", text);
        } else {
            let text = format!(
                "{risk}; to exclude that, let commits wait for the standby (synchronous_standby_names)"
            );
            findings.add_warning(CHECK, "standby", text);
        }
    }
}

/// Checks that no timeout of the login ends idle sessions, or transactions before their statements may end.
fn check_timeouts(config: &Config, settings: &ServerSettings, findings: &mut CheckFindings) {
    const CHECK: &str = "pg.timeouts";
    let millis = |limit: i64| Duration::from_millis(u64::try_from(limit).unwrap_or(0));
    let (idle, transaction) = (millis(settings.idle_session_timeout), millis(settings.transaction_timeout));
    findings.add_read(
        CHECK,
        format!("idle_session_timeout {idle:?}, transaction_timeout {transaction:?} (0: none)"),
    );
    if !idle.is_zero() {
        let text = format!(
            "is {} for this login: idle lanes lose their sessions; alter role … set idle_session_timeout = 0",
            format_duration(idle)
        );
        findings.add_warning(CHECK, "idle_session_timeout", text);
    }
    let max_transaction_time = config.consumers.iter().map(|consumer| consumer.statement_timeout).max();
    let max_transaction_time =
        max_transaction_time.unwrap_or_default().max(config.postgres.statement_timeout) * 2;
    if !transaction.is_zero() && transaction < max_transaction_time {
        let text = format!(
            "is {} for this login: regular transactions may take {}; alter role … set transaction_timeout = 0",
            format_duration(transaction),
            format_duration(max_transaction_time)
        );
        findings.add_warning(CHECK, "transaction_timeout", text);
    }
}

/// Checks that no old transaction holds back vacuum. Without one it is skipped if the login does not see the sessions of other users.
async fn check_xmin(limits: &Limits, session: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.xmin";
    let Some(oldest) = query_or_skip!(session, CHECK, pg::list_old_transactions) else { return };
    let Some(restricted_login) = query_or_skip!(session, CHECK, pg::read_login_without_activity) else {
        return;
    };
    let mut is_old = false;
    for transaction in &oldest {
        let age = Duration::try_from_secs_f64(transaction.age).unwrap_or_default();
        let holder = match transaction.pid {
            Some(pid) => {
                format!(
                    "a transaction of {:?} (login {}, pid {pid})",
                    transaction.application, transaction.login
                )
            }
            None => format!(
                "a prepared transaction in the database {:?} (login {})",
                transaction.application, transaction.login
            ),
        };
        session.findings.add_read(CHECK, format!("{holder}, {} old", format_duration(age)));
        if age > limits.transaction {
            is_old = true;
            let text = format!("{holder} has held back vacuum for {}", format_duration(age));
            session.findings.add_warning(CHECK, transaction.application.as_str(), text);
        }
    }
    session.findings.add_read(CHECK, format!("{} transactions that hold back vacuum", oldest.len()));
    if let (false, Some(login)) = (is_old, restricted_login) {
        let reason =
            format!("{login} is not told about other users' sessions: grant pg_read_all_stats to {login}");
        session.findings.add_skipped(CHECK, reason);
    }
}

/// Checks that autovacuum is on, and that no table has too many dead rows.
async fn check_bloat(settings: &ServerSettings, limits: &Limits, session: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.bloat";
    if !settings.autovacuum {
        session.findings.add_warning(CHECK, "autovacuum", "is off: dead rows are never cleared away");
    }
    let Some(tables) = query_or_skip!(session, CHECK, pg::list_dead_rows) else { return };
    for table in tables {
        let table_name = format!("oncely.{}", table.relation);
        session.findings.add_read(CHECK, format!("{table_name}: {} rows, {} dead", table.live, table.dead));
        if !table.autovacuum {
            session.findings.add_warning(
                CHECK,
                table_name.as_str(),
                "autovacuum is turned off for this table",
            );
        }
        if table.dead > limits.dead_rows && table.dead > table.live / 5 {
            let last = table.last_autovacuum.map_or_else(|| "never".to_owned(), |at| at.to_rfc3339());
            let text = format!(
                "{} of {} rows are dead; the last autovacuum was: {last}",
                table.dead,
                table.live.saturating_add(table.dead)
            );
            session.findings.add_warning(CHECK, table_name, text);
        }
    }
}

/// Checks that no replication slot has lost its log, or keeps too much of it.
async fn check_slots(limits: &Limits, session: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.slots";
    let Some(slots) = query_or_skip!(session, CHECK, pg::list_replication_slots) else { return };
    session.findings.add_read(CHECK, format!("{} slots", slots.len()));
    for slot in slots {
        let state = if slot.active { "active" } else { "inactive" };
        session.findings.add_read(
            CHECK,
            format!("{}: {state}, {}, keeps {}", slot.name, slot.wal_status, format_size(slot.held)),
        );
        if matches!(slot.wal_status.as_str(), "unreserved" | "lost") {
            let text = format!(
                "its log is {}: the reader can't go on from it; drop the slot and make the reader anew",
                slot.wal_status
            );
            session.findings.add_warning(CHECK, slot.name, text);
        } else if !slot.active && slot.held > limits.slot_bytes {
            let text =
                format!("is inactive and keeps {} of the log: it fills the disk", format_size(slot.held));
            session.findings.add_warning(CHECK, slot.name, text);
        } else if !slot.active {
            let text = format!(
                "is inactive and keeps {} of the log, and all that is to come",
                format_size(slot.held)
            );
            session.findings.add_info(CHECK, slot.name, text);
        }
    }
}
