//! PostgreSQL's settings and obstacles to vacuum: `pg.timeouts`, `pg.durability`, `pg.xmin`, `pg.bloat`, `pg.slots`, `pg.indexes`.

use std::time::Duration;

use super::check_session::{CheckSession, ask};
use super::limits::Limits;
use super::words::{bytes, span};
use oncely_config::Config;
use oncely_core::decide::PrecheckMode;
use oncely_postgres::{self as pg, ServerSettings};
use oncely_process::preflight::CheckFindings;

pub(super) async fn run_checks(config: &Config, limits: &Limits, asking: &mut CheckSession<'_>) {
    if let Some(settings) = ask!(asking, "pg.durability", pg::server_settings) {
        durability(config, &settings, asking.found);
        timeouts(config, &settings, asking.found);
        bloat(&settings, limits, asking).await;
    }
    xmin(limits, asking).await;
    slots(limits, asking).await;
    if let Some(invalid) = ask!(asking, "pg.indexes", pg::invalid_indexes) {
        asking.found.add_read("pg.indexes", format!("{} invalid indexes", invalid.len()));
        for index in invalid {
            let what = format!("oncely.{index} is invalid: reindex index concurrently oncely.{index}");
            asking.found.warning("pg.indexes", index, what);
        }
    }
}

/// Returns whether a consumer trusts mirror hits of the current epoch.
fn trusts(config: &Config) -> bool {
    config.mirror.as_ref().is_some_and(|mirror| {
        let mode = |precheck: Option<PrecheckMode>| precheck.unwrap_or(mirror.precheck);
        config.consumers.iter().any(|consumer| mode(consumer.precheck) == PrecheckMode::Trust)
    })
}

fn durability(config: &Config, settings: &ServerSettings, found: &mut CheckFindings) {
    const CHECK: &str = "pg.durability";
    let ServerSettings { synchronous_commit, synchronous_standby_names, standbys, physical_slots, .. } =
        settings;
    let on = |is: bool| if is { "on" } else { "off" };
    found.add_read(
        CHECK,
        format!(
            "fsync {}, full_page_writes {}, synchronous_commit {synchronous_commit}, synchronous_standby_names \
             {synchronous_standby_names:?}, {standbys} standbys, {physical_slots} physical slots",
            on(settings.fsync),
            on(settings.full_page_writes)
        ),
    );
    if !settings.fsync {
        found.error(
            CHECK,
            "fsync",
            "is off: a crash of the machine can lose or corrupt all data, with acknowledged messages",
        );
    }
    if !settings.full_page_writes {
        found.warning(CHECK, "full_page_writes", "is off: a crash of the machine can leave torn pages");
    }
    let waits = !synchronous_standby_names.is_empty();
    match synchronous_commit.as_str() {
        "off" => found.error(
            CHECK,
            "synchronous_commit",
            "is off for this login: a crash loses messages that were acknowledged a moment before",
        ),
        "local" | "remote_write" if waits => {
            let what = format!(
                "is {synchronous_commit} for this login, so commits do not wait until the standby has them on its disk: a failover can \
                 lose messages that were acknowledged"
            );
            found.warning(CHECK, "synchronous_commit", what);
        }
        _ => {}
    }
    if waits && *standbys == 0 {
        found.error(
            CHECK,
            "synchronous_standby_names",
            "commits wait for a standby, and none is connected: nothing is finished until one is",
        );
    }
    if !waits && standbys + physical_slots > 0 {
        let may = "a standby may take over without the latest commits: messages that were acknowledged just before are lost with them";
        if trusts(config) {
            let what = format!(
                "{may}, and with precheck = \"trust\" the mirror may still know them, so a copy that comes again is not run; use \"auto\" \
                 or \"verify\", or let commits wait for the standby (synchronous_standby_names)"
            );
            found.error(CHECK, "mirror.precheck", what);
        } else {
            let what = format!(
                "{may}; to exclude that, let commits wait for the standby (synchronous_standby_names)"
            );
            found.warning(CHECK, "standby", what);
        }
    }
}

fn timeouts(config: &Config, settings: &ServerSettings, found: &mut CheckFindings) {
    const CHECK: &str = "pg.timeouts";
    let millis = |limit: i64| Duration::from_millis(u64::try_from(limit).unwrap_or(0));
    let (idle, transaction) = (millis(settings.idle_session_timeout), millis(settings.transaction_timeout));
    found.add_read(
        CHECK,
        format!("idle_session_timeout {idle:?}, transaction_timeout {transaction:?} (0: none)"),
    );
    if !idle.is_zero() {
        let what = format!(
            "is {} for this login: idle lanes lose their sessions; alter role … set idle_session_timeout = 0",
            span(idle)
        );
        found.warning(CHECK, "idle_session_timeout", what);
    }
    let longest = config.consumers.iter().map(|consumer| consumer.statement_timeout).max();
    let longest = longest.unwrap_or_default().max(config.postgres.statement_timeout) * 2;
    if !transaction.is_zero() && transaction < longest {
        let what = format!(
            "is {} for this login: regular transactions may take {}; alter role … set transaction_timeout = 0",
            span(transaction),
            span(longest)
        );
        found.warning(CHECK, "transaction_timeout", what);
    }
}

async fn xmin(limits: &Limits, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.xmin";
    let Some(oldest) = ask!(asking, CHECK, pg::old_transactions) else { return };
    let Some(hidden) = ask!(asking, CHECK, pg::hidden_sessions) else { return };
    let mut is_old = false;
    for transaction in &oldest {
        let age = Duration::try_from_secs_f64(transaction.age).unwrap_or_default();
        let who = match transaction.pid {
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
        asking.found.add_read(CHECK, format!("{who}, {} old", span(age)));
        if age > limits.transaction {
            is_old = true;
            let what = format!("{who} has held back vacuum for {}", span(age));
            asking.found.warning(CHECK, transaction.application.as_str(), what);
        }
    }
    asking.found.add_read(CHECK, format!("{} transactions that hold back vacuum", oldest.len()));
    if let (false, Some(login)) = (is_old, hidden) {
        let why =
            format!("{login} is not told about other users' sessions: grant pg_read_all_stats to {login}");
        asking.found.skipped(CHECK, why);
    }
}

async fn bloat(settings: &ServerSettings, limits: &Limits, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.bloat";
    if !settings.autovacuum {
        asking.found.warning(CHECK, "autovacuum", "is off: dead rows are never cleared away");
    }
    let Some(tables) = ask!(asking, CHECK, pg::dead_rows) else { return };
    for table in tables {
        let place = format!("oncely.{}", table.relation);
        asking.found.add_read(CHECK, format!("{place}: {} rows, {} dead", table.live, table.dead));
        if !table.autovacuum {
            asking.found.warning(CHECK, place.as_str(), "autovacuum is turned off for this table");
        }
        if table.dead > limits.dead_rows && table.dead > table.live / 5 {
            let last = table.last_autovacuum.map_or_else(|| "never".to_owned(), |at| at.to_rfc3339());
            let what = format!(
                "{} of {} rows are dead; the last autovacuum was: {last}",
                table.dead,
                table.live.saturating_add(table.dead)
            );
            asking.found.warning(CHECK, place, what);
        }
    }
}

async fn slots(limits: &Limits, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.slots";
    let Some(slots) = ask!(asking, CHECK, pg::replication_slots) else { return };
    asking.found.add_read(CHECK, format!("{} slots", slots.len()));
    for slot in slots {
        let state = if slot.active { "active" } else { "inactive" };
        asking.found.add_read(
            CHECK,
            format!("{}: {state}, {}, keeps {}", slot.name, slot.wal_status, bytes(slot.held)),
        );
        if matches!(slot.wal_status.as_str(), "unreserved" | "lost") {
            let what = format!(
                "its log is {}: the reader can't go on from it; drop the slot and make the reader anew",
                slot.wal_status
            );
            asking.found.warning(CHECK, slot.name, what);
        } else if !slot.active && slot.held > limits.slot_bytes {
            let what = format!("is inactive and keeps {} of the log: it fills the disk", bytes(slot.held));
            asking.found.warning(CHECK, slot.name, what);
        } else if !slot.active {
            let what =
                format!("is inactive and keeps {} of the log, and all that is to come", bytes(slot.held));
            asking.found.info(CHECK, slot.name, what);
        }
    }
}
