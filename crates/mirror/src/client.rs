//! Reads and writes the mirror in Redis within a time budget.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use redis::{Pipeline, RedisResult, Value};

use super::Breaker;
use super::cluster::is_redirection;
use super::connect::connect;
use super::connection::{RESPONSE_TIMEOUT, RedisConnection, parse_connection_info};
use super::error::MirrorError;
use super::layout::Layout;
use super::tag::{Tag, TagKey};
use oncely_config::{MirrorSettings, Problems, RedisCluster};
use oncely_net::tls::{TlsFault, classify_fault};

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
    /// Replaces the connection.
    fn set(&mut self, connection: RedisConnection) {
        (self.connection, self.generation) = (Some(connection), self.generation + 1);
    }

    /// Drops a connection that failed, so that a late response is not taken for the next call's. Returns whether that opened the breaker;
    /// `None` if it was dropped before, for all calls in flight on it fail together, which is one failure.
    fn fail(&mut self, generation: u64, now: Instant) -> Option<bool> {
        if self.generation != generation {
            return None;
        }
        (self.connection, self.generation) = (None, generation + 1);
        Some(self.breaker.record_failure(now))
    }
}

/// Maximum wait for the first connection.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(1);

impl Mirror {
    /// Checks the URLs, and creates the mirror without a connection.
    pub fn new(settings: &MirrorSettings) -> Result<Self, MirrorError> {
        // Checked now, used later.
        settings
            .node_urls()
            .chain(&settings.sentinels)
            .try_for_each(|url| parse_connection_info(url).map(drop))?;
        Ok(Self {
            settings: settings.clone(),
            layout: Layout::new(
                settings.ttl,
                settings.buckets,
                &settings.cluster.as_ref().map(RedisCluster::slot_key).unwrap_or_default(),
            ),
            budget: settings.budget,
            state: Arc::default(),
        })
    }

    /// Creates the mirror as [`Mirror::new`] does, at the start of a process; returns unusable settings as problems.
    pub fn open(settings: &MirrorSettings) -> Result<Self, Problems> {
        Self::new(settings).map_err(|error| {
            let mut problems = Problems::default();
            problems.add("redis.url", error.to_string());
            problems
        })
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, MirrorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn connect(&self) -> Result<RedisConnection, MirrorError> {
        connect(&self.settings).await
    }

    /// Returns the maximum lifetime of an entry.
    pub fn ttl(&self) -> Duration {
        self.settings.ttl
    }

    /// Returns whether the configuration is for a Redis Cluster.
    pub fn is_for_cluster(&self) -> bool {
        self.settings.cluster.is_some()
    }

    pub(super) fn settings(&self) -> &MirrorSettings {
        &self.settings
    }

    /// Returns the TLS fault between Redis and this program; `None` for any other error.
    pub fn tls_fault(&self, error: &MirrorError) -> Option<TlsFault> {
        classify_fault(error, self.settings.tls.as_ref().is_some_and(|tls| tls.cert.is_some()))
    }

    /// Looks tags up in one round trip, within the budget: returns for each whether it is present with its evidence. `None` without a
    /// response of the mirror, for any reason: the caller queries PostgreSQL. Never waits for a connection: a missing one is opened in the
    /// background.
    pub async fn look_up(&self, key: &TagKey, tags: &[Tag], now: DateTime<Utc>) -> Option<Vec<bool>> {
        let (mut connection, generation) = {
            let mut state = self.lock_state();
            if !state.breaker.try_admit(Instant::now()) {
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
        let queries: Vec<(&Tag, String)> = tags
            .iter()
            .flat_map(|tag| self.layout.buckets_to_read(tag, now).map(|bucket| (tag, bucket)))
            .collect();
        let mut pipeline = Pipeline::with_capacity(queries.len());
        // A bucket of another type is an error, and so a miss, of that bucket only and not of the whole round trip.
        pipeline.ignore_errors();
        for (tag, bucket) in &queries {
            pipeline.cmd("HGET").arg(bucket).arg(&tag.field());
        }
        let request = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection.connection);
        let error = match tokio::time::timeout(self.budget, request).await {
            Ok(Ok(responses)) if responses.len() != queries.len() => {
                MirrorError::Answers(responses.len(), queries.len())
            }
            Ok(Ok(responses)) => {
                // The slot has another master: the next connection finds it.
                if let Some(moved) = responses
                    .iter()
                    .filter_map(|response| response.as_ref().err())
                    .find(|error| is_redirection(error))
                {
                    let error = MirrorError::Moved(moved.to_string());
                    self.record_failure(generation, &error);
                    return None;
                }
                self.lock_state().breaker.record_success();
                let hits: Vec<bool> = queries
                    .iter()
                    .zip(&responses)
                    .map(|((tag, bucket), response)| is_hit(key, tag, bucket, response))
                    .collect();
                return Some(hits.chunks(2).map(|pair| pair.contains(&true)).collect());
            }
            Ok(Err(error)) => error.into(),
            Err(_) => MirrorError::Budget(self.budget),
        };
        self.record_failure(generation, &error);
        None
    }

    /// Returns whether the mirror is skipped because the breaker is open.
    pub(crate) fn is_skipped(&self) -> bool {
        self.lock_state().breaker.is_open()
    }

    /// Connects before the first look-up. Waits for at most a second; then the connection is opened in the background.
    pub async fn warm_up(&self) {
        self.lock_state().connecting = true;
        let mirror = self.clone();
        let connecting = tokio::spawn(async move { mirror.connect_in_background().await });
        if tokio::time::timeout(WARM_UP_TIMEOUT, connecting).await.is_err() {
            tracing::warn!("Redis has not answered yet; using PostgreSQL alone until it does");
        }
    }

    /// Opens a connection; a failure counts for the breaker.
    async fn connect_in_background(&self) {
        let connected = self.connect().await;
        let mut state = self.lock_state();
        state.connecting = false;
        match connected {
            Ok(connection) => {
                state.set(connection);
                state.breaker.allow_next_call(Instant::now());
            }
            Err(error) => {
                let generation = state.generation;
                drop(state);
                self.record_failure(generation, &error);
            }
        }
    }

    /// Drops a failed connection, and logs the error: as a warning if it opened the breaker.
    fn record_failure(&self, generation: u64, error: &MirrorError) {
        match self.lock_state().fail(generation, Instant::now()) {
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

    /// Writes tags with their evidence, and connects if necessary. Idempotent.
    pub async fn write(&self, key: &TagKey, tags: &[Tag], now: DateTime<Utc>) -> Result<(), MirrorError> {
        // Not in a match on the guard itself, which would hold the lock while connecting.
        let open = self.lock_state().connection.clone();
        let mut connection = match open {
            Some(connection) => connection,
            None => {
                let fresh = self.connect().await?;
                self.lock_state().set(fresh.clone());
                fresh
            }
        };
        let remaining = (self.layout.expires_at(now) - now).num_milliseconds().max(1);
        let mut pipeline = Pipeline::with_capacity(tags.len() * 2);
        pipeline.ignore_errors();
        for tag in tags {
            let bucket = self.layout.bucket_to_write(tag, now);
            let evidence = key.evidence(tag, &bucket).to_bytes();
            pipeline.cmd("HSET").arg(&bucket).arg(&tag.field()).arg(&evidence);
            pipeline.cmd("PEXPIRE").arg(&bucket).arg(remaining);
        }
        let request = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut connection.connection);
        let error = match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
            // A bucket changed to another type by a foreign client takes no tags: each is a miss until the bucket expires.
            Ok(Ok(responses)) => match responses
                .into_iter()
                .find_map(|response| response.err().filter(|error| error.code() != Some("WRONGTYPE")))
            {
                None => return Ok(()),
                Some(error) => error.into(),
            },
            Ok(Err(error)) => error.into(),
            Err(_) => MirrorError::Budget(RESPONSE_TIMEOUT),
        };
        self.lock_state().connection = None;
        Err(error)
    }

    /// Queries Redis for a tag. Returns whether it is present with its evidence. For operator commands: with a long timeout, and without
    /// the breaker.
    pub async fn has_tag(&self, key: &TagKey, tag: &Tag, now: DateTime<Utc>) -> Result<bool, MirrorError> {
        let mut connection = self.connect().await?;
        for bucket in self.layout.buckets_to_read(tag, now) {
            let mut command = redis::cmd("HGET");
            command.arg(&bucket).arg(&tag.field());
            let request = command.query_async::<Value>(&mut connection.connection);
            match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
                Ok(response) => {
                    if is_hit(key, tag, &bucket, &Ok(response?)) {
                        return Ok(true);
                    }
                }
                Err(_) => return Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
            }
        }
        Ok(false)
    }

    /// Checks that Redis answers.
    pub async fn ping(&self) -> Result<(), MirrorError> {
        let mut connection = self.connect().await?;
        let ping = redis::cmd("PING");
        let result =
            tokio::time::timeout(RESPONSE_TIMEOUT, ping.query_async::<Value>(&mut connection.connection))
                .await;
        match result {
            Ok(result) => Ok(result.map(|_| ())?),
            Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
        }
    }
}

/// Returns whether a response is a hit, which only the owners of the tag key can have written. Any other response is a miss: nothing, an
/// error, a number, other data, foreign evidence.
pub(super) fn is_hit(key: &TagKey, tag: &Tag, bucket: &str, response: &RedisResult<Value>) -> bool {
    matches!(response, Ok(Value::BulkString(found)) if key.evidence(tag, bucket).matches(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_that_many_calls_meet_is_one_failure() {
        let mut state = MirrorState { generation: 1, ..MirrorState::default() };
        let now = Instant::now();
        assert_eq!(state.fail(1, now), Some(false));
        for _ in 0..20 {
            assert_eq!(state.fail(1, now), None);
        }
        assert!(!state.breaker.is_open());
        for _ in 0..2 {
            let present = state.generation;
            state.fail(present, now);
        }
        assert!(state.breaker.is_open(), "three in a row");
    }
}
