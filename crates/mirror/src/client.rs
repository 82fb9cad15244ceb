//! Reads and writes the mirror in Redis within a time budget.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use redis::{Pipeline, RedisResult, Value};

use super::Breaker;
use super::connect::connect;
use super::connection::{ANSWER_TIME, RedisConnection, info};
use super::error::MirrorError;
use super::layout::Layout;
use super::tag::{Tag, TagKey};
use oncely_config::{MirrorSettings, Problems};
use oncely_net::tls::{TlsFault, fault_of};

/// Redis as a mirror of completed keys.
#[derive(Clone)]
pub struct Mirror {
    settings: MirrorSettings,
    layout: Layout,
    budget: Duration,
    state: Arc<Mutex<MirrorState>>,
}

#[derive(Default)]
struct MirrorState {
    connection: Option<RedisConnection>,
    /// Number of connections so far: the failures of an earlier one say nothing of the present one.
    generation: u64,
    connecting: bool,
    breaker: Breaker,
}

impl MirrorState {
    fn set(&mut self, connection: RedisConnection) {
        (self.connection, self.generation) = (Some(connection), self.generation + 1);
    }

    /// Drops a connection that failed: a late answer must not be taken for the next call's. Returns whether that opened the breaker; `None`
    /// if it was dropped before, for all calls in flight on it fail together, which is one failure.
    fn fails(&mut self, generation: u64, now: Instant) -> Option<bool> {
        if self.generation != generation {
            return None;
        }
        (self.connection, self.generation) = (None, generation + 1);
        Some(self.breaker.failed(now))
    }
}

const WARM_UP: Duration = Duration::from_secs(1);

impl Mirror {
    pub fn new(settings: &MirrorSettings) -> Result<Self, MirrorError> {
        // Checked now, used later.
        std::iter::once(&settings.url).chain(&settings.sentinels).try_for_each(|url| info(url).map(drop))?;
        Ok(Self {
            settings: settings.clone(),
            layout: Layout::new(settings.ttl, settings.buckets),
            budget: settings.budget,
            state: Arc::default(),
        })
    }

    /// Creates the mirror at the start of a process; returns unusable settings as problems.
    pub fn open(settings: &MirrorSettings) -> Result<Self, Problems> {
        Self::new(settings).map_err(|error| {
            let mut problems = Problems::default();
            problems.add("redis.url", error.to_string());
            problems
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, MirrorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn connect(&self) -> Result<RedisConnection, MirrorError> {
        connect(&self.settings).await
    }

    /// Returns the maximum lifetime of an entry.
    pub fn ttl(&self) -> Duration {
        self.settings.ttl
    }

    pub(super) fn settings(&self) -> &MirrorSettings {
        &self.settings
    }

    /// Returns the TLS failure between Redis and this program; `None` for any other error.
    pub fn tls_fault(&self, error: &MirrorError) -> Option<TlsFault> {
        fault_of(error, self.settings.tls.as_ref().is_some_and(|tls| tls.cert.is_some()))
    }

    /// Returns for each tag whether it is present with its evidence: one round trip, within the budget. `None` if the mirror gave no
    /// answer, for any reason: the caller asks PostgreSQL. Never waits for a connection: a missing one is opened in the background.
    pub async fn look_up(&self, key: &TagKey, tags: &[Tag], now: DateTime<Utc>) -> Option<Vec<bool>> {
        let (mut connection, generation) = {
            let mut state = self.state();
            if !state.breaker.allows(Instant::now()) {
                return None;
            }
            match state.connection.clone() {
                Some(connection) => (connection, state.generation),
                None => {
                    if !std::mem::replace(&mut state.connecting, true) {
                        let mirror = self.clone();
                        tokio::spawn(async move { mirror.connect_in_background().await });
                    }
                    return None;
                }
            }
        };
        let questions: Vec<(&Tag, String)> =
            tags.iter().flat_map(|tag| self.layout.read_from(tag, now).map(|bucket| (tag, bucket))).collect();
        let mut pipeline = Pipeline::with_capacity(questions.len());
        // A bucket of another type is an error, and so a miss, of that bucket only and not of the whole round trip.
        pipeline.ignore_errors();
        for (tag, bucket) in &questions {
            pipeline.cmd("HGET").arg(bucket).arg(&tag.field());
        }
        let asked = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection.connection);
        let error = match tokio::time::timeout(self.budget, asked).await {
            Ok(Ok(answers)) if answers.len() == questions.len() => {
                self.state().breaker.succeeded();
                let hits: Vec<bool> = questions
                    .iter()
                    .zip(&answers)
                    .map(|((tag, bucket), answer)| is_hit(key, tag, bucket, answer))
                    .collect();
                return Some(hits.chunks(2).map(|pair| pair.contains(&true)).collect());
            }
            Ok(Ok(answers)) => MirrorError::Answers(answers.len(), questions.len()),
            Ok(Err(error)) => error.into(),
            Err(_) => MirrorError::Budget(self.budget),
        };
        self.failed(generation, &error);
        None
    }

    /// Returns whether the mirror is skipped because it did not answer.
    pub(crate) fn is_skipped(&self) -> bool {
        self.state().breaker.is_open()
    }

    /// Connects before the first look-up; waits for at most a second.
    pub async fn warm_up(&self) {
        self.state().connecting = true;
        let mirror = self.clone();
        let connecting = tokio::spawn(async move { mirror.connect_in_background().await });
        if tokio::time::timeout(WARM_UP, connecting).await.is_err() {
            tracing::warn!("Redis has not answered yet; using PostgreSQL alone until it does");
        }
    }

    async fn connect_in_background(&self) {
        let connected = self.connect().await;
        let mut state = self.state();
        state.connecting = false;
        match connected {
            Ok(connection) => {
                state.set(connection);
                state.breaker.allow_next_call(Instant::now());
            }
            Err(error) => {
                let generation = state.generation;
                drop(state);
                self.failed(generation, &error);
            }
        }
    }

    fn failed(&self, generation: u64, error: &MirrorError) {
        match self.state().fails(generation, Instant::now()) {
            Some(true) => {
                tracing::warn!(error = %error, "Redis does not answer; using PostgreSQL alone until it does");
            }
            Some(false) | None => tracing::debug!(error = %error, "a question to Redis failed"),
        }
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the time at which an entry written now expires.
    pub fn expires_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.layout.expires_at(now)
    }

    /// Writes tags with their evidence. Idempotent.
    pub async fn write(&self, key: &TagKey, tags: &[Tag], now: DateTime<Utc>) -> Result<(), MirrorError> {
        // Not in a match on the guard itself, which would hold the lock while connecting.
        let open = self.state().connection.clone();
        let mut connection = match open {
            Some(connection) => connection,
            None => {
                let fresh = self.connect().await?;
                self.state().set(fresh.clone());
                fresh
            }
        };
        let remaining = (self.layout.expires_at(now) - now).num_milliseconds().max(1);
        let mut pipeline = Pipeline::with_capacity(tags.len() * 2);
        pipeline.ignore_errors();
        for tag in tags {
            let bucket = self.layout.write_to(tag, now);
            let evidence = key.evidence(tag, &bucket).bytes();
            pipeline.cmd("HSET").arg(&bucket).arg(&tag.field()).arg(&evidence);
            pipeline.cmd("PEXPIRE").arg(&bucket).arg(remaining);
        }
        let written = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection.connection);
        let error = match tokio::time::timeout(ANSWER_TIME, written).await {
            // A bucket changed to another type by a foreign client takes no tags: each is a miss until the bucket expires.
            Ok(Ok(answers)) => match answers
                .into_iter()
                .find_map(|answer| answer.err().filter(|error| error.code() != Some("WRONGTYPE")))
            {
                None => return Ok(()),
                Some(error) => error.into(),
            },
            Ok(Err(error)) => error.into(),
            Err(_) => MirrorError::Budget(ANSWER_TIME),
        };
        self.state().connection = None;
        Err(error)
    }

    /// Returns whether a tag is present with its evidence. For operator commands: with a long timeout, and without the breaker.
    pub async fn holds(&self, key: &TagKey, tag: &Tag, now: DateTime<Utc>) -> Result<bool, MirrorError> {
        let mut connection = self.connect().await?;
        for bucket in self.layout.read_from(tag, now) {
            let mut command = redis::cmd("HGET");
            command.arg(&bucket).arg(&tag.field());
            let asked = command.query_async::<Value>(&mut connection.connection);
            match tokio::time::timeout(ANSWER_TIME, asked).await {
                Ok(answer) => {
                    if is_hit(key, tag, &bucket, &Ok(answer?)) {
                        return Ok(true);
                    }
                }
                Err(_) => return Err(MirrorError::Budget(ANSWER_TIME)),
            }
        }
        Ok(false)
    }

    /// Checks that Redis answers.
    pub async fn ping(&self) -> Result<(), MirrorError> {
        let mut connection = self.connect().await?;
        let ping = redis::cmd("PING");
        let answer =
            tokio::time::timeout(ANSWER_TIME, ping.query_async::<Value>(&mut connection.connection)).await;
        match answer {
            Ok(result) => Ok(result.map(|_| ())?),
            Err(_) => Err(MirrorError::Budget(ANSWER_TIME)),
        }
    }
}

/// Returns whether an answer is a hit, which only the owners of the tag key can have written. Any other answer is a miss: nothing, an
/// error, a number, other data, foreign evidence.
pub(super) fn is_hit(key: &TagKey, tag: &Tag, bucket: &str, answer: &RedisResult<Value>) -> bool {
    matches!(answer, Ok(Value::BulkString(found)) if key.evidence(tag, bucket).is(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_that_many_calls_meet_is_one_failure() {
        let mut state = MirrorState { generation: 1, ..MirrorState::default() };
        let now = Instant::now();
        assert_eq!(state.fails(1, now), Some(false));
        for _ in 0..20 {
            assert_eq!(state.fails(1, now), None);
        }
        assert!(!state.breaker.is_open());
        for _ in 0..2 {
            let present = state.generation;
            state.fails(present, now);
        }
        assert!(state.breaker.is_open(), "three in a row");
    }
}
