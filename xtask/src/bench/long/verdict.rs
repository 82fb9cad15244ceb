//! The count of everything at the end, and the ratios.

use std::sync::PoisonError;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use serde_json::json;
use sqlx::{PgConnection, Row as _};

use super::minute::Minute;
use super::state::State;
use super::traffic::{Times, Traffic};
use crate::bench::case::find;
use crate::bench::outcome::{Outcome, rounded};
use crate::bench::site::Site;

/// Fails unless each message has taken effect once, or was rejected; compares the end with the beginning.
pub(crate) async fn judge(
    traffic: &mut Traffic,
    site: &Site<'_>,
    minutes: &[Minute],
) -> anyhow::Result<Vec<Outcome>> {
    traffic.finish(site).await?;
    eprintln!("counting");
    let mut connection = site.connect().await?;
    let live = verify(traffic, site, &mut connection).await?;
    let end = State::read(&mut connection, traffic.past.retention).await?;
    let third = (minutes.len() / 3).max(1);
    let compared = if minutes.len() >= 20 { 10 } else { third };
    let (first, last) = (head(minutes, compared), tail(minutes, compared));
    let (first_times, last_times) =
        (times(&mut connection, traffic, first).await?, times(&mut connection, traffic, last).await?);
    let (first_cpu, last_cpu) = (mean(first, Minute::total_cpu), mean(last, Minute::total_cpu));
    let bytes = end.key_bytes as f64 / live as f64;
    let fresh = traffic.past.fresh.key_bytes as f64 / traffic.past.keys as f64;
    let wal = tail(minutes, third);
    let compare = |name: &str, ratio: f64, unit: &str, first: f64, last: f64| {
        find(name).map(|case| {
            Outcome::new(case, vec![ratio])
                .note(&format!("first_{unit}"), json!(rounded(first)))
                .note(&format!("last_{unit}"), json!(rounded(last)))
                .note("minutes", json!(minutes.len()))
                .note("minutes_compared", json!(compared))
                .note("keys", json!(traffic.past.keys))
        })
    };
    let wal_outcome = find("long_wal").map(|case| {
        Outcome::new(case, vec![mean(wal, |minute| minute.wal)])
            .note("full_page_images", json!(rounded(mean(wal, |minute| minute.full_pages))))
            .note("checkpoints", json!(minutes.last().map(|minute| minute.checkpoints)))
            .note("minutes_counted", json!(third))
    });
    let outcomes = [
        compare("long_p99", last_times.p99 / first_times.p99, "p99_ms", first_times.p99, last_times.p99),
        compare("long_cpu", last_cpu / first_cpu, "cpu_us", first_cpu, last_cpu),
        compare("long_bytes_per_key", bytes / fresh, "bytes", fresh, bytes),
        wal_outcome,
    ];
    Ok(outcomes.into_iter().flatten().collect())
}

fn head(minutes: &[Minute], count: usize) -> &[Minute] {
    minutes.get(..count).unwrap_or(minutes)
}

fn tail(minutes: &[Minute], count: usize) -> &[Minute] {
    minutes.get(minutes.len().saturating_sub(count)..).unwrap_or(minutes)
}

/// Mean over the messages of some minutes.
fn mean(minutes: &[Minute], of: impl Fn(&Minute) -> f64) -> f64 {
    let messages: f64 = minutes.iter().map(|minute| minute.messages).sum();
    minutes.iter().map(|minute| of(minute) * minute.messages).sum::<f64>() / messages.max(1.0)
}

/// From publish to commit, of all messages of some minutes.
async fn times(
    connection: &mut PgConnection,
    traffic: &Traffic,
    minutes: &[Minute],
) -> anyhow::Result<Times> {
    let until = minutes.last().context("there is no minute")?.state.at;
    let first = minutes.first().context("there is no minute")?;
    let from = match first.number {
        1 => traffic.past.fresh.at,
        _ => until - chrono::TimeDelta::minutes(i64::try_from(minutes.len())?),
    };
    Times::read(connection, 0, from, until).await
}

/// Returns how many keys there are.
async fn verify(traffic: &Traffic, site: &Site<'_>, connection: &mut PgConnection) -> anyhow::Result<u64> {
    let (different, rejected) = traffic.sent.context("the publisher has told nothing")?;
    let due = different - rejected;
    let facts = [
        ("effects", "select count(*) from bench.payments", due),
        (
            "distinct keys of effects",
            "select count(*) from (select distinct tenant, key from bench.payments) as p",
            due,
        ),
        (
            "rows of the trail of effects",
            "select count(*) from oncely.audit where outcome = 'completed' and worker <> 'prefilled-1234'",
            due,
        ),
        (
            "rows of the trail of rejected messages",
            "select count(*) from oncely.audit where outcome = 'dead_lettered'",
            rejected,
        ),
        ("keys given up", "select count(*) from oncely.idempotency_keys where status = 'FAILED'", rejected),
        ("keys in progress", "select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS'", 0),
        ("mirror records", "select count(*) from oncely.mirror_queue", 0),
        ("stored dead letters", "select count(*) from oncely.dead_letters", rejected),
    ];
    for (what, query, due) in facts {
        let found: i64 = sqlx::query(query).fetch_one(&mut *connection).await?.get(0);
        anyhow::ensure!(u64::try_from(found) == Ok(due), "{what}: {found} instead of {due}");
    }
    let dead = u64::from(traffic.broker.ready(&format!("{}.dead", site.queue)).await?);
    anyhow::ensure!(dead == rejected, "dead letters: {dead} instead of {rejected}");
    verify_events(traffic, connection).await?;
    let due = traffic.past.due();
    eprintln!(
        "all is there: {different} different messages, {rejected} of them rejected; {due} weeks of the trail became due"
    );
    let live: i64 =
        sqlx::query("select count(*) from oncely.idempotency_keys").fetch_one(connection).await?.get(0);
    Ok(u64::try_from(live)?)
}

/// Fails unless each announced payment has had one event.
async fn verify_events(traffic: &Traffic, connection: &mut PgConnection) -> anyhow::Result<()> {
    let arrived = traffic.arrived.lock().unwrap_or_else(PoisonError::into_inner).ids.clone();
    let wrong = traffic.arrived.lock().unwrap_or_else(PoisonError::into_inner).wrong;
    anyhow::ensure!(wrong == 0, "{wrong} events came twice, or are not ours");
    let mut keys = sqlx::query("select key from bench.payments where customer % 10 = 0").fetch(connection);
    let mut announced = 0;
    while let Some(row) = keys.try_next().await? {
        let key: String = row.get(0);
        anyhow::ensure!(arrived.contains(&key.parse()?), "the event of {key} is lost");
        announced += 1;
    }
    anyhow::ensure!(announced == arrived.len(), "{} events of {announced} payments", arrived.len());
    Ok(())
}
