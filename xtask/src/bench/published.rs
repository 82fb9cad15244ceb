//! One measured run of a publisher: a full table of events, the clock from the first message in the queue to an empty table, then
//! a look at each message.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use sqlx::{PgConnection, Row as _};

use super::job::{Consumer, Publisher};
use super::measured::{LOOK, Measured, STUCK, check};
use super::meter::{Reading, Usage};
use super::site::Site;

/// Starts the publisher of a filled site, measures until all is published and its table empty, ends it, verifies.
pub(crate) async fn published(site: &mut Site<'_>) -> anyhow::Result<Measured> {
    let Consumer::Nobody(publisher) = site.job.consumer else { anyhow::bail!("not a job of a publisher") };
    let due = site.job.messages;
    let mut watch = site.connect().await?;
    let ids = ids(&mut watch, publisher).await?;
    let broker = site.broker().await?;
    let before = Reading::take(site.stage, &[], &mut watch).await?;
    let mut members = site.start()?;
    let (mut first, mut begin) = (0, None);
    let mut started = Instant::now();
    let mut progress = (0, Instant::now());
    loop {
        let there = u64::from(broker.depth(&site.queue).await?.0);
        if there > 0 && begin.is_none() {
            started = Instant::now();
            begin = Some(Reading::take(site.stage, &members, &mut watch).await?);
            first = there;
        }
        if there >= due && !is_left(&mut watch, publisher).await? {
            break;
        }
        if there > progress.0 {
            progress = (there, Instant::now());
        }
        anyhow::ensure!(progress.1.elapsed() < STUCK, "{there} of {due} messages, and nothing moves");
        check(&mut members)?;
        tokio::time::sleep(LOOK).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let end = Reading::take(site.stage, &members, &mut watch).await?;
    let messages = due.saturating_sub(first).max(1) as f64;
    let Usage { cpu, .. } = begin.map(|begin| end.since(&begin)).unwrap_or_default();
    let measured = Measured {
        rate: messages / seconds,
        cpu: cpu.into_iter().map(|(role, time)| (role, time.as_secs_f64() * 1e6 / messages)).collect(),
        wal: end.since(&before).wal as f64 / due as f64,
        memory: members.iter().filter_map(|member| member.process.peak_memory()).max().unwrap_or(0),
        ..Measured::default()
    };
    verify(site, publisher, ids).await?;
    site.finish(members).await?;
    Ok(measured)
}

/// The events that are to be published; of the bare client, nobody knows before.
async fn ids(watch: &mut PgConnection, publisher: Publisher) -> anyhow::Result<Option<HashSet<String>>> {
    let query = match publisher {
        Publisher::Relay { .. } => "select id::text from oncely.events",
        Publisher::OutboxCore => "select id::text from outbox_events",
        Publisher::Bare => return Ok(None),
    };
    let rows = sqlx::query(query).fetch_all(watch).await?;
    Ok(Some(rows.iter().map(|row| row.get(0)).collect()))
}

/// Is there an event that its table does not know as published?
async fn is_left(watch: &mut PgConnection, publisher: Publisher) -> anyhow::Result<bool> {
    let query = match publisher {
        Publisher::Relay { .. } => "select exists (select from oncely.events)",
        Publisher::OutboxCore => "select exists (select from outbox_events where status <> 'Sent')",
        Publisher::Bare => return Ok(false),
    };
    Ok(sqlx::query(query).fetch_one(watch).await?.get(0))
}

/// Empties the queue: each event must be there once, and those of an ordering key in their order.
async fn verify(site: &Site<'_>, publisher: Publisher, ids: Option<HashSet<String>>) -> anyhow::Result<()> {
    let due = usize::try_from(site.job.messages)?;
    let broker = site.broker().await?;
    let mut found = HashSet::with_capacity(due);
    let mut last: HashMap<i64, i64> = HashMap::new();
    for message in broker.take_exactly(&site.queue, due).await? {
        let properties = &message.properties;
        let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        anyhow::ensure!(found.insert(id.clone()), "{id} was published twice");
        anyhow::ensure!(*properties.delivery_mode() == Some(2), "{id} is not persistent");
        anyhow::ensure!(message.data.len() == 300, "{id} has {} bytes instead of 300", message.data.len());
        if matches!(publisher, Publisher::Relay { ordering_keys: 1.. }) {
            let payload: serde_json::Value = serde_json::from_slice(&message.data)?;
            let number = |name: &str| payload[name].as_i64().unwrap_or_default();
            let before = last.insert(number("customer"), number("amount"));
            anyhow::ensure!(
                before < Some(number("amount")),
                "{id} came before {before:?} of its ordering key"
            );
        }
    }
    let left = broker.ready(&site.queue).await?;
    anyhow::ensure!(left == 0, "{left} messages more than events");
    anyhow::ensure!(ids.is_none_or(|ids| ids == found), "other messages than events");
    Ok(())
}
