//! The articles' samples, rewritten as stores with their own commands, and the cases of the suite that hold for each. What a sample has not (tokens,
//! renewals, steps) is left out in its favour where that can be: any token is good, and a lease stands as long as its key does.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use oncely::identity::Identity;
use oncely::lease::conformance::{self, CASES};
use oncely::lease::{
    BegunStep, Claim, ClaimOutcome, Facts, FailOutcome, Failover, Failure, Grant, KeySnapshot, KeyStatus,
    LeaseId, LeaseStore, RefusedCall, RenewOutcome, Step, StepStore, StoreClock, StoreError,
};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use testbed::Redis;
use uuid::Uuid;

use super::clocks::RedisClock;
use super::redis_store::connect;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sample {
    /// "Idempotency Patterns … via Distributed Locks": a lock by SET NX PX, and the result under another key.
    LockAndResult,
    /// "Idempotency Layers … with Redis & Lua", the first sample: SET NX EX, then COMPLETED over it.
    SetNx,
    /// The same article's script: JSON with owner and timestamp, taken over five minutes after its start.
    Lua,
    /// The Gin middleware: WATCH, GET, MULTI, SET, EXEC (with the transaction that its text means).
    Watch,
}

const LUA: &str = include_str!("article.lua");

struct Article {
    sample: Sample,
    url: String,
    connection: MultiplexedConnection,
    tokens: AtomicI64,
}

fn unavailable(error: redis::RedisError) -> StoreError {
    StoreError::unavailable(error)
}

fn no_steps<T>() -> Result<T, StoreError> {
    Err(StoreError::Refused("the sample has no steps".to_owned()))
}

impl Article {
    async fn new(sample: Sample, redis: &Redis) -> Self {
        let connection = connect(&redis.url()).await;
        Self { sample, url: redis.url(), connection, tokens: AtomicI64::new(1) }
    }

    fn keys(identity: &Identity) -> (String, String) {
        (format!("idempotency:lock:{identity:?}"), format!("idempotency:result:{identity:?}"))
    }

    async fn run<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, StoreError> {
        command.query_async(&mut self.connection.clone()).await.map_err(unavailable)
    }

    fn granted(&self) -> ClaimOutcome {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        ClaimOutcome::Granted(Grant { token, attempt: 1, is_takeover: false })
    }

    /// Who waits is told nothing of how long.
    fn busy(claim: &Claim<'_>) -> ClaimOutcome {
        ClaimOutcome::InFlight(claim.lease)
    }

    async fn lock(&self, key: &str, value: &str, time: Duration) -> Result<bool, StoreError> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(value).arg("NX").arg("PX").arg(u64::try_from(time.as_millis()).unwrap());
        Ok(self.run::<Option<String>>(&set).await?.is_some())
    }

    async fn watch(&self, key: &str, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        let mut own = connect(&self.url).await;
        for _ in 0..3 {
            redis::cmd("WATCH").arg(key).query_async::<()>(&mut own).await.map_err(unavailable)?;
            let found: Option<String> =
                redis::cmd("GET").arg(key).query_async(&mut own).await.map_err(unavailable)?;
            if let Some(found) = found {
                return Ok(recorded(&found).unwrap_or_else(|| Self::busy(claim)));
            }
            let mut transaction = redis::pipe();
            transaction.atomic().cmd("SET").arg(key).arg("{\"status\":\"PENDING\"}").arg("PX");
            transaction.arg(u64::try_from(claim.lease.as_millis()).unwrap()).ignore();
            let done: Option<()> = transaction.query_async(&mut own).await.map_err(unavailable)?;
            if done.is_some() {
                return Ok(self.granted());
            }
        }
        Err(StoreError::unavailable(anyhow::anyhow!("failed to acquire idempotency lock after retries")))
    }
}

/// A completed record.
fn recorded(found: &str) -> Option<ClaimOutcome> {
    let record: Value = serde_json::from_str(found).unwrap();
    (record["status"] == "COMPLETED").then(|| ClaimOutcome::Done(record.get("response").cloned()))
}

impl StepStore for Article {
    async fn renew(&self, held: &[LeaseId], _: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        let mut renewed = Vec::new();
        for held in held {
            let left: i64 = self.run(redis::cmd("PTTL").arg(Self::keys(&held.identity).0)).await?;
            renewed.push(match u64::try_from(left) {
                Ok(left) => RenewOutcome::Until(Duration::from_millis(left)),
                Err(_) => RenewOutcome::Lost,
            });
        }
        Ok(renewed)
    }

    async fn begin_step(&self, _: &LeaseId, _: &Step, _: Uuid, _: Duration) -> Result<BegunStep, StoreError> {
        no_steps()
    }

    async fn checkpoint(&self, _: &LeaseId, _: &str, _: &Value, _: Duration) -> Result<(), StoreError> {
        no_steps()
    }

    async fn refuse_step(
        &self,
        _: &LeaseId,
        _: &str,
        _: RefusedCall,
        _: Duration,
    ) -> Result<u32, StoreError> {
        no_steps()
    }
}

impl LeaseStore for Article {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::Forgets, clock: StoreClock::Server }
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        let (lock, result) = Self::keys(claim.identity);
        match self.sample {
            Sample::LockAndResult => {
                if self.lock(&lock, "in_progress", claim.lease).await? {
                    return Ok(self.granted());
                }
                let found: Option<String> = self.run(redis::cmd("GET").arg(&result)).await?;
                Ok(match found {
                    Some(found) => ClaimOutcome::Done(Some(serde_json::from_str(&found).unwrap())),
                    None => Self::busy(claim),
                })
            }
            Sample::SetNx => {
                if self.lock(&lock, "PROCESSING", claim.lease).await? {
                    return Ok(self.granted());
                }
                // "Acknowledge the message": whatever stands there.
                Ok(ClaimOutcome::Done(None))
            }
            Sample::Lua => {
                let mut script = redis::cmd("EVAL");
                script.arg(LUA).arg(1).arg(&lock).arg(claim.owner);
                script.arg(u64::try_from(claim.lease.as_millis()).unwrap()).arg(3_600);
                Ok(match self.run::<String>(&script).await?.as_str() {
                    "DUPLICATE" => ClaimOutcome::Done(None),
                    "CONFLICT" => Self::busy(claim),
                    _ => self.granted(),
                })
            }
            Sample::Watch => self.watch(&lock, claim).await,
        }
    }

    async fn complete(&self, held: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        let (lock, result) = Self::keys(&held.identity);
        let (key, value) = match self.sample {
            Sample::LockAndResult => (&result, response.unwrap_or(&Value::Null).to_string()),
            Sample::SetNx => (&lock, "COMPLETED".to_owned()),
            Sample::Lua | Sample::Watch => {
                (&lock, json!({ "status": "COMPLETED", "response": response }).to_string())
            }
        };
        // Of the articles' results the longest lives a day.
        self.run::<()>(redis::cmd("SET").arg(key).arg(value).arg("EX").arg(86_400)).await?;
        if self.sample == Sample::LockAndResult {
            self.run::<()>(redis::cmd("DEL").arg(&lock)).await?;
        }
        Ok(())
    }

    async fn fail(&self, held: &LeaseId, _: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        self.run::<()>(redis::cmd("DEL").arg(Self::keys(&held.identity).0)).await?;
        Ok(FailOutcome::Retry { attempts: 1 })
    }

    async fn release(&self, held: &LeaseId) -> Result<bool, StoreError> {
        self.run::<()>(redis::cmd("DEL").arg(Self::keys(&held.identity).0)).await?;
        Ok(true)
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let found: bool = self.run(redis::cmd("EXISTS").arg(Self::keys(identity).0)).await?;
        Ok(found.then_some(KeySnapshot {
            status: KeyStatus::InProgress,
            owner: None,
            token: 0,
            attempts: 0,
            crashes: 0,
            reason: None,
            response: None,
        }))
    }
}

/// The cases that hold.
async fn holding(sample: Sample) -> Vec<&'static str> {
    let redis = Redis::start().await.unwrap();
    let store = Article::new(sample, &redis).await;
    let clock = RedisClock(connect(&redis.url()).await);
    let broken = conformance::all(&store, &clock).await;
    CASES.iter().copied().filter(|case| broken.iter().all(|broken| broken.case != *case)).collect()
}

/// The table of docs/src/explanation/lease-stores.md.
#[tokio::test]
async fn of_the_articles_samples_none_conforms_and_these_cases_hold() {
    let expected: [(Sample, &[&str]); 4] = [
        (
            Sample::LockAndResult,
            &[
                "a_fresh_key_is_granted",
                "one_of_64_claimants_wins",
                "one_of_16_takeovers_wins",
                "a_renewal_shortens_no_lease",
                "tokens_only_grow",
                "a_released_key_is_free_at_once_and_nothing_is_counted",
            ],
        ),
        (
            Sample::SetNx,
            &[
                "a_fresh_key_is_granted",
                "tokens_only_grow",
                "a_released_key_is_free_at_once_and_nothing_is_counted",
            ],
        ),
        (
            Sample::Lua,
            &[
                "a_fresh_key_is_granted",
                "one_of_64_claimants_wins",
                "one_of_16_takeovers_wins",
                "a_renewal_shortens_no_lease",
                "tokens_only_grow",
                "a_released_key_is_free_at_once_and_nothing_is_counted",
            ],
        ),
        (
            Sample::Watch,
            &[
                "a_fresh_key_is_granted",
                "one_of_64_claimants_wins",
                "one_of_16_takeovers_wins",
                "a_renewal_shortens_no_lease",
                "tenants_consumers_and_keys_are_apart",
                "tokens_only_grow",
                "a_completed_key_answers_with_its_response",
                "a_released_key_is_free_at_once_and_nothing_is_counted",
            ],
        ),
    ];
    let mut seen = Vec::new();
    for (sample, _) in expected {
        seen.push((sample, holding(sample).await));
    }
    for ((sample, seen), (_, expected)) in seen.iter().zip(expected) {
        assert_eq!(seen, expected, "{sample:?}");
    }
}
