//! The keys and the trail that are there when the first message comes.

use std::time::Instant;

use anyhow::Context as _;
use chrono::{DateTime, Datelike as _, TimeDelta, Utc};
use futures::StreamExt as _;
use sqlx::Row as _;

use super::Arguments;
use super::state::State;
use crate::bench::site::Site;

/// Weeks that the trail goes back; the keys of each last an eighth of the time for which there are keys.
const WEEKS: i32 = 8;
/// Shortest retention in seconds: RabbitMQ's consumer timeout of 30 minutes, and the retries. Fewer keys
/// than pass in that time are the oldest of it.
const SHORTEST: f64 = 32.0 * 60.0;
/// Keys in one transaction, and sessions that add keys: several, as in life, and near in time.
const CHUNK: u64 = 50_000;
const SESSIONS: usize = 2;

/// Keys and the trail before the run, and their time, which goes by faster than the clock.
#[derive(Debug)]
pub(crate) struct Past {
    /// Completed keys, and rows of the trail.
    pub(crate) keys: u64,
    /// Sizes before the first message.
    pub(crate) fresh: State,
    /// How long keys are remembered, in seconds.
    pub(crate) retention: f64,
    /// Time from the first key to the last, in seconds.
    span: f64,
    /// Beginning of the week.
    monday: DateTime<Utc>,
    /// Weeks of the trail that have been due.
    due: i32,
}

impl Past {
    /// Fills the tables key by key with their indexes in place: a table with keys that have just been inserted has the free space that random
    /// keys leave in its indexes. (Indexes built afterwards would be packed, and be split page by page during the first minutes.)
    pub(crate) async fn fill(site: &Site<'_>, arguments: &Arguments) -> anyhow::Result<Self> {
        let keys = arguments.keys;
        let span = keys as f64 / arguments.different_rate();
        let now = Utc::now();
        let monday = (now.date_naive() - TimeDelta::days(now.weekday().num_days_from_monday().into()))
            .and_time(chrono::NaiveTime::MIN)
            .and_utc();
        let oldest = now - TimeDelta::milliseconds((span.max(SHORTEST) * 1e3) as i64);
        let mut connection = site.connect().await?;
        sqlx::query("select oncely.make_audit_partitions($1, $2)")
            .bind(monday - TimeDelta::weeks(WEEKS.into()))
            .bind(now)
            .execute(&mut connection)
            .await
            .context("cannot make the trail's partitions")?;
        let began = Instant::now();
        let mut chunks = futures::stream::iter((0..keys).step_by(CHUNK as usize))
            .map(|first| fill(site, first, keys, oldest, span, monday))
            .buffered(SESSIONS);
        let mut done = 0;
        while let Some(filled) = chunks.next().await {
            done += filled.context("cannot fill the tables")?;
            if done % (10 * CHUNK) == 0 || done == keys {
                eprintln!("{done} of {keys} keys are there after {:.0} s", began.elapsed().as_secs_f64());
            }
        }
        drop(chunks);
        // As autovacuum and the relay would have done by then.
        sqlx::raw_sql("vacuum analyze").execute(&mut connection).await?;
        // The first call may only set a mark; the one that finds all sealed up to a mark sets another.
        let mut marks = 0;
        while marks < 2 {
            let seal = sqlx::query("select until_time from oncely.seal_audit()").fetch_one(&mut connection);
            marks += u32::from(seal.await?.get::<Option<DateTime<Utc>>, _>(0).is_none());
        }
        eprintln!("vacuumed and sealed after {:.0} s", began.elapsed().as_secs_f64());
        site.settle().await?;
        let retention = (Utc::now() - oldest).as_seconds_f64();
        let fresh = State::read(&mut connection, retention).await?;
        let past = Self { keys, fresh, retention, span, monday, due: 0 };
        past.set_floor(&mut connection).await?;
        site.append_to_configuration(&past.configuration())?;
        Ok(past)
    }

    /// Returns the lines of the configuration that depend on time. The mirror knows the younger repetitions, the keys know all.
    fn configuration(&self) -> String {
        let retention = self.retention.round();
        // A day is the shortest that a configuration may have; oncely.cell.audit_floor decides.
        let trail = retention.max(86_400.0);
        format!(
            "retention = \"{retention}s\"\nredelivery_horizon = \"30m\"\n\
             retry = {{ delays = [\"1s\"], max_attempts = 3 }}\n\
             [gc]\nschedule = \"0 * * * * *\"\n[mirror]\nttl = \"2m\"\n[audit]\nretention = \"{trail}s\"\n"
        )
    }

    /// Lets a week of the trail become due, and one ahead be missing, for each eighth of the keys that has passed its retention.
    pub(crate) async fn turn_weeks(
        &mut self,
        connection: &mut sqlx::PgConnection,
        elapsed: f64,
    ) -> anyhow::Result<()> {
        // The last eighth is in this week.
        let due = ((elapsed / self.span * f64::from(WEEKS)) as i32).min(WEEKS - 1);
        if due > self.due {
            self.due = due;
            self.set_floor(connection).await?;
            sqlx::raw_sql(include_str!("farthest_week.sql")).execute(connection).await?;
        }
        Ok(())
    }

    /// Keeps the weeks of the trail that are not due.
    async fn set_floor(&self, connection: &mut sqlx::PgConnection) -> anyhow::Result<()> {
        sqlx::query("update oncely.cell set audit_floor = clock_timestamp() - $1::timestamptz")
            .bind(self.monday - TimeDelta::weeks((WEEKS - self.due).into()))
            .execute(connection)
            .await
            .context("cannot set the trail's floor")?;
        Ok(())
    }

    /// Returns how many weeks of the trail have been due.
    pub(crate) fn due(&self) -> i32 {
        self.due
    }
}

/// Adds some keys; returns how many.
async fn fill(
    site: &Site<'_>,
    first: u64,
    keys: u64,
    oldest: DateTime<Utc>,
    span: f64,
    monday: DateTime<Utc>,
) -> anyhow::Result<u64> {
    let end = keys.min(first + CHUNK);
    sqlx::query(include_str!("fill.sql"))
        .bind(i64::try_from(first)?)
        .bind(i64::try_from(end)?)
        .bind(i64::try_from(keys)?)
        .bind(oldest)
        .bind(span)
        .bind(monday)
        .bind(&site.queue)
        .execute(&mut site.connect().await?)
        .await?;
    Ok(end - first)
}
