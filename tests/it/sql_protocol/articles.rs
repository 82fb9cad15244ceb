//! The scenarios of the articles whose effect is outside the database, step by step: what their code does there, and what a lease does.
//!
//! Theirs is the usual decorator on Redis: SET NX with a time to live as a lock, a hash with the state, both deleted where anything fails.

use std::collections::HashSet;

use redis::aio::MultiplexedConnection;
use sqlx::PgConnection;
use testbed::eventually;
use uuid::Uuid;

use super::code;
use super::leases::{begin, checkpoint, complete, granted, hold};
use crate::support::{World, servers};

/// A payment provider: calls, and what took effect where it knows a key again.
#[derive(Default)]
struct Provider {
    calls: usize,
    keys: HashSet<Uuid>,
}

impl Provider {
    fn charge(&mut self, key: Uuid) {
        self.calls += 1;
        self.keys.insert(key);
    }

    /// The articles send no key: each call is a charge.
    fn charge_without_key(&mut self) {
        self.charge(Uuid::now_v7());
    }

    fn charges(&self) -> usize {
        self.keys.len()
    }
}

/// What the decorator finds.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Mine,
    InProgress,
    Completed(String),
}

/// The articles' decorator, in its steps.
struct Decorator {
    redis: MultiplexedConnection,
    lock: String,
    data: String,
}

impl Decorator {
    async fn new() -> Self {
        let client = redis::Client::open(servers().await.urls().redis.clone()).unwrap();
        let key = Uuid::now_v7();
        Self {
            redis: client.get_multiplexed_async_connection().await.unwrap(),
            lock: format!("lock:{key}"),
            data: format!("data:{key}"),
        }
    }

    async fn run<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        command.query_async(&mut self.redis.clone()).await.unwrap()
    }

    async fn acquire(&self, millis: u64) -> Found {
        let mut set = redis::cmd("SET");
        let locked: Option<String> =
            self.run(set.arg(&self.lock).arg("in_progress").arg("NX").arg("PX").arg(millis)).await;
        let mut get = redis::cmd("HMGET");
        let state: (Option<String>, Option<String>) =
            self.run(get.arg(&self.data).arg("status").arg("response")).await;
        if let (Some("completed"), Some(response)) = (state.0.as_deref(), state.1) {
            return Found::Completed(response);
        }
        if locked.is_none() {
            return Found::InProgress;
        }
        let _: () = self.run(redis::cmd("HSET").arg(&self.data).arg("status").arg("in_progress")).await;
        Found::Mine
    }

    async fn finish(&self, response: &str) {
        let mut set = redis::cmd("HSET");
        let _: () =
            self.run(set.arg(&self.data).arg("status").arg("completed").arg("response").arg(response)).await;
        let _: () = self.run(redis::cmd("DEL").arg(&self.lock)).await;
    }

    /// "On failure, release the lock and delete the key to allow retries."
    async fn failed(&self) {
        let _: () = self.run(redis::cmd("DEL").arg(&self.lock).arg(&self.data)).await;
    }

    async fn lock_is_over(&self) {
        let over = eventually("the lock's time is over", || async {
            match self.run::<bool>(redis::cmd("EXISTS").arg(&self.lock)).await {
                true => Err("it is there"),
                false => Ok(()),
            }
        });
        over.await.unwrap();
    }
}

/// The time of a lease is over.
async fn lease_is_over(sql: &mut PgConnection) {
    let over = "update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'";
    sqlx::query(over).execute(sql).await.unwrap();
}

#[tokio::test]
async fn a_crash_between_the_charge_and_its_record() {
    let (article, mut theirs) = (Decorator::new().await, Provider::default());
    assert_eq!(article.acquire(1).await, Found::Mine);
    theirs.charge_without_key();
    // It dies here. Its lock expires, and the copy runs.
    article.lock_is_over().await;
    assert_eq!(article.acquire(30_000).await, Found::Mine);
    theirs.charge_without_key();
    article.finish("charged").await;
    assert_eq!(theirs.charges(), 2, "charged twice");

    let mut world = World::new().await;
    for (key, rule) in [("known-again", "within 24h"), ("not-known-again", "never")] {
        let mut ours = Provider::default();
        let first = granted(&mut world.sql, key, "first").await;
        let (_, _, call, _) = begin(&mut world.sql, (key, first), "charge", rule).await.unwrap();
        ours.charge(call);
        lease_is_over(&mut world.sql).await;
        let second = granted(&mut world.sql, key, "second").await;
        let (state, _, again, _) = begin(&mut world.sql, (key, second), "charge", rule).await.unwrap();
        match rule {
            "never" => assert_eq!((state.as_str(), ours.calls), ("unknown", 1), "somebody has to look"),
            _ => {
                assert_eq!(state, "repeat");
                ours.charge(again);
                complete(&mut world.sql, key, second).await.unwrap();
                assert_eq!(ours.calls, 2);
            }
        }
        assert_eq!(ours.charges(), 1);
    }
}

#[tokio::test]
async fn a_holder_that_is_slower_than_its_lock() {
    let (article, mut theirs) = (Decorator::new().await, Provider::default());
    assert_eq!(article.acquire(1).await, Found::Mine);
    article.lock_is_over().await;
    assert_eq!(article.acquire(30_000).await, Found::Mine);
    theirs.charge_without_key();
    article.finish("the second one's").await;
    // The first one wakes up.
    theirs.charge_without_key();
    article.finish("the first one's").await;
    assert_eq!(theirs.charges(), 2);
    let Found::Completed(response) = article.acquire(1).await else { panic!("not completed") };
    assert_eq!(response, "the first one's", "not what the second one has answered");

    let mut world = World::new().await;
    let mut ours = Provider::default();
    let slow = granted(&mut world.sql, "order", "slow").await;
    lease_is_over(&mut world.sql).await;
    let quick = granted(&mut world.sql, "order", "quick").await;
    let (_, _, call, _) = begin(&mut world.sql, ("order", quick), "charge", "never").await.unwrap();
    ours.charge(call);
    checkpoint(&mut world.sql, ("order", quick), "charge", "charged".into(), false).await.unwrap();
    assert_eq!(complete(&mut world.sql, "order", quick).await.unwrap(), "completed");
    // The slow one may begin nothing any more, and changes no answer.
    let begun = begin(&mut world.sql, ("order", slow), "charge", "never").await;
    assert_eq!(code(begun.unwrap_err()), "ONC18");
    assert_eq!(code(complete(&mut world.sql, "order", slow).await.unwrap_err()), "ONC18");
    assert_eq!((ours.calls, ours.charges()), (1, 1));
}

#[tokio::test]
async fn two_consumers_with_copies_at_the_same_time() {
    let (article, mut theirs) = (Decorator::new().await, Provider::default());
    assert_eq!(article.acquire(30_000).await, Found::Mine);
    // "raise OperationInProgress": for its broker a failure like every other, which spends a delivery.
    assert_eq!(article.acquire(30_000).await, Found::InProgress);
    theirs.charge_without_key();
    article.finish("charged").await;

    let mut world = World::new().await;
    let first = granted(&mut world.sql, "order", "first").await;
    let copy = hold(&mut world.sql, "order", "copy").await;
    assert_eq!((copy.outcome.as_str(), copy.waits), ("in_flight", true), "neither a duplicate nor a failure");
    complete(&mut world.sql, "order", first).await.unwrap();
    let copy = hold(&mut world.sql, "order", "copy again").await;
    assert_eq!(copy.outcome, "duplicate");
    assert_eq!(copy.response, Some(serde_json::json!({ "done": true })), "with the answer");
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 1);
}

#[tokio::test]
async fn an_answer_that_is_lost_after_the_record() {
    let (article, mut theirs) = (Decorator::new().await, Provider::default());
    assert_eq!(article.acquire(30_000).await, Found::Mine);
    theirs.charge_without_key();
    article.finish("charged").await;
    // The reply to that is lost: an exception, and so the key is deleted "to allow retries".
    article.failed().await;
    assert_eq!(article.acquire(30_000).await, Found::Mine);
    theirs.charge_without_key();
    assert_eq!(theirs.charges(), 2, "charged twice");

    let mut world = World::new().await;
    let mut ours = Provider::default();
    let token = granted(&mut world.sql, "order", "first").await;
    let (_, _, call, _) = begin(&mut world.sql, ("order", token), "charge", "never").await.unwrap();
    ours.charge(call);
    for expected in ["completed", "already_completed"] {
        assert_eq!(complete(&mut world.sql, "order", token).await.unwrap(), expected);
    }
    assert_eq!(hold(&mut world.sql, "order", "copy").await.outcome, "duplicate");
    assert_eq!(ours.charges(), 1);
}
