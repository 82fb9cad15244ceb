//! The messages of the run, and the look at each minute.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use futures::StreamExt as _;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use serde_json::Value;
use sqlx::{PgConnection, Row as _};
use testbed::{Broker, eventually_within};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::Arguments;
use super::minute::Minute;
use super::past::Past;
use super::state::State;
use crate::bench::measured::check;
use crate::bench::meter::Reading;
use crate::bench::site::{Member, Site};

/// Of ten messages, how many repeat an earlier one; the farthest, in seconds.
pub(crate) const REPEATS_OF_TEN: u32 = 1;
const REPEAT_WITHIN: u32 = 300;
/// Interval of rejected messages.
const POISON_EVERY: u32 = 1_000;
/// Where `bench.capture_and_announce` sends its events.
const EVENTS: &str = "captured";
/// Numbers of effects that may commit after higher ones.
const OUT_OF_ORDER: i64 = 20_000;
/// How long all may take to come to rest after the last message.
const REST: Duration = Duration::from_secs(300);

/// Events that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) ids: HashSet<Uuid>,
    /// Those that came twice, or are no events of ours.
    pub(crate) wrong: u64,
}

/// The programs that run while messages come, and the events that arrive.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) past: Past,
    pub(crate) arrived: Arc<Mutex<Arrived>>,
    pub(crate) broker: Broker,
    /// Different messages that were sent, and those of them that the handler rejects.
    pub(crate) sent: Option<(u64, u64)>,
    members: Vec<Member>,
    watch: PgConnection,
    _receiving: AbortOnDropHandle<()>,
}

/// Counters at the end of a minute.
struct Mark {
    at: DateTime<Utc>,
    reading: Reading,
    reading_at: Instant,
    state: State,
    dead_letters: u64,
}

impl Traffic {
    /// Starts worker and relay, and a consumer of the events.
    pub(crate) async fn start(
        site: &mut Site<'_>,
        arguments: &Arguments,
        past: Past,
    ) -> anyhow::Result<Self> {
        eprintln!(
            "{} messages a second for {} minutes; keys are remembered for {:.0} s",
            arguments.rate, arguments.minutes, past.retention
        );
        let broker = site.broker().await?;
        broker.declare_queue(EVENTS, FieldTable::default()).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut events =
            broker.channel().basic_consume(EVENTS.into(), "".into(), options, FieldTable::default()).await?;
        let arrived = Arc::<Mutex<Arrived>>::default();
        let shared = Arc::clone(&arrived);
        let receiving = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let id = event.properties.message_id().as_ref().and_then(|id| id.as_str().parse().ok());
                let mut arrived = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if !id.is_some_and(|id| arrived.ids.insert(id)) {
                    arrived.wrong += 1;
                }
            }
        });
        let mut members = site.start()?;
        let ready = site.wait_for_consumers(1).await;
        // One that ended says why.
        check(&mut members)?;
        ready?;
        let watch = site.connect().await?;
        let _receiving = AbortOnDropHandle::new(receiving);
        Ok(Self { past, arrived, broker, sent: None, members, watch, _receiving })
    }

    pub(crate) fn events(&self) -> u64 {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).ids.len() as u64
    }

    /// Lets messages come, and prints the figures of each minute. Returns when the last message was sent.
    ///
    /// Live keys are those of the beginning, the effects and dead letters since, minus the deletions of PostgreSQL's statistics:
    /// `n_live_tup` is an estimate after each vacuum, and a count would read the whole table.
    pub(crate) async fn watch(
        &mut self,
        site: &Site<'_>,
        arguments: &Arguments,
        as_json: bool,
    ) -> anyhow::Result<Vec<Minute>> {
        let settings = [
            ("--rate", arguments.rate),
            ("--repeats-of-ten", REPEATS_OF_TEN),
            ("--repeat-within", REPEAT_WITHIN),
            ("--poison-every", POISON_EVERY),
        ]
        .map(|(name, value)| [name.to_owned(), value.to_string()]);
        let messages = site.job.messages.to_string();
        let mut pace = vec!["pace", "--queue", &site.queue, "--messages", &messages, "--seed", "1"];
        pace.extend(settings.iter().flatten().map(String::as_str));
        let environment = site.environment();
        let publishing = site.stage.ask("bench", &pace, &environment);
        tokio::pin!(publishing);
        let mut last = self.mark(site).await?;
        let (began, mut minutes, mut highest) = (Instant::now(), Vec::new(), 0);
        let (mut collected, mut effects, mut checkpoints) = (last.state.deleted_keys, 0, 0);
        for number in 1..=arguments.minutes {
            let end = began + Duration::from_secs(60) * number;
            while Instant::now() < end {
                let pause = (end - Instant::now()).min(Duration::from_secs(1));
                tokio::select! {
                    told = &mut publishing, if self.sent.is_none() => self.sent = Some(read_sent(&told?)?),
                    () = tokio::time::sleep(pause) => {}
                }
                check(&mut self.members)?;
                self.past.turn_weeks(&mut self.watch, began.elapsed().as_secs_f64()).await?;
            }
            let mark = self.mark(site).await?;
            let lowest = highest - OUT_OF_ORDER;
            let times = Times::read(&mut self.watch, lowest, last.at, mark.at).await?;
            highest = times.highest.unwrap_or(highest);
            effects += times.effects;
            checkpoints += u32::from(mark.state.redo != last.state.redo);
            collected = mark.state.deleted_keys - self.past.fresh.deleted_keys;
            let seconds = (mark.at - last.at).as_seconds_f64();
            let settled = times.effects as f64 + (mark.dead_letters - last.dead_letters) as f64;
            let rate = settled / seconds * f64::from(arguments.rate) / arguments.different_rate();
            let usage = mark.reading.since(&last.reading);
            let counted = rate * (mark.reading_at - last.reading_at).as_secs_f64();
            let cpu = usage.cpu.into_iter().map(|(role, used)| (role, used.as_secs_f64() * 1e6 / counted));
            let minute = Minute {
                number,
                rate,
                messages: counted,
                p50: times.p50,
                p99: times.p99,
                cpu: cpu.collect(),
                wal: usage.wal as f64 / counted,
                full_pages: (mark.state.full_pages - last.state.full_pages) as f64 / counted,
                live_keys: i64::try_from(self.past.keys)? + effects + i64::try_from(mark.dead_letters)?
                    - collected,
                collected,
                events: self.events(),
                dead_letters: mark.dead_letters,
                checkpoints,
                backlog: self.broker.depth(&site.queue).await?.0,
                state: mark.state.clone(),
            };
            tell(&minute, as_json)?;
            minutes.push(minute);
            last = mark;
        }
        anyhow::ensure!(collected > 0, "the collection has deleted nothing");
        if self.sent.is_none() {
            let told = tokio::time::timeout(REST, publishing).await.context("the publisher does not end")?;
            self.sent = Some(read_sent(&told?)?);
        }
        Ok(minutes)
    }

    async fn mark(&mut self, site: &Site<'_>) -> anyhow::Result<Mark> {
        let (reading, reading_at) = (
            Reading::take(site.stage, &self.members, &mut self.watch)
                .await
                .context("cannot read the counters")?,
            Instant::now(),
        );
        let state = State::read(&mut self.watch, self.past.retention).await?;
        let dead_letters = self.broker.depth(&format!("{}.dead", site.queue)).await?.0.into();
        Ok(Mark { at: state.at, reading, reading_at, state, dead_letters })
    }

    /// Waits until everything has arrived, and ends the programs.
    pub(crate) async fn finish(&mut self, site: &Site<'_>) -> anyhow::Result<()> {
        let url = site.database.url().to_owned();
        eprintln!("waiting for the last messages and events");
        eventually_within(REST, "queue and table of events are empty", || async {
            let left = self.broker.depth(&site.queue).await?.0;
            anyhow::ensure!(left == 0, "{left} messages in the queue");
            let mut connection = <PgConnection as sqlx::Connection>::connect(&url).await?;
            let left: i64 =
                sqlx::query("select count(*) from oncely.events").fetch_one(&mut connection).await?.get(0);
            anyhow::ensure!(left == 0, "{left} events");
            Ok(())
        })
        .await?;
        site.wait_until_drained().await?;
        site.finish(std::mem::take(&mut self.members)).await
    }

    pub(crate) async fn clear(self) -> anyhow::Result<()> {
        self.broker.delete_queue(EVENTS).await
    }
}

/// From publish to commit, of the effects of a span.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub(crate) struct Times {
    pub(crate) effects: i64,
    highest: Option<i64>,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Times {
    pub(crate) async fn read(
        connection: &mut PgConnection,
        lowest: i64,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> anyhow::Result<Self> {
        let query = sqlx::query_as(include_str!("times.sql")).bind(lowest).bind(from).bind(until);
        query.fetch_one(connection).await.context("cannot read the times of the effects")
    }
}

fn read_sent(told: &str) -> anyhow::Result<(u64, u64)> {
    let told: Value = serde_json::from_str(told).context("the publisher told no JSON")?;
    let of = |name: &str| told[name].as_u64().with_context(|| format!("the publisher told no {name}"));
    Ok((of("different")?, of("rejected")?))
}

fn tell(minute: &Minute, as_json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", minute.json())?;
        eprintln!("{}", minute.row());
    } else {
        writeln!(out, "{}", minute.row())?;
    }
    Ok(out.flush()?)
}
