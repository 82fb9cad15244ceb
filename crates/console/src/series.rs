//! Work over time in spans, for plots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;

use super::pool::Pool;
use oncely_core::durations::{BUCKET_COUNT, quantile};
use oncely_postgres::{self as pg, ConsumerStats, RelayStats};

/// Time range of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Range {
    Quarter,
    Hour,
    SixHours,
    Day,
    Week,
}

impl Range {
    pub(crate) const ALL: [Self; 5] = [Self::Quarter, Self::Hour, Self::SixHours, Self::Day, Self::Week];

    /// Returns the range as written in URLs and labels.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Quarter => "15m",
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.as_str() == text)
    }

    /// Returns the length, and the width of the spans, of which there are about a hundred; in seconds.
    fn seconds(self) -> (i64, i64) {
        match self {
            Self::Quarter => (900, 10),
            Self::Hour => (3_600, 30),
            Self::SixHours => (21_600, 180),
            Self::Day => (86_400, 900),
            Self::Week => (604_800, 5_400),
        }
    }
}

/// Delay in seconds after which a span has been reported; before, it would look like a drop.
const REPORT_DELAY_SECONDS: i64 = 15;

/// Work in a range.
pub(crate) struct Series {
    /// Beginning of the first span, and end of the last one, in seconds since 1970.
    pub(crate) since: i64,
    pub(crate) until: i64,
    /// Width of a span in seconds.
    pub(crate) width: i64,
    consumers: Vec<ConsumerStats>,
    relays: Vec<RelayStats>,
}

/// Work of consumers in a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Span {
    pub(crate) done: i64,
    pub(crate) duplicates: i64,
    pub(crate) retried: i64,
    pub(crate) dead: i64,
    pub(crate) durations: Vec<i64>,
}

impl Span {
    /// Adds a consumer's counts.
    fn add(&mut self, stats: &ConsumerStats) {
        self.done += stats.completed + stats.refused;
        self.duplicates += stats.duplicates;
        self.retried += stats.retried;
        self.dead += stats.dead_lettered;
        self.durations.resize(BUCKET_COUNT, 0);
        for (sum, count) in self.durations.iter_mut().zip(&stats.durations) {
            *sum += count;
        }
    }

    /// Returns the duration in seconds that a `share` (0 to 1) of the deliveries did not exceed; `None` without deliveries.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        quantile(&self.durations, share)
    }
}

impl Series {
    /// Creates the series of a range that ends with the last reported span.
    pub(crate) fn new(
        range: Range,
        now: DateTime<Utc>,
        consumers: Vec<ConsumerStats>,
        relays: Vec<RelayStats>,
    ) -> Self {
        let (length, width) = range.seconds();
        let until = (now.timestamp() - REPORT_DELAY_SECONDS).div_euclid(width) * width;
        Self { since: until - length, until, width, consumers, relays }
    }

    /// Returns the beginning of the first span, from which statistics are queried.
    fn start_time(range: Range, now: DateTime<Utc>) -> DateTime<Utc> {
        let since = Self::new(range, now, Vec::new(), Vec::new()).since;
        DateTime::from_timestamp(since, 0).unwrap_or(now)
    }

    /// Returns all spans in order, including empty ones; of one consumer, or of all.
    pub(crate) fn spans(&self, consumer: Option<&str>) -> Vec<Span> {
        let mut spans = vec![Span::default(); self.span_count()];
        let rows = self.consumers.iter().filter(|stats| consumer.is_none_or(|name| stats.consumer == name));
        for stats in rows {
            if let Some(span) = self.span_index(stats.at).and_then(|index| spans.get_mut(index)) {
                span.add(stats);
            }
        }
        spans
    }

    /// Returns for each span the age in seconds of the oldest entry for a target; `None` if no relay reported.
    pub(crate) fn ages(&self, target: &str) -> Vec<Option<f64>> {
        self.relay_values(target, |stats| stats.oldest_age)
    }

    /// Returns for each span the rate per second of entries that arrived at a target; `None` if no relay reported.
    pub(crate) fn relay_rates(&self, target: &str) -> Vec<Option<f64>> {
        #[allow(clippy::cast_precision_loss)] // counts below 2^53
        self.relay_values(target, |stats| stats.relayed as f64 / self.width as f64)
    }

    /// Returns a value of each span of a target; `None` if no relay reported.
    fn relay_values(&self, target: &str, value: impl Fn(&RelayStats) -> f64) -> Vec<Option<f64>> {
        let mut values = vec![None; self.span_count()];
        for stats in self.relays.iter().filter(|stats| stats.target == target) {
            if let Some(slot) = self.span_index(stats.at).and_then(|index| values.get_mut(index)) {
                *slot = Some(value(stats));
            }
        }
        values
    }

    /// Converts counts of spans to rates per second.
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    pub(crate) fn rates(&self, spans: &[Span], of: impl Fn(&Span) -> i64) -> Vec<f64> {
        spans.iter().map(|span| of(span) as f64 / self.width as f64).collect()
    }

    fn span_count(&self) -> usize {
        usize::try_from((self.until - self.since) / self.width).unwrap_or(0)
    }

    /// Returns the index of the span with a time; `None` for a time before the first span.
    fn span_index(&self, at: DateTime<Utc>) -> Option<usize> {
        usize::try_from((at.timestamp() - self.since).div_euclid(self.width)).ok()
    }
}

/// Queries ranges once for all users: a series is valid for a sixth of its span width, and for four seconds at least.
#[derive(Default)]
pub(crate) struct Plots(Mutex<BTreeMap<Range, (Instant, Arc<Series>)>>);

impl Plots {
    /// Queries the work in a range, or returns a recent result.
    ///
    /// # Errors
    /// If PostgreSQL does not answer.
    pub(crate) async fn query_series(&self, pool: &Pool, range: Range) -> Result<Arc<Series>, sqlx::Error> {
        let (_, width) = range.seconds();
        let lifetime = Duration::from_secs(u64::try_from(width / 6).unwrap_or(0)).max(Duration::from_secs(4));
        let mut cache = self.0.lock().await;
        if let Some((at, series)) = cache.get(&range)
            && at.elapsed() < lifetime
        {
            return Ok(Arc::clone(series));
        }
        let mut pooled = pool.acquire().await?;
        let now = pooled.session.clock.now();
        let since = Series::start_time(range, now);
        let width = Duration::from_secs(u64::try_from(width).unwrap_or(1));
        let connection = &mut pooled.session.connection;
        let consumers = pg::read_consumer_stats(connection, since, width).await?;
        let relays = pg::read_relay_stats(connection, since, width).await?;
        pooled.give_back();
        let series = Arc::new(Series::new(range, now, consumers, relays));
        cache.insert(range, (Instant::now(), Arc::clone(&series)));
        Ok(series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_in_their_places_and_empty_ones_are_there() {
        let now = DateTime::from_timestamp(1_800_000_007, 0).unwrap();
        let at = |seconds: i64| DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
        let stats = |seconds, consumer: &str, completed| ConsumerStats {
            consumer: consumer.to_owned(),
            at: at(seconds),
            completed,
            duplicates: 1,
            durations: vec![1; BUCKET_COUNT],
            ..ConsumerStats::default()
        };
        // The span that is not reported yet, the last reported one, the first, and one before it.
        let consumers = vec![
            stats(-10, "a", 9),
            stats(-20, "a", 3),
            stats(-20, "b", 4),
            stats(-910, "a", 5),
            stats(-920, "a", 9),
        ];
        let series = Series::new(Range::Quarter, now, consumers, Vec::new());
        let spans = series.spans(None);
        assert_eq!((spans.len(), spans[89].done, spans[0].done, spans[88].done), (90, 7, 5, 0));
        assert_eq!(series.spans(Some("b"))[89].done, 4);
        assert_eq!(spans.iter().map(|span| span.done).sum::<i64>(), 12);
        assert_eq!(spans[89].durations[3], 2);
        assert_eq!(spans[1].quantile(0.5), None);
        assert_eq!(series.rates(&spans, |span| span.done)[89], 0.7);
    }
}
