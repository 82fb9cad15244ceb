//! The maintenance of the tables, and the clocks: `pg.partitions`, `pg.default_partition`, `pg.maintenance`, `trail.sealed`, `horizon`,
//! `secrets`, `letters.quota`, `letters.unknown`, `letters.keys`, `time.skew`.

use chrono::TimeDelta;

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use super::words::{format_delta, format_duration};
use oncely_config::Config;
use oncely_core::reason::Reason;
use oncely_core::shown;
use oncely_core::units::format_count;
use oncely_postgres::{self as pg, KeyUse, MaintenanceState, TenantOverQuota};
use oncely_process::preflight::CheckFindings;

/// Minimum time for which partitions exist; the relay creates them at least a week ahead.
const MIN_PARTITIONS_AHEAD: TimeDelta = TimeDelta::days(2);
/// Maximum age of the last check of the clock; the relay checks it every hour.
const MAX_CLOCK_CHECK_AGE: TimeDelta = TimeDelta::hours(3);
/// Maximum delay of a collection; a large one takes hours.
const MAX_COLLECTION_DELAY: TimeDelta = TimeDelta::hours(6);
/// Maximum age of the last seal; the relay seals every hour, and an open transaction delays it.
const MAX_SEAL_AGE: TimeDelta = TimeDelta::days(2);

/// Maximum age of a signing key.
const MAX_KEY_AGE: TimeDelta = TimeDelta::days(365);

/// Runs the checks of the maintenance, the dead letters, the secrets and the clocks.
pub(super) async fn run_checks(config: &Config, limits: &Limits, session: &mut CheckSession<'_>) {
    let state = query_or_skip!(session, "pg.partitions", pg::read_maintenance_state);
    match state {
        Some(state) => {
            check_partitions(&state, session.findings);
            check_default_partition(&state, session).await;
            check_maintenance(config, &state, session.findings);
            check_seals(&state, session.findings);
            check_horizon(config, &state, session).await;
        }
        None => {
            for check in ["pg.default_partition", "pg.maintenance", "trail.sealed", "horizon"] {
                session.findings.add_skipped(check, "its data could not be read: see pg.partitions");
            }
        }
    }
    check_secrets(session).await;
    check_quota(session).await;
    check_unknown_outcomes(session).await;
    check_encryption(config, session).await;
    check_skew(limits, session).await;
}

/// Checks that the trail has partitions for two days ahead at least.
fn check_partitions(state: &MaintenanceState, findings: &mut CheckFindings) {
    const CHECK: &str = "pg.partitions";
    findings.add_read(CHECK, format!("partitions until {:?}", state.partitions_until));
    match state.partitions_until.map(|until| until - state.now) {
        None => findings.add_warning(CHECK, "oncely.audit", "there is no partition but the default one"),
        Some(ahead) if ahead < MIN_PARTITIONS_AHEAD => {
            let text = match ahead > TimeDelta::zero() {
                true => format!("its partitions end in {}", format_delta(ahead)),
                false => format!("its partitions ended {} ago", format_delta(-ahead)),
            };
            let text = format!(
                "{text}: rows then go to the default partition; a relay makes new ones every hour, and its log says why it could not"
            );
            findings.add_warning(CHECK, "oncely.audit", text);
        }
        Some(_) => {}
    }
}

/// Checks that the default partition of the trail is empty.
async fn check_default_partition(state: &MaintenanceState, session: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.default_partition";
    let has_rows = if state.default_bytes == 0 {
        Some(false)
    } else if state.default_readable {
        query_or_skip!(session, CHECK, pg::default_partition_has_rows)
    } else {
        Some(state.default_rows > 0)
    };
    let Some(has_rows) = has_rows else { return };
    session.findings.add_read(
        CHECK,
        format!("oncely.audit_default: {} bytes, about {} rows", state.default_bytes, state.default_rows),
    );
    if has_rows {
        let text = "has rows: their week has no partition; `oncely gc run`, and every relay within the hour, makes it and moves them there";
        session.findings.add_warning(CHECK, "oncely.audit_default", text);
    }
}

/// Checks that the clock, the collection and the count of dead letters are not overdue.
fn check_maintenance(config: &Config, state: &MaintenanceState, findings: &mut CheckFindings) {
    const CHECK: &str = "pg.maintenance";
    let age = state.now - state.clock_seen_at;
    findings.add_read(CHECK, format!("the clock was last checked at {}", state.clock_seen_at));
    if age > MAX_CLOCK_CHECK_AGE {
        let text = format!(
            "the database's clock was not checked for {}: no relay maintains the tables, nothing is collected",
            format_delta(age)
        );
        findings.add_warning(CHECK, "", text);
        return;
    }
    let due = config.gc.schedule.find_next_occurrence(&state.collected_at, false).ok();
    if let Some(delay) = due.map(|due| state.now - due).filter(|delay| *delay > MAX_COLLECTION_DELAY) {
        let text = format!(
            "a collection was due {} ago, and none has ended since: a relay's log says why; `oncely gc run` runs one now",
            format_delta(delay)
        );
        findings.add_warning(CHECK, "", text);
    }
    let age = state.now - state.counted_at;
    if age > MAX_CLOCK_CHECK_AGE {
        let text = format!(
            "stored dead letters were not counted for {}: a relay does it every minute, and its log says why it can't",
            format_delta(age)
        );
        findings.add_warning(CHECK, "", text);
    }
}

/// Checks that the trail was sealed within two days.
fn check_seals(state: &MaintenanceState, findings: &mut CheckFindings) {
    const CHECK: &str = "trail.sealed";
    findings.add_read(CHECK, format!("sealed up to about {:?}", state.sealing_since));
    match state.sealing_since.map(|since| state.now - since) {
        None => {
            findings.add_info(CHECK, "oncely.audit", "no seal was begun yet: a relay begins within the hour")
        }
        Some(age) if age > MAX_SEAL_AGE => {
            let text = format!(
                "was last sealed {} ago: `oncely gc run` says why, or a transaction has been open for as long",
                format_delta(age)
            );
            findings.add_warning(CHECK, "oncely.audit", text);
        }
        Some(_) => {}
    }
}

/// Reports keys that have signed for more than a year, and expired ones that are still stored.
async fn check_secrets(session: &mut CheckSession<'_>) {
    const CHECK: &str = "secrets";
    let Some(now) = query_or_skip!(session, CHECK, pg::read_database_time) else { return };
    let Some(secrets) = query_or_skip!(session, CHECK, pg::list_secrets) else { return };
    session.findings.add_read(CHECK, format!("{} keys", secrets.len()));
    for secret in secrets {
        let about = format!("the key {} of {}", secret.id, secret.purpose);
        let age = now - secret.created_at;
        if secret.state == "signing" && age > MAX_KEY_AGE {
            let text =
                format!("signs since {}: `oncely secrets rotate {}`", format_delta(age), secret.purpose);
            session.findings.add_info(CHECK, about.clone(), text);
        }
        let expired_for = secret
            .accepted_until
            .map(|until| now - until)
            .filter(|expired_for| *expired_for > MAX_CLOCK_CHECK_AGE);
        if let Some(expired_for) = expired_for {
            let text =
                format!("expired {} ago: a relay, or `oncely gc run`, removes it", format_delta(expired_for));
            session.findings.add_info(CHECK, about, text);
        }
    }
}

/// Checks that no dead letter has waited for longer than its consumer remembers keys, or plans for.
async fn check_horizon(config: &Config, state: &MaintenanceState, session: &mut CheckSession<'_>) {
    const CHECK: &str = "horizon";
    let Some(letters) = query_or_skip!(session, CHECK, pg::count_waiting_letters) else { return };
    let Some(consumers) = query_or_skip!(session, CHECK, pg::list_consumers) else { return };
    session.findings.add_read(CHECK, format!("{} consumers with waiting dead letters", letters.len()));
    for consumer in &config.consumers {
        let name = consumer.name.as_str();
        let Some(letter) = letters.iter().find(|letter| letter.consumer == name) else { continue };
        let age = (state.now - letter.oldest).to_std().unwrap_or_default();
        let retention = consumers.iter().find(|one| one.consumer == name).map(|one| one.retention);
        let retention = retention.unwrap_or(consumer.retention);
        session.findings.add_read(CHECK, format!("{name}: the oldest waits for {}", format_duration(age)));
        let subject = format!("consumers.{name}");
        if age > retention {
            let text = format!(
                "a dead letter has waited for {}, longer than keys are remembered ({}): it may be unknown whether \
                 its message took effect since; check it (`oncely failed list`), then requeue or discard it",
                format_duration(age),
                format_duration(retention)
            );
            session.findings.add_warning(CHECK, subject, text);
        } else if age > consumer.horizon() {
            let text = format!(
                "a dead letter has waited for {}, longer than redelivery_horizon plans for ({}): {} from now its key is forgotten; \
                 requeue or discard it (`oncely failed groups`), or lengthen redelivery_horizon and retention",
                format_duration(age),
                format_duration(consumer.horizon()),
                format_duration(retention.saturating_sub(age))
            );
            session.findings.add_warning(CHECK, subject, text);
        }
    }
}

/// Maximum number of tenants that are named.
const MAX_NAMED_TENANTS: i64 = 10;

/// Reports the tenants with open dead letters that are not stored.
async fn check_quota(session: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.quota";
    let Some(tenants) = query_or_skip!(session, CHECK, pg::list_tenants_over_quota, MAX_NAMED_TENANTS) else {
        return;
    };
    session.findings.add_read(
        CHECK,
        format!("{} tenants over their quota (up to {MAX_NAMED_TENANTS} are looked for)", tenants.len()),
    );
    for TenantOverQuota { tenant, left_out } in tenants {
        let text = format!(
            "the messages of {left_out} open dead letters of the tenant {} are in the dead-letter queue alone: they did not fit into its quota",
            shown::escape_value(&tenant)
        );
        session.findings.add_warning(CHECK, "oncely.dead_letters", text);
    }
}

/// Reports waiting dead letters with an unknown outcome.
async fn check_unknown_outcomes(session: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.unknown";
    let reason = Reason::OutcomeUnknown.as_str();
    let Some(letters) = query_or_skip!(session, CHECK, pg::count_waiting_letters_with_reason, reason) else {
        return;
    };
    session.findings.add_read(CHECK, format!("{} consumers with such letters", letters.len()));
    for letter in letters {
        let text = format!(
            "{} waiting as {reason}: a step may have taken effect; check whether it did (`oncely failed list \
             --reason {reason}`, `oncely explain`)",
            format_count(letter.waiting, "message")
        );
        session.findings.add_warning(CHECK, letter.consumer, text);
    }
}

/// Reports dead letters that are encrypted with a key that this configuration does not have.
async fn check_encryption(config: &Config, session: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.keys";
    let Some(key_uses) = query_or_skip!(session, CHECK, pg::list_keys_in_use) else { return };
    let configured_keys = config.encryption.as_ref().map_or(&[][..], |settings| settings.ids.as_slice());
    let counts: Vec<String> = key_uses.iter().map(|one| format!("{} {}", one.key, one.letters)).collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    session.findings.add_read(
        CHECK,
        format!("keys here: {}; encrypted letters by key: {counts}", configured_keys.join(", ")),
    );
    for KeyUse { key, letters } in key_uses.into_iter().filter(|one| !configured_keys.contains(&one.key)) {
        let text = format!(
            "the bodies of {letters} dead letters are encrypted with key {}, which this process does not have",
            shown::escape_value(&key)
        );
        session.findings.add_warning(CHECK, "encryption.keys", text);
    }
}

/// Checks that the database's clock and this machine's agree.
async fn check_skew(limits: &Limits, session: &mut CheckSession<'_>) {
    const CHECK: &str = "time.skew";
    let Some(clock) = query_or_skip!(session, CHECK, pg::read_clock) else { return };
    let difference = clock.database - clock.local;
    session.findings.add_read(
        CHECK,
        format!(
            "the database's clock is {} ms ahead, give or take {} ms",
            difference.num_milliseconds(),
            clock.uncertainty.num_milliseconds()
        ),
    );
    let certain_difference = (difference.abs() - clock.uncertainty).to_std().unwrap_or_default();
    if certain_difference > limits.skew {
        let text = format!(
            "the database's clock and this machine's are {} apart ({} is ahead): times in logs and ages mislead; run a time service on \
             both",
            format_delta(difference.abs()),
            if difference > TimeDelta::zero() { "the database's" } else { "this machine's" }
        );
        session.findings.add_warning(CHECK, "", text);
    }
}
