//! The maintenance of the tables, and the clocks: `pg.partitions`, `pg.default_partition`, `pg.maintenance`, `trail.sealed`, `horizon`,
//! `secrets`, `letters.quota`, `letters.unknown`, `letters.keys`, `time.skew`.

use chrono::TimeDelta;

use super::check_session::{CheckSession, ask};
use super::limits::Limits;
use super::words::{delta, span};
use oncely_config::Config;
use oncely_core::reason::Reason;
use oncely_core::shown;
use oncely_core::units::counted;
use oncely_postgres::{self as pg, KeyUse, MaintenanceState, TenantOverQuota};
use oncely_process::preflight::CheckFindings;

/// The relay creates partitions at least a week ahead.
const AHEAD: TimeDelta = TimeDelta::days(2);
/// The relay checks the clock every hour.
const LOOKED: TimeDelta = TimeDelta::hours(3);
/// A large collection takes hours.
const COLLECTED: TimeDelta = TimeDelta::hours(6);
/// The relay seals every hour; an open transaction delays it.
const SEALED: TimeDelta = TimeDelta::days(2);

/// Maximum age of a signing key.
const OLD: TimeDelta = TimeDelta::days(365);

pub(super) async fn run_checks(config: &Config, limits: &Limits, asking: &mut CheckSession<'_>) {
    let state = ask!(asking, "pg.partitions", pg::maintenance_state);
    match state {
        Some(state) => {
            partitions(&state, asking.found);
            default_partition(&state, asking).await;
            maintenance(config, &state, asking.found);
            sealed(&state, asking.found);
            horizon(config, &state, asking).await;
        }
        None => {
            for check in ["pg.default_partition", "pg.maintenance", "trail.sealed", "horizon"] {
                asking.found.skipped(check, "its data could not be read: see pg.partitions");
            }
        }
    }
    secrets(asking).await;
    quota(asking).await;
    unknown(asking).await;
    encryption(config, asking).await;
    skew(limits, asking).await;
}

fn partitions(state: &MaintenanceState, found: &mut CheckFindings) {
    const CHECK: &str = "pg.partitions";
    found.add_read(CHECK, format!("partitions until {:?}", state.partitions_until));
    match state.partitions_until.map(|until| until - state.now) {
        None => found.warning(CHECK, "oncely.audit", "there is no partition but the default one"),
        Some(ahead) if ahead < AHEAD => {
            let what = match ahead > TimeDelta::zero() {
                true => format!("its partitions end in {}", delta(ahead)),
                false => format!("its partitions ended {} ago", delta(-ahead)),
            };
            let what = format!(
                "{what}: rows then go to the default partition; a relay makes new ones every hour, and its log says why it could not"
            );
            found.warning(CHECK, "oncely.audit", what);
        }
        Some(_) => {}
    }
}

async fn default_partition(state: &MaintenanceState, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "pg.default_partition";
    let has_rows = if state.default_bytes == 0 {
        Some(false)
    } else if state.default_readable {
        ask!(asking, CHECK, pg::default_partition_has_rows)
    } else {
        Some(state.default_rows > 0)
    };
    let Some(has_rows) = has_rows else { return };
    asking.found.add_read(
        CHECK,
        format!("oncely.audit_default: {} bytes, about {} rows", state.default_bytes, state.default_rows),
    );
    if has_rows {
        let what = "has rows: their week has no partition; `oncely gc run`, and every relay within the hour, makes it and moves them there";
        asking.found.warning(CHECK, "oncely.audit_default", what);
    }
}

fn maintenance(config: &Config, state: &MaintenanceState, found: &mut CheckFindings) {
    const CHECK: &str = "pg.maintenance";
    let age = state.now - state.clock_seen_at;
    found.add_read(CHECK, format!("the clock was last checked at {}", state.clock_seen_at));
    if age > LOOKED {
        let what = format!(
            "the database's clock was not checked for {}: no relay maintains the tables, nothing is collected",
            delta(age)
        );
        found.warning(CHECK, "", what);
        return;
    }
    let due = config.gc.schedule.find_next_occurrence(&state.collected_at, false).ok();
    if let Some(late) = due.map(|due| state.now - due).filter(|late| *late > COLLECTED) {
        let what = format!(
            "a collection was due {} ago, and none has ended since: a relay's log says why; `oncely gc run` runs one now",
            delta(late)
        );
        found.warning(CHECK, "", what);
    }
    let age = state.now - state.counted_at;
    if age > LOOKED {
        let what = format!(
            "stored dead letters were not counted for {}: a relay does it every minute, and its log says why it can't",
            delta(age)
        );
        found.warning(CHECK, "", what);
    }
}

fn sealed(state: &MaintenanceState, found: &mut CheckFindings) {
    const CHECK: &str = "trail.sealed";
    found.add_read(CHECK, format!("sealed up to about {:?}", state.sealing_since));
    match state.sealing_since.map(|since| state.now - since) {
        None => found.info(CHECK, "oncely.audit", "no seal was begun yet: a relay begins within the hour"),
        Some(age) if age > SEALED => {
            let what = format!(
                "was last sealed {} ago: `oncely gc run` says why, or a transaction has been open for as long",
                delta(age)
            );
            found.warning(CHECK, "oncely.audit", what);
        }
        Some(_) => {}
    }
}

async fn secrets(asking: &mut CheckSession<'_>) {
    const CHECK: &str = "secrets";
    let Some(now) = ask!(asking, CHECK, pg::database_time) else { return };
    let Some(secrets) = ask!(asking, CHECK, pg::list_secrets) else { return };
    asking.found.add_read(CHECK, format!("{} keys", secrets.len()));
    for secret in secrets {
        let about = format!("the key {} of {}", secret.id, secret.purpose);
        let age = now - secret.created_at;
        if secret.state == "signing" && age > OLD {
            let what = format!("signs since {}: `oncely secrets rotate {}`", delta(age), secret.purpose);
            asking.found.info(CHECK, about.clone(), what);
        }
        let over = secret.accepted_until.map(|until| now - until).filter(|over| *over > LOOKED);
        if let Some(over) = over {
            let what = format!("expired {} ago: a relay, or `oncely gc run`, removes it", delta(over));
            asking.found.info(CHECK, about, what);
        }
    }
}

async fn horizon(config: &Config, state: &MaintenanceState, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "horizon";
    let Some(letters) = ask!(asking, CHECK, pg::waiting_letters) else { return };
    let Some(known) = ask!(asking, CHECK, pg::known_consumers) else { return };
    asking.found.add_read(CHECK, format!("{} consumers with waiting dead letters", letters.len()));
    for consumer in &config.consumers {
        let name = consumer.name.as_str();
        let Some(letter) = letters.iter().find(|letter| letter.consumer == name) else { continue };
        let age = (state.now - letter.oldest).to_std().unwrap_or_default();
        let retention = known.iter().find(|known| known.consumer == name).map(|known| known.retention);
        let retention = retention.unwrap_or(consumer.retention);
        asking.found.add_read(CHECK, format!("{name}: the oldest waits for {}", span(age)));
        let place = format!("consumers.{name}");
        if age > retention {
            let what = format!(
                "a dead letter has waited for {}, longer than keys are remembered ({}): it may be unknown whether \
                 its message took effect since; check it (`oncely failed list`), then requeue or discard it",
                span(age),
                span(retention)
            );
            asking.found.warning(CHECK, place, what);
        } else if age > consumer.horizon() {
            let what = format!(
                "a dead letter has waited for {}, longer than redelivery_horizon plans for ({}): {} from now its key is forgotten; \
                 requeue or discard it (`oncely failed groups`), or lengthen redelivery_horizon and retention",
                span(age),
                span(consumer.horizon()),
                span(retention.saturating_sub(age))
            );
            asking.found.warning(CHECK, place, what);
        }
    }
}

/// Maximum number of tenants that are named.
const NAMED: i64 = 10;

async fn quota(asking: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.quota";
    let Some(over) = ask!(asking, CHECK, pg::over_quota, NAMED) else { return };
    asking
        .found
        .add_read(CHECK, format!("{} tenants over their quota (up to {NAMED} are looked for)", over.len()));
    for TenantOverQuota { tenant, left_out } in over {
        let what = format!(
            "the messages of {left_out} open dead letters of the tenant {} are in the dead-letter queue alone: they did not fit into its quota",
            shown::value(&tenant)
        );
        asking.found.warning(CHECK, "oncely.dead_letters", what);
    }
}

async fn unknown(asking: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.unknown";
    let reason = Reason::OutcomeUnknown.as_str();
    let Some(letters) = ask!(asking, CHECK, pg::waiting_letters_of, reason) else { return };
    asking.found.add_read(CHECK, format!("{} consumers with such letters", letters.len()));
    for letter in letters {
        let what = format!(
            "{} waiting as {reason}: a step may have taken effect; check whether it did (`oncely failed list \
             --reason {reason}`, `oncely explain`)",
            counted(letter.waiting, "message")
        );
        asking.found.warning(CHECK, letter.consumer, what);
    }
}

async fn encryption(config: &Config, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "letters.keys";
    let Some(used) = ask!(asking, CHECK, pg::keys_in_use) else { return };
    let known = config.encryption.as_ref().map_or(&[][..], |settings| settings.ids.as_slice());
    let told: Vec<String> = used.iter().map(|one| format!("{} {}", one.key, one.letters)).collect();
    let told = if told.is_empty() { "none".to_owned() } else { told.join(", ") };
    asking
        .found
        .add_read(CHECK, format!("keys here: {}; encrypted letters by key: {told}", known.join(", ")));
    for KeyUse { key, letters } in used.into_iter().filter(|one| !known.contains(&one.key)) {
        let what = format!(
            "the bodies of {letters} dead letters are encrypted with key {}, which this process does not have",
            shown::value(&key)
        );
        asking.found.warning(CHECK, "encryption.keys", what);
    }
}

async fn skew(limits: &Limits, asking: &mut CheckSession<'_>) {
    const CHECK: &str = "time.skew";
    let Some(clock) = ask!(asking, CHECK, pg::read_clock) else { return };
    let apart = clock.database - clock.here;
    asking.found.add_read(
        CHECK,
        format!(
            "the database's clock is {} ms ahead, give or take {} ms",
            apart.num_milliseconds(),
            clock.uncertainty.num_milliseconds()
        ),
    );
    let sure = (apart.abs() - clock.uncertainty).to_std().unwrap_or_default();
    if sure > limits.skew {
        let what = format!(
            "the database's clock and this machine's are {} apart ({} is ahead): times in logs and ages mislead; run a time service on \
             both",
            delta(apart.abs()),
            if apart > TimeDelta::zero() { "the database's" } else { "this machine's" }
        );
        asking.found.warning(CHECK, "", what);
    }
}
