//! A key that is held for a time, for effects outside PostgreSQL.

use std::net::SocketAddr;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use testbed::proxy::{OneShot, Protocol, Proxy};
use uuid::Uuid;

use crate::support::{World, message};

use super::{claim, code, effect, effects, fail, status};

/// What `oncely.claim_lease` answered.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) outcome: String,
    token: Option<i64>,
    attempt: Option<i32>,
    taken_over: bool,
    pub(super) waits: bool,
    pub(super) response: Option<Value>,
    reason: Option<String>,
    steps: Option<Value>,
}

pub(super) async fn hold(sql: &mut PgConnection, key: &str, owner: &str) -> Lease {
    let row = loop {
        let claim = sqlx::query(
            "select *, delay > interval '0' as waits
             from oncely.claim_lease('acme', 'payments', $1, sha256('{}'), $2)",
        );
        match claim.bind(key).bind(owner).fetch_one(&mut *sql).await {
            // Another transaction claims it.
            Err(error)
                if error.as_database_error().and_then(|error| error.code()).as_deref() == Some("55P03") => {}
            row => break row.unwrap(),
        }
    };
    Lease {
        outcome: row.get("outcome"),
        token: row.get("token"),
        attempt: row.get("attempt"),
        taken_over: row.get("taken_over"),
        waits: row.get::<Option<bool>, _>("waits").unwrap_or(false),
        response: row.get("response"),
        reason: row.get("reason"),
        steps: row.get("steps"),
    }
}

/// A lease that nobody else has: its token.
pub(super) async fn granted(sql: &mut PgConnection, key: &str, owner: &str) -> i64 {
    let lease = hold(sql, key, owner).await;
    assert_eq!(lease.outcome, "granted", "{lease:?}");
    lease.token.unwrap()
}

pub(super) async fn complete(sql: &mut PgConnection, key: &str, token: i64) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select oncely.complete_lease('acme', 'payments', $1, $2, '{\"done\": true}')")
        .bind(key)
        .bind(token)
        .fetch_one(sql)
        .await
}

/// What `oncely.begin_step` answered: state, result, call key, round.
pub(super) type Begun = (String, Option<Value>, Uuid, i32);

pub(super) async fn begin(
    sql: &mut PgConnection,
    (key, token): (&str, i64),
    step: &str,
    rule: &str,
) -> Result<Begun, sqlx::Error> {
    begin_call(sql, (key, token), step, rule, None).await
}

async fn begin_call(
    sql: &mut PgConnection,
    (key, token): (&str, i64),
    step: &str,
    rule: &str,
    call: Option<Uuid>,
) -> Result<Begun, sqlx::Error> {
    sqlx::query_as(
        "select state, result, call_key, round from oncely.begin_step('acme', 'payments', $1, $2, $3,
             split_part($4, ' ', 1), nullif(split_part($4, ' ', 2), '')::interval, $5)",
    )
    .bind(key)
    .bind(token)
    .bind(step)
    .bind(rule)
    .bind(call)
    .fetch_one(sql)
    .await
}

pub(super) async fn checkpoint(
    sql: &mut PgConnection,
    (key, token): (&str, i64),
    step: &str,
    result: Value,
    in_transaction: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query("select oncely.checkpoint('acme', 'payments', $1, $2, $3, $4, in_transaction => $5)")
        .bind(key)
        .bind(token)
        .bind(step)
        .bind(result)
        .bind(in_transaction)
        .execute(sql)
        .await
        .map(drop)
}

async fn renew(sql: &mut PgConnection, key: &str, token: i64) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select oncely.renew_lease('acme', 'payments', $1, $2) > interval '29 seconds'")
        .bind(key)
        .bind(token)
        .fetch_one(sql)
        .await
        .map(|left: Option<bool>| left.unwrap_or(false))
}

async fn release(sql: &mut PgConnection, key: &str, token: i64) -> bool {
    sqlx::query_scalar("select oncely.release_lease('acme', 'payments', $1, $2)")
        .bind(key)
        .bind(token)
        .fetch_one(sql)
        .await
        .unwrap()
}

/// Outcome, attempts and final reason.
async fn failed(
    sql: &mut PgConnection,
    (key, token): (&str, i64),
    reason: Option<&str>,
    error_code: Option<&str>,
) -> (String, i32, Option<String>) {
    sqlx::query_as(
        "select outcome, attempts, final_reason from oncely.fail_lease('acme', 'payments', $1, $2, 'boom', $3, $4,
             max_attempts => 2)",
    )
    .bind(key)
    .bind(token)
    .bind(reason)
    .bind(error_code)
    .fetch_one(sql)
    .await
    .unwrap()
}

/// The lease of this key has run out.
pub(super) async fn run_out(world: &mut World, key: &str) {
    sqlx::query(
        "update oncely.idempotency_keys set (not_before, grace_ends_at) = (select t, t from (select clock_timestamp() - interval '1 second' as t) as t)
         where key = $1 and owner is not null",
    )
    .bind(key)
    .execute(&mut world.sql)
    .await
    .unwrap();
}

#[tokio::test]
async fn of_many_that_claim_one_key_one_holds_it_and_the_others_wait() {
    let mut world = World::new().await;
    for round in 0..10 {
        let key = format!("k{round}");
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let (key, url) = (key.clone(), world.database.url().to_owned());
                tokio::spawn(async move {
                    let mut sql = PgConnection::connect(&url).await.unwrap();
                    hold(&mut sql, &key, &format!("run {number}")).await
                })
            })
            .collect();
        let mut tokens = Vec::new();
        for task in tasks {
            let lease = task.await.unwrap();
            match lease.outcome.as_str() {
                "granted" => tokens.extend(lease.token),
                "in_flight" => assert!(lease.waits, "{lease:?}"),
                other => panic!("{other}"),
            }
        }
        assert_eq!(tokens.len(), 1, "{key}");
        let mut sql = world.database.connect().await.unwrap();
        assert_eq!(complete(&mut sql, &key, tokens[0]).await.unwrap(), "completed");
        let again = hold(&mut sql, &key, "another").await;
        assert_eq!((again.outcome.as_str(), again.response), ("duplicate", Some(json!({ "done": true }))));
        // For a client of the other protocol, and a transaction of the same payload, it is one key.
        assert_eq!(claim(&mut sql, &key, "{}").await.unwrap().outcome, "duplicate");
    }
    assert_eq!(world.count("select count(*) from oncely.processed_keys").await, 10);
    assert_eq!(world.count("select count(*) from oncely.mirror_queue").await, 10);
}

#[tokio::test]
async fn of_many_that_take_over_one_key_one_holds_it() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let mut last = granted(&mut sql, "k", "first").await;
    for round in 0..2 {
        run_out(&mut world, "k").await;
        // They wait for the row, so that each has seen the lease that is over when the first one takes it.
        let mut shut = world.sql.begin().await.unwrap();
        sqlx::query("select from oncely.idempotency_keys where key = 'k' for update")
            .execute(&mut *shut)
            .await
            .unwrap();
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let url = world.database.url().to_owned();
                tokio::spawn(async move {
                    let mut sql = PgConnection::connect(&url).await.unwrap();
                    hold(&mut sql, "k", &format!("run {round} {number}")).await
                })
            })
            .collect();
        testbed::eventually("many wait for the row", || async {
            let mut other = world.database.connect().await.unwrap();
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&mut other)
            .await
            .unwrap();
            if waiting >= 4 { Ok(()) } else { Err(waiting) }
        })
        .await
        .unwrap();
        shut.rollback().await.unwrap();
        let mut tokens = Vec::new();
        for task in tasks {
            let lease = task.await.unwrap();
            if lease.outcome == "granted" {
                assert!(lease.taken_over);
                tokens.extend(lease.token);
            }
        }
        assert_eq!(tokens.len(), 1, "{round}");
        assert!(tokens[0] > last, "a later lease has a greater token");
        last = tokens[0];
    }
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'taken_over'").await, 2);
}

#[tokio::test]
async fn a_lost_claim_reply_is_granted_again() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "run 1").await;
    assert_eq!(granted(&mut sql, "k", "run 1").await, token, "the same acquisition");
    // Also where its lease has run out meanwhile, and nobody else came.
    run_out(&mut world, "k").await;
    assert_eq!(granted(&mut sql, "k", "run 1").await, token);
    // Also where the time of its run is over: it has not begun, and has its whole time.
    let over = "update oncely.idempotency_keys set not_before = clock_timestamp() - interval '2 seconds',
        run_ends_at = clock_timestamp() - interval '1 second'";
    sqlx::query(over).execute(&mut sql).await.unwrap();
    assert_eq!(granted(&mut sql, "k", "run 1").await, token);
    let whole = "select count(*) from oncely.idempotency_keys where run_ends_at > clock_timestamp() + interval '9 minutes'";
    assert_eq!(world.count(whole).await, 1);
    let other = hold(&mut sql, "k", "run 2").await;
    assert_eq!((other.outcome.as_str(), other.token), ("in_flight", None), "granted again is held again");
    let marks = "select crash_attempts::bigint from oncely.idempotency_keys";
    assert_eq!(world.count(marks).await, 0, "no run has died");
    assert_eq!(complete(&mut sql, "k", token).await.unwrap(), "completed");
}

#[tokio::test]
async fn a_holder_whose_key_was_taken_over_can_change_nothing_any_more() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let frozen = granted(&mut sql, "k", "frozen").await;
    assert_eq!(begin(&mut sql, ("k", frozen), "charge", "always").await.unwrap().0, "run");
    run_out(&mut world, "k").await;
    let next = hold(&mut sql, "k", "next").await;
    assert!(next.taken_over && next.token.unwrap() > frozen, "{next:?}");
    let next = next.token.unwrap();

    let mut transaction = sql.begin().await.unwrap();
    assert_eq!(code(complete(&mut transaction, "k", frozen).await.unwrap_err()), "ONC18");
    drop(transaction);
    assert!(!renew(&mut sql, "k", frozen).await.unwrap());
    assert!(!release(&mut sql, "k", frozen).await);
    assert_eq!(begin(&mut sql, ("k", next), "charge", "always").await.unwrap().0, "repeat");
    for late in [
        begin(&mut sql, ("k", frozen), "charge", "always").await.map(drop),
        checkpoint(&mut sql, ("k", frozen), "charge", json!(1), false).await,
        checkpoint(&mut sql, ("k", frozen), "here", json!(1), true).await,
        sqlx::query("select oncely.refuse_step('acme', 'payments', 'k', $1, 'charge')")
            .bind(frozen)
            .execute(&mut sql)
            .await
            .map(drop),
    ] {
        assert_eq!(code(late.unwrap_err()), "ONC18");
    }
    assert_eq!(failed(&mut sql, ("k", frozen), Some("poison"), None).await.0, "lost");
    let fenced = "select count(*) from oncely.audit where outcome = 'fenced' and detail like '%boom'";
    assert_eq!(world.count(fenced).await, 1);
    assert!(renew(&mut sql, "k", next).await.unwrap(), "the next run is none the worse for it");
    assert_eq!(complete(&mut sql, "k", next).await.unwrap(), "completed");
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("COMPLETED 1"));
}

#[tokio::test]
async fn a_late_finish_without_a_takeover_stands() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "slow").await;
    run_out(&mut world, "k").await;
    assert!(renew(&mut sql, "k", token).await.unwrap());
    run_out(&mut world, "k").await;
    assert_eq!(complete(&mut sql, "k", token).await.unwrap(), "completed");
}

#[tokio::test]
async fn no_lease_is_renewed_past_the_end_of_its_run_and_then_no_step_begins() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "hangs").await;
    let ages = "update oncely.idempotency_keys set run_ends_at = clock_timestamp() + interval '5 seconds',
                    not_before = clock_timestamp() + interval '3 seconds'";
    sqlx::query(ages).execute(&mut world.sql).await.unwrap();
    assert!(!renew(&mut sql, "k", token).await.unwrap(), "only to the end of the run");
    let within = "select count(*) from oncely.idempotency_keys where not_before = run_ends_at";
    assert_eq!(world.count(within).await, 1);
    let over = "update oncely.idempotency_keys set run_ends_at = clock_timestamp() - interval '1 second',
                    not_before = clock_timestamp() - interval '1 second'";
    sqlx::query(over).execute(&mut world.sql).await.unwrap();
    renew(&mut sql, "k", token).await.unwrap();
    let late = begin(&mut sql, ("k", token), "charge", "always").await;
    assert_eq!(code(late.unwrap_err()), "ONC18");
    assert!(hold(&mut sql, "k", "next").await.taken_over, "a renewal past the end holds nothing");
}

#[tokio::test]
async fn a_finish_whose_commit_reply_is_lost_is_neither_repeated_nor_lost() {
    let mut world = World::new().await;
    let mut through: url::Url = world.database.url().parse().unwrap();
    let upstream: SocketAddr = format!("127.0.0.1:{}", through.port().unwrap()).parse().unwrap();
    let proxy = Proxy::start(Protocol::Postgres, upstream).await.unwrap();
    through.set_port(Some(proxy.port())).unwrap();
    let mut other = world.database.connect().await.unwrap();
    for (key, one_shot, again) in [
        ("kept", OneShot::LoseCommitReply, "already_completed"),
        ("lost", OneShot::CutBeforeCommit, "completed"),
    ] {
        let token = granted(&mut other, key, "run").await;
        let mut sql = PgConnection::connect(through.as_str()).await.unwrap();
        let mut transaction = sql.begin().await.unwrap();
        assert_eq!(complete(&mut transaction, key, token).await.unwrap(), "completed");
        effect(&mut transaction, key).await;
        proxy.arm(Some(one_shot));
        assert!(transaction.commit().await.is_err(), "{key}: nobody knows");
        let mut transaction = other.begin().await.unwrap();
        let outcome = complete(&mut transaction, key, token).await.unwrap();
        assert_eq!(outcome, again, "{key}");
        if outcome == "completed" {
            effect(&mut transaction, key).await;
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        assert_eq!(effects(&mut world, key).await, 1, "{key}");
    }
}

#[tokio::test]
async fn nothing_begins_in_the_transaction_of_the_claim() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for verb in ["renew", "begin", "complete", "fail"] {
        let mut transaction = sql.begin().await.unwrap();
        let token = granted(&mut transaction, "k", "run").await;
        let error = match verb {
            "renew" => renew(&mut transaction, "k", token).await.map(drop).unwrap_err(),
            "begin" => begin(&mut transaction, ("k", token), "s", "never").await.map(drop).unwrap_err(),
            "complete" => complete(&mut transaction, "k", token).await.map(drop).unwrap_err(),
            _ => sqlx::query("select oncely.fail_lease('acme', 'payments', 'k', $1, 'boom')")
                .bind(token)
                .execute(&mut *transaction)
                .await
                .unwrap_err(),
        };
        assert_eq!(code(error), "ONC19", "{verb}");
        transaction.rollback().await.unwrap();
    }
    assert_eq!(status(&mut world, "k").await, None, "a claim that is rolled back is none");
}

#[tokio::test]
async fn a_step_is_called_again_only_as_its_rule_allows_and_always_by_the_same_key() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for (rule, hours, expected) in [
        ("always", 100, "repeat"),
        ("within 24:00:00", 21, "repeat"),
        // A tenth of the window is kept clear of.
        ("within 24:00:00", 22, "unknown"),
        ("ask", 0, "unknown"),
        ("never", 0, "unknown"),
    ] {
        let key = format!("{rule} {hours}");
        let token = granted(&mut sql, &key, "first").await;
        let (state, result, call_key, round) = begin(&mut sql, (&key, token), "charge", rule).await.unwrap();
        assert_eq!((state.as_str(), result, round), ("run", None, 0), "{key}");
        // The run dies, and the next one comes later.
        run_out(&mut world, &key).await;
        let ages = "update oncely.idempotency_keys set steps = jsonb_set(steps, '{charge,started_at}',
                        to_jsonb(clock_timestamp() - $2 * interval '1 hour')) where key = $1";
        sqlx::query(ages).bind(&key).bind(f64::from(hours)).execute(&mut world.sql).await.unwrap();
        let next = hold(&mut sql, &key, "second").await;
        assert_eq!(next.steps.unwrap()["charge"]["state"], "started", "{key}");
        let next = next.token.unwrap();
        for _ in 0..2 {
            let again = begin(&mut sql, (&key, next), "charge", rule).await.unwrap();
            assert_eq!((again.0.as_str(), again.2, again.3), (expected, call_key, 0), "{key}");
        }
        // Whether by a call or by a look: it happened.
        checkpoint(&mut sql, (&key, next), "charge", json!({ "id": 7 }), false).await.unwrap();
        // Said again, after a lost reply; another result is another thing.
        checkpoint(&mut sql, (&key, next), "charge", json!({ "id": 7 }), false).await.unwrap();
        let other = checkpoint(&mut sql, (&key, next), "charge", json!({ "id": 8 }), false).await;
        assert_eq!(code(other.unwrap_err()), "ONC21", "{key}");
        assert_eq!(failed(&mut sql, (&key, next), None, None).await.0, "retry");
        let third = granted(&mut sql, &key, "third").await;
        let done = begin(&mut sql, (&key, third), "charge", rule).await.unwrap();
        assert_eq!((done.0.as_str(), done.1), ("done", Some(json!({ "id": 7 }))), "{key}: never again");
    }
}

#[tokio::test]
async fn a_begin_whose_reply_was_lost_may_be_said_again() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "run").await;
    let call = Some(Uuid::from_u128(7));
    for _ in 0..2 {
        let begun = begin_call(&mut sql, ("k", token), "charge", "never", call).await.unwrap();
        assert_eq!(begun.0, "run", "this very call was not made");
    }
    let other = begin_call(&mut sql, ("k", token), "charge", "never", Some(Uuid::from_u128(8))).await;
    assert_eq!(other.unwrap().0, "unknown", "another call in the same run");
    run_out(&mut world, "k").await;
    let next = granted(&mut sql, "k", "next").await;
    let taken = begin_call(&mut sql, ("k", next), "charge", "never", call).await.unwrap();
    assert_eq!(taken.0, "unknown", "of another run nobody knows whether it was made");
}

#[tokio::test]
async fn a_step_that_was_refused_begins_again_under_another_key() {
    let world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "run").await;
    let refuse = "select oncely.refuse_step('acme', 'payments', 'k', $1, 'charge', 'card declined')";
    let nothing = sqlx::query(refuse).bind(token).execute(&mut sql).await.unwrap_err();
    assert_eq!(code(nothing), "ONC21", "not begun");
    let first = begin(&mut sql, ("k", token), "charge", "never").await.unwrap();
    for _ in 0..2 {
        let round: i32 = sqlx::query_scalar(refuse).bind(token).fetch_one(&mut sql).await.unwrap();
        assert_eq!(round, 1, "said twice, refused once");
    }
    let second = begin(&mut sql, ("k", token), "charge", "never").await.unwrap();
    assert_eq!((second.0.as_str(), second.3), ("run", 1));
    assert_ne!(second.2, first.2);
    // Computed by Python's hashlib.
    for (tenant, consumer, key, round, expected) in [
        ("acme", "payments", "order-1182", 0, "30f39675-db49-88f7-a35e-9b266a42c064"),
        ("acme", "payments", "order-1182", 1, "f87ab914-33f5-852c-a613-ee714bee925e"),
        ("ac", "mepayments", "örder", 0, "7360a195-cc69-89a3-85f6-9174c85731a8"),
    ] {
        let computed: Uuid = sqlx::query_scalar("select oncely.step_key($1, $2, $3, 'charge', $4)")
            .bind(tenant)
            .bind(consumer)
            .bind(key)
            .bind(round)
            .fetch_one(&mut sql)
            .await
            .unwrap();
        assert_eq!(computed, Uuid::parse_str(expected).unwrap());
    }
}

#[tokio::test]
async fn a_step_in_postgresql_is_one_commit_with_its_writes() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "run").await;
    let unbegun = checkpoint(&mut sql, ("k", token), "book", json!(1), false).await;
    assert_eq!(code(unbegun.unwrap_err()), "ONC21", "a call outside begins first");
    let mut transaction = sql.begin().await.unwrap();
    checkpoint(&mut transaction, ("k", token), "book", json!(1), true).await.unwrap();
    effect(&mut transaction, "k").await;
    transaction.commit().await.unwrap();
    // The reply to that COMMIT was lost, and the same is tried once more.
    let mut transaction = sql.begin().await.unwrap();
    let again = checkpoint(&mut transaction, ("k", token), "book", json!(1), true).await;
    assert_eq!(code(again.unwrap_err()), "ONC21");
    transaction.rollback().await.unwrap();
    assert_eq!(effects(&mut world, "k").await, 1);
}

#[tokio::test]
async fn a_run_that_fails_is_counted_once_and_one_that_stops_is_not() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "stops").await;
    for _ in 0..2 {
        assert!(release(&mut sql, "k", token).await, "also when said again");
    }
    let token = granted(&mut sql, "k", "no server").await;
    // The disk is full: not the message's fault.
    assert_eq!(failed(&mut sql, ("k", token), None, Some("53100")).await, ("retry".to_owned(), 0, None));
    for (run, expected) in [
        (1, ("retry".to_owned(), 1, None)),
        (2, ("given_up".to_owned(), 2, Some("attempts_exhausted".to_owned()))),
    ] {
        let token = granted(&mut sql, "k", &format!("run {run}")).await;
        for _ in 0..2 {
            assert_eq!(failed(&mut sql, ("k", token), None, None).await, expected);
        }
    }
    let given_up = hold(&mut sql, "k", "later").await;
    assert_eq!(
        (given_up.outcome.as_str(), given_up.reason.as_deref()),
        ("given_up", Some("attempts_exhausted"))
    );
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 2);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 1);
}

#[tokio::test]
async fn a_message_whose_runs_end_without_a_word_is_given_up() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "run 0").await;
    begin(&mut sql, ("k", token), "charge", "always").await.unwrap();
    for run in 1..3 {
        run_out(&mut world, "k").await;
        let next = hold(&mut sql, "k", &format!("run {run}")).await;
        assert_eq!((next.outcome.as_str(), next.attempt), ("granted", Some(1)), "{run}");
    }
    run_out(&mut world, "k").await;
    let over = hold(&mut sql, "k", "run 3").await;
    assert_eq!((over.outcome.as_str(), over.reason.as_deref()), ("given_up", Some("crash")));
    let told = "select count(*) from oncely.audit where reason = 'crash' and detail like '%charge%'";
    assert_eq!(world.count(told).await, 1, "what may have happened is said");
}

#[tokio::test]
async fn who_has_no_lease_leaves_a_held_key_alone() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    let (held, left) = (granted(&mut sql, "held", "run").await, granted(&mut sql, "left", "run").await);
    begin(&mut sql, ("left", left), "charge", "never").await.unwrap();
    run_out(&mut world, "left").await;
    let waits = claim(&mut sql, "held", "{}").await.unwrap();
    assert_eq!(waits.outcome, "retry", "a client of the other protocol waits");
    let unknown = claim(&mut sql, "left", "{}").await.unwrap();
    assert_eq!((unknown.outcome.as_str(), unknown.reason.as_deref()), ("given_up", Some("outcome_unknown")));
    for reason in [None, Some("poison")] {
        assert_eq!(fail(&mut sql, "held", 1, reason).await.0, "retry", "and can't give it up");
    }
    let parked = world
        .oncely(&["failed", "park", "held", "--tenant", "acme", "--consumer", "payments", "--yes"])
        .await;
    assert_eq!(parked.status.code(), Some(1), "{parked:?}");

    // A worker, too: whatever it is that comes.
    let worker = world.start("worker");
    world.publish("payments", message("acme", "left"), "{}").await;
    world.publish("payments", message("acme", "held"), "{}").await;
    world.publish("payments", message("acme", "behind"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'behind'", 1).await;
    let letters =
        "select count(*) from oncely.dead_letters where reason = 'outcome_unknown' and key = 'left'";
    world.wait_for(letters, 1).await;
    assert_eq!(complete(&mut sql, "held", held).await.unwrap(), "completed");
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate' and key = 'held'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects where key <> 'behind'").await, 0);
    let kept = "select count(*) from oncely.idempotency_keys where key = 'left' and owner = 'run'";
    assert_eq!(world.count(kept).await, 1, "its holder may still finish");
    assert_eq!(complete(&mut sql, "left", left).await.unwrap(), "completed");
}

#[tokio::test]
async fn what_may_have_happened_runs_again_only_when_somebody_says_so() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    let mut calls = Vec::new();
    for key in ["settled", "repeated"] {
        let token = granted(&mut sql, key, "first").await;
        calls.push(begin(&mut sql, (key, token), "charge", "never").await.unwrap().2);
        run_out(&mut world, key).await;
        let token = granted(&mut sql, key, "second").await;
        assert_eq!(begin(&mut sql, (key, token), "charge", "never").await.unwrap().0, "unknown");
        let given_up = failed(&mut sql, (key, token), Some("outcome_unknown"), None).await;
        assert_eq!((given_up.0.as_str(), given_up.2.as_deref()), ("given_up", Some("outcome_unknown")));
    }
    let settle = "set role oncely_operator; select oncely.settle_claim('acme', 'payments', 'settled', true); reset role";
    sqlx::raw_sql(settle).execute(&mut world.sql).await.unwrap();
    assert_eq!(hold(&mut sql, "settled", "third").await.outcome, "duplicate");

    // Its letter.
    let worker = world.start("worker");
    world.publish("payments", message("acme", "repeated"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'outcome_unknown'", 1).await;
    world.stop(worker).await;
    let freed = "set role oncely_operator;
        select oncely.free_keys(array_agg(d.tenant), array_agg(d.id)) from oncely.dead_letters as d; reset role";
    sqlx::raw_sql(freed).execute(&mut world.sql).await.unwrap();
    assert_eq!(hold(&mut sql, "repeated", "third").await.outcome, "given_up", "not by the way");
    for arguments in [
        &["failed", "requeue", "--key", "repeated", "--yes"][..],
        &["failed", "requeue", "--all", "--repeat-unknown", "--yes"][..],
    ] {
        let refused = world.oncely(arguments).await;
        let said =
            String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("outcome_unknown: their calls to other services may have happened"), "{said}");
        assert_eq!(hold(&mut sql, "repeated", "third").await.outcome, "given_up");
    }
    let requeued =
        world.oncely(&["failed", "requeue", "--key", "repeated", "--repeat-unknown", "--yes"]).await;
    assert!(requeued.status.success(), "{requeued:?}");
    let token = granted(&mut sql, "repeated", "fourth").await;
    let again = begin(&mut sql, ("repeated", token), "charge", "never").await.unwrap();
    assert_eq!(
        (again.0.as_str(), again.2),
        ("repeat", calls[1]),
        "by the same key: who knows it runs it once"
    );
    // That one was refused, which says nothing of the first: the next run calls by the same key, and still by leave.
    let refuse = "select oncely.refuse_step('acme', 'payments', 'repeated', $1, 'charge', 'busy', 0)";
    for _ in 0..2 {
        let round: i32 = sqlx::query_scalar(refuse).bind(token).fetch_one(&mut sql).await.unwrap();
        assert_eq!(round, 0);
    }
    failed(&mut sql, ("repeated", token), None, None).await;
    let token = granted(&mut sql, "repeated", "fifth").await;
    // Said again after a lost reply, it is the same call.
    let call = Some(Uuid::new_v4());
    for _ in 0..2 {
        let again = begin_call(&mut sql, ("repeated", token), "charge", "never", call).await.unwrap();
        assert_eq!((again.0.as_str(), again.2), ("repeat", calls[1]));
    }
    // Of that one nobody knows: the leave was for one call.
    run_out(&mut world, "repeated").await;
    let token = granted(&mut sql, "repeated", "sixth").await;
    assert_eq!(begin(&mut sql, ("repeated", token), "charge", "never").await.unwrap().0, "unknown");
}

#[tokio::test]
async fn a_held_key_is_neither_collected_nor_forgotten_with_its_letter() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    let held = granted(&mut sql, "held", "run").await;
    let token = granted(&mut sql, "unknown", "run").await;
    begin(&mut sql, ("unknown", token), "charge", "never").await.unwrap();
    failed(&mut sql, ("unknown", token), Some("outcome_unknown"), None).await;
    granted(&mut sql, "left", "run").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "unknown"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'outcome_unknown'", 1).await;
    world.stop(worker).await;
    let ages = "update oncely.idempotency_keys set created_at = created_at - interval '20 days',
                    completed_at = completed_at - interval '20 days', expires_at = expires_at - interval '20 days'";
    sqlx::query(ages).execute(&mut world.sql).await.unwrap();
    run_out(&mut world, "left").await;
    let collected = world.oncely(&["gc", "run"]).await;
    assert!(collected.status.success(), "{collected:?}");
    let kept = world.text("select string_agg(key, ' ' order by key) from oncely.idempotency_keys").await;
    assert_eq!(kept.as_deref(), Some("held unknown"));
    assert_eq!(complete(&mut sql, "held", held).await.unwrap(), "completed");
}

#[tokio::test]
async fn a_step_never_makes_a_lease_end_earlier() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let claimed =
        "select token from oncely.claim_lease('acme', 'payments', 'k', null, 'run', lease => '9 minutes')";
    let token: i64 = sqlx::query_scalar(claimed).fetch_one(&mut sql).await.unwrap();
    let long = "select count(*) from oncely.idempotency_keys where not_before > clock_timestamp() + interval '8 minutes'";
    begin(&mut sql, ("k", token), "charge", "always").await.unwrap();
    assert_eq!(world.count(long).await, 1);
    checkpoint(&mut sql, ("k", token), "charge", json!(1), false).await.unwrap();
    assert!(renew(&mut sql, "k", token).await.unwrap());
    assert_eq!(world.count(long).await, 1);
}

#[tokio::test]
async fn whose_claim_takes_long_gets_his_whole_lease_all_the_same() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    // A new key, and one whose lease is over.
    granted(&mut sql, "old", "first").await;
    run_out(&mut world, "old").await;
    let slow = "create function app.take_long() returns trigger language plpgsql as $$
        begin perform pg_sleep(2.5); return new; end $$;
        create trigger slow before insert on oncely.idempotency_keys for each row execute function app.take_long()";
    sqlx::raw_sql(slow).execute(&mut world.sql).await.unwrap();
    for key in ["new", "old"] {
        let claimed = "select outcome from oncely.claim_lease('acme', 'payments', $1, sha256('{}'), 'slow', lease => '2 seconds')";
        let outcome: String = sqlx::query_scalar(claimed).bind(key).fetch_one(&mut sql).await.unwrap();
        assert_eq!(outcome, "granted", "{key}");
        let whole = "select count(*) from oncely.idempotency_keys where owner = 'slow'
            and not_before > clock_timestamp() + interval '1 second' and key = '";
        assert_eq!(world.count(&format!("{whole}{key}'")).await, 1, "{key}");
    }
}

#[tokio::test]
async fn a_rule_is_that_of_the_call_and_a_window_counts_from_the_first_one() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = granted(&mut sql, "k", "first").await;
    begin(&mut sql, ("k", token), "charge", "never").await.unwrap();
    begin(&mut sql, ("k", token), "mail", "within 24:00:00").await.unwrap();
    let ages = "update oncely.idempotency_keys
        set steps = jsonb_set(steps, '{mail,started_at}', to_jsonb(clock_timestamp() - interval '23 hours'))";
    sqlx::query(ages).execute(&mut world.sql).await.unwrap();
    run_out(&mut world, "k").await;
    // The next release says otherwise.
    let token = granted(&mut sql, "k", "second").await;
    assert_eq!(begin(&mut sql, ("k", token), "charge", "always").await.unwrap().0, "unknown");
    assert_eq!(begin(&mut sql, ("k", token), "mail", "within 240:00:00").await.unwrap().0, "unknown");
    failed(&mut sql, ("k", token), Some("outcome_unknown"), None).await;
    let frees =
        "update oncely.idempotency_keys set status = 'IN_PROGRESS', completed_at = null, reason = null,
        steps = oncely.reopen_steps(steps, $1)";
    sqlx::query(frees).bind(true).execute(&mut world.sql).await.unwrap();
    let token = granted(&mut sql, "k", "third").await;
    assert_eq!(
        begin(&mut sql, ("k", token), "mail", "within 24:00:00").await.unwrap().0,
        "repeat",
        "somebody said so"
    );
    let again = begin(&mut sql, ("k", token), "mail", "within 24:00:00").await.unwrap();
    assert_eq!(again.0, "unknown", "and the other side forgets what came first");
    // A clock that was ahead.
    let ahead = "update oncely.idempotency_keys
        set steps = jsonb_set(steps, '{mail,started_at}', to_jsonb(clock_timestamp() + interval '1 day'))";
    sqlx::query(ahead).execute(&mut world.sql).await.unwrap();
    assert_eq!(begin(&mut sql, ("k", token), "mail", "within 24:00:00").await.unwrap().0, "unknown");
    // A refusal that was said again and comes late.
    let refuse = "select oncely.refuse_step('acme', 'payments', 'k', $1, 'ship', 'no', $2)";
    assert_eq!(begin(&mut sql, ("k", token), "ship", "never").await.unwrap().0, "run");
    for (round, expected) in [(0, 1), (0, 1)] {
        let next: i32 = sqlx::query_scalar(refuse).bind(token).bind(round).fetch_one(&mut sql).await.unwrap();
        assert_eq!(next, expected);
    }
    assert_eq!(begin(&mut sql, ("k", token), "ship", "never").await.unwrap().3, 1);
    let late: i32 = sqlx::query_scalar(refuse).bind(token).bind(0).fetch_one(&mut sql).await.unwrap();
    assert_eq!(late, 1, "the call of the next round is not refused by it");
    checkpoint(&mut sql, ("k", token), "ship", json!(1), false).await.unwrap();
}

#[tokio::test]
async fn a_key_is_remembered_for_its_whole_retention_from_its_last_word_on() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let short =
        "select oncely.claim_lease('acme', 'payments', 'short', null, 'run', retention => '1 minute')";
    assert_eq!(code(sqlx::query(short).execute(&mut sql).await.unwrap_err()), "ONC11");
    let token = granted(&mut sql, "k", "run").await;
    let ages = "update oncely.idempotency_keys set expires_at = expires_at - interval '2 days',
        fencing_token = fencing_token - 172800000000";
    sqlx::query(ages).execute(&mut world.sql).await.unwrap();
    let token = token - 172_800_000_000;
    let delayed = "select oncely.fail_lease('acme', 'payments', 'k', $1, 'boom', delay => '30 days')";
    sqlx::query(delayed).bind(token).execute(&mut sql).await.unwrap();
    let kept = "select count(*) from oncely.idempotency_keys where expires_at > clock_timestamp() + interval '36 days'";
    assert_eq!(world.count(kept).await, 1, "a copy that waits finds its key");
    sqlx::query("update oncely.idempotency_keys set not_before = null")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let token = granted(&mut sql, "k", "next").await;
    sqlx::query(ages).execute(&mut world.sql).await.unwrap();
    let token = token - 172_800_000_000;
    assert_eq!(complete(&mut sql, "k", token).await.unwrap(), "completed");
    let whole = "select count(*) from oncely.idempotency_keys as i join oncely.mirror_queue as q using (expires_at)
        where i.expires_at between clock_timestamp() + interval '167 hours' and clock_timestamp() + interval '168 hours'";
    assert_eq!(world.count(whole).await, 1);
}

#[tokio::test]
async fn a_key_that_runs_left_open_can_be_settled_and_then_run_without_a_lease() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let settle = async |world: &mut World, key: &str, took_effect: bool| {
        sqlx::query_scalar::<_, bool>("select oncely.settle_claim('acme', 'payments', $1, $2)")
            .bind(key)
            .bind(took_effect)
            .fetch_one(&mut world.sql)
            .await
            .unwrap()
    };
    for key in ["did", "did not", "in part"] {
        let token = granted(&mut sql, key, "run").await;
        if key == "in part" {
            begin(&mut sql, (key, token), "mail", "never").await.unwrap();
            checkpoint(&mut sql, (key, token), "mail", json!(1), false).await.unwrap();
        }
        begin(&mut sql, (key, token), "charge", "never").await.unwrap();
        assert!(!settle(&mut world, key, false).await, "somebody holds it");
        run_out(&mut world, key).await;
        let (outcome, _, reason) = fail(&mut sql, key, 1, Some("poison")).await;
        assert_eq!(
            (outcome.as_str(), reason.as_deref()),
            ("given_up", Some("outcome_unknown")),
            "and it is told"
        );
        assert!(settle(&mut world, key, key == "did").await);
    }
    assert_eq!(world.count("select count(*) from oncely.audit where reason = 'outcome_unknown'").await, 3);
    assert_eq!(claim(&mut sql, "did", "{}").await.unwrap().outcome, "duplicate");
    let mut transaction = sql.begin().await.unwrap();
    assert_eq!(claim(&mut transaction, "did not", "{}").await.unwrap().outcome, "granted");
    transaction.rollback().await.unwrap();
    assert_eq!(claim(&mut sql, "in part", "{}").await.unwrap().outcome, "given_up");
    let token = granted(&mut sql, "in part", "next").await;
    assert_eq!(begin(&mut sql, ("in part", token), "mail", "never").await.unwrap().0, "done");
    // What did not happen is another call, and the runs of before count no more.
    let next = begin(&mut sql, ("in part", token), "charge", "never").await.unwrap();
    assert_eq!((next.0.as_str(), next.3), ("run", 1));
    let attempts = "select attempts::bigint from oncely.idempotency_keys where key = 'in part'";
    assert_eq!(world.count(attempts).await, 0);
    // Also of a key that may run without a lease since.
    let token = granted(&mut sql, "did not", "next").await;
    assert_eq!(begin(&mut sql, ("did not", token), "charge", "never").await.unwrap().3, 1);
}

#[tokio::test]
async fn a_worker_that_means_harm_gives_and_takes_no_lease_by_hand() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    granted(&mut sql, "k", "run").await;
    sqlx::raw_sql("set role oncely_worker").execute(&mut world.sql).await.unwrap();
    let moved = sqlx::query(
        "update oncely.idempotency_keys set not_before = 'epoch', status = 'COMPLETED', completed_at = now()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert_eq!(moved.rows_affected(), 0);
    for statement in [
        "update oncely.idempotency_keys set owner = null",
        "update oncely.idempotency_keys set steps = null",
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, fencing_token)
         values ('acme', 'payments', 'ghost', 'IN_PROGRESS', 0, now(), 9007199254740991)",
        "select oncely.revoke_lease('acme', 'payments', 'k')",
    ] {
        let refused = sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(code(refused), "42501", "{statement}");
    }
    sqlx::raw_sql("reset role").execute(&mut world.sql).await.unwrap();
}

#[tokio::test]
async fn an_operator_takes_a_lease_from_a_holder_that_hangs() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let hangs = granted(&mut sql, "k", "hangs").await;
    let revoke = "set role oncely_operator; select oncely.revoke_lease('acme', 'payments', 'k', 'host is gone'); reset role";
    sqlx::raw_sql(revoke).execute(&mut world.sql).await.unwrap();
    assert_eq!(code(complete(&mut sql, "k", hangs).await.unwrap_err()), "ONC18");
    let next = hold(&mut sql, "k", "next").await;
    assert_eq!((next.outcome.as_str(), next.taken_over), ("granted", false), "at once");
    assert!(next.token.unwrap() > hangs);
    let acted = "select count(*) from oncely.operator_actions where verb = 'revoke_lease' and reason = 'host is gone'";
    assert_eq!(world.count(acted).await, 1);
}

#[tokio::test]
async fn what_a_lease_can_t_be_is_refused() {
    let world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for (statement, expected) in [
        ("select oncely.claim_lease('acme', 'payments', 'k', null, '')", "ONC11"),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, null)", "ONC11"),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, 'o', lease => null)", "ONC11"),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, 'o', lease => '0')", "ONC11"),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, 'o', lease => '1 hour')", "ONC11"),
        (
            "select oncely.claim_lease('acme', 'payments', 'k', null, 'o', max_run => '178000000 years')",
            "ONC11",
        ),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, 'o', max_crashes => 0)", "ONC11"),
        ("select oncely.claim_lease('acme', 'payments', 'k', null, 'o', queue => repeat('x', 256))", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, 's', 'sometimes')", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, 's', null)", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, 's', 'within')", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, 's', 'never', '1 day')", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, '', 'never')", "ONC11"),
        ("select oncely.begin_step('acme', 'payments', 'k', 1, 's', 'never')", "ONC18"),
        ("select oncely.begin_step('acme', 'payments', 'k', null, 's', 'never')", "ONC18"),
        ("select oncely.complete_lease('acme', 'payments', 'k', null)", "ONC18"),
        ("select oncely.complete_lease('acme', 'payments', 'k', 1, to_jsonb(repeat('x', 65536)))", "ONC15"),
        ("select oncely.fail_lease('acme', 'payments', 'k', 1, 'boom', 'parked')", "ONC11"),
        ("select oncely.fail_lease('acme', 'payments', 'k', 1, 'boom', delay => '-1 s')", "ONC11"),
        ("select oncely.fail_lease('acme', 'payments', 'k', 1, 'boom', max_attempts => null)", "ONC11"),
    ] {
        let refused = sqlx::query(statement).execute(&mut sql).await.unwrap_err();
        assert_eq!(code(refused), expected, "{statement}");
    }
    let mut transaction = sql.begin().await.unwrap();
    sqlx::query("set transaction isolation level repeatable read").execute(&mut *transaction).await.unwrap();
    let old = complete(&mut transaction, "k", 1).await.unwrap_err();
    assert_eq!(code(old), "ONC10");
    transaction.rollback().await.unwrap();
    let token = granted(&mut sql, "k", "run").await;
    for number in 0..100 {
        begin(&mut sql, ("k", token), &format!("step {number}"), "always").await.unwrap();
    }
    let many = begin(&mut sql, ("k", token), "one more", "always").await;
    assert_eq!(code(many.unwrap_err()), "ONC15");
    assert_eq!(begin(&mut sql, ("k", token), "step 1", "always").await.unwrap().0, "repeat");
}

#[tokio::test]
async fn a_repeated_call_that_is_refused_says_nothing_of_the_first() {
    let mut world = World::new().await;
    let first = granted(&mut world.sql, "k", "first").await;
    let (_, _, call, _) = begin(&mut world.sql, ("k", first), "charge", "within 24h").await.unwrap();
    sqlx::query("update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let second = granted(&mut world.sql, "k", "second").await;
    let refuse = "select oncely.refuse_step('acme', 'payments', 'k', $1, 'charge', 'declined')";
    for _ in 0..2 {
        let begun = begin(&mut world.sql, ("k", second), "charge", "within 24h").await.unwrap();
        assert_eq!((begun.0.as_str(), begun.2, begun.3), ("repeat", call, 0));
        let round: i32 = sqlx::query_scalar(refuse).bind(second).fetch_one(&mut world.sql).await.unwrap();
        assert_eq!(round, 0, "its first call may have happened");
    }
    // Somebody has asked: it did not happen. That is another matter.
    let begun = begin(&mut world.sql, ("k", second), "charge", "ask").await.unwrap();
    assert_eq!(begun.0, "unknown");
}

#[tokio::test]
async fn a_worker_that_was_just_cut_off_takes_nothing_over() {
    let mut world = World::new().await;
    let token = granted(&mut world.sql, "held", "holder").await;
    sqlx::query("update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let take = "select string_agg(key || ' ' || t.outcome, ', ' order by place)
        from oncely.take_leases(array['acme', 'acme'], 'payments', array['held', 'fresh'], array[null, null]::bytea[],
            array['a', 'b'], '30 s', '10 min', 'duplicate', 3, array['q', 'q'], 'w', array[null, null]::text[], $1) as t
        join unnest(array['held', 'fresh']) with ordinality as k (key, number) on k.number = t.place";
    let told: String = sqlx::query_scalar(take).bind(false).fetch_one(&mut world.sql).await.unwrap();
    assert_eq!(
        told, "held retry, fresh granted",
        "whoever holds it may have been cut off as well, and lives"
    );
    assert!(renew(&mut world.sql, "held", token).await.unwrap(), "late, and nobody took it");
    sqlx::query("update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let told: String = sqlx::query_scalar(take).bind(true).fetch_one(&mut world.sql).await.unwrap();
    assert!(told.starts_with("held granted"), "{told}");
}

/// A run has called, and its key was taken over and given up, since nobody knew of what came of the call: the run's token.
async fn unknown(sql: &mut PgConnection, world: &mut World, key: &str) -> i64 {
    let first = granted(sql, key, "first").await;
    assert_eq!(begin(sql, (key, first), "call", "never").await.unwrap().0, "run");
    run_out(world, key).await;
    let second = granted(sql, key, "second").await;
    assert_eq!(begin(sql, (key, second), "call", "never").await.unwrap().0, "unknown");
    assert_eq!(failed(sql, (key, second), Some("outcome_unknown"), None).await.0, "given_up");
    // Whoever gave it up knows nothing of the call.
    assert!(checkpoint(sql, (key, second), "call", json!(1), false).await.is_err());
    first
}

async fn refuse(sql: &mut PgConnection, key: &str, token: i64) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("select oncely.refuse_step('acme', 'payments', $1, $2, 'call', 'no', 0)")
        .bind(key)
        .bind(token)
        .fetch_one(sql)
        .await
}

#[tokio::test]
async fn what_becomes_known_late_resolves_an_unknown_outcome() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    // A yes: no later run calls again.
    let token = unknown(&mut sql, &mut world, "yes").await;
    checkpoint(&mut sql, ("yes", token), "call", json!("found"), false).await.unwrap();
    let third = granted(&mut sql, "yes", "third").await;
    let result = begin(&mut sql, ("yes", third), "call", "never").await.unwrap();
    assert_eq!(result.0, "done");
    assert_eq!(complete(&mut sql, "yes", third).await.unwrap(), "completed");
    // A no: the next run may call, in another round.
    let token = unknown(&mut sql, &mut world, "no").await;
    assert_eq!(refuse(&mut sql, "no", token).await.unwrap(), 1);
    let third = granted(&mut sql, "no", "third").await;
    assert_eq!(begin(&mut sql, ("no", third), "call", "never").await.unwrap().0, "run");
    // The whole answer, which may be said twice. The letter of the message is closed, another payload's is not.
    let token = unknown(&mut sql, &mut world, "end").await;
    let letters = "insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state,
            generation, times, failure_group, exchange, routing_key, fingerprint, body_size, updated_at, from_client)
        select i.tenant, gen_random_uuid(), i.consumer, i.key, now(), 'outcome_unknown', 1, name, 'w', state, 1, 1, 'g', '', name,
            coalesce(print, i.fingerprint), 0, now(), name = 'client'
        from oncely.idempotency_keys as i cross join lateral (values
            ('worker', 'waiting', null), ('client', 'waiting', null), ('discarded', 'discarded', null),
            ('other', 'waiting', substr(i.fingerprint, 1, 4) || sha256('other'))
        ) as l (name, state, print)
        where i.key = 'end'";
    sqlx::query(letters).execute(&mut world.sql).await.unwrap();
    assert_eq!(complete(&mut sql, "end", token).await.unwrap(), "completed");
    let states = "select string_agg(concat_ws(' ', queue, state, case when swept_at is not null then 'swept' end), ', ' order by queue)
        from oncely.dead_letters";
    assert_eq!(
        world.text(states).await.unwrap(),
        "client requeued swept, discarded discarded, other waiting, worker requeued"
    );
    assert_eq!(complete(&mut sql, "end", token).await.unwrap(), "already_completed");
    assert_eq!(hold(&mut sql, "end", "third").await.outcome, "duplicate");
    // An operator lets it be repeated, and the first call's result comes before that: no second call.
    let token = unknown(&mut sql, &mut world, "repeated").await;
    let opens =
        "update oncely.idempotency_keys set status = 'IN_PROGRESS', completed_at = null, reason = null,
        not_before = now(), steps = oncely.reopen_steps(steps, true) where key = $1";
    sqlx::query(opens).bind("repeated").execute(&mut world.sql).await.unwrap();
    checkpoint(&mut sql, ("repeated", token), "call", json!("found"), false).await.unwrap();
    let third = granted(&mut sql, "repeated", "third").await;
    assert_eq!(begin(&mut sql, ("repeated", third), "call", "never").await.unwrap().0, "done");
    // The repeated call is refused after its run has lost the lease: the permission stays.
    let token = unknown(&mut sql, &mut world, "refused").await;
    sqlx::query(opens).bind("refused").execute(&mut world.sql).await.unwrap();
    let third = granted(&mut sql, "refused", "third").await;
    assert_eq!(begin(&mut sql, ("refused", third), "call", "never").await.unwrap().0, "repeat");
    assert_eq!(code(refuse(&mut sql, "refused", token).await.unwrap_err()), "ONC18");
    run_out(&mut world, "refused").await;
    let fourth = granted(&mut sql, "refused", "fourth").await;
    for _ in 0..2 {
        assert_eq!(refuse(&mut sql, "refused", third).await.unwrap(), 0);
    }
    assert_eq!(begin(&mut sql, ("refused", fourth), "call", "never").await.unwrap().0, "repeat");
    // Once an operator has settled it, a late outcome changes nothing.
    let token = unknown(&mut sql, &mut world, "settled").await;
    let settled = "select oncely.settle_claim('acme', 'payments', 'settled', true)::integer::bigint";
    assert_eq!(world.count(settled).await, 1);
    assert_eq!(code(refuse(&mut sql, "settled", token).await.unwrap_err()), "ONC18");
    assert_eq!(code(complete(&mut sql, "settled", token).await.unwrap_err()), "ONC18");
}

#[tokio::test]
async fn a_session_of_now_gives_a_holder_one_more_lease_to_renew() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let claim = "select outcome from oncely.claim_lease('acme', 'payments', $1, sha256('{}'), $2, interval '2 seconds', interval '1 minute')";
    let claimed = async |sql: &mut PgConnection, key: &str, owner: &str| -> String {
        sqlx::query_scalar(claim).bind(key).bind(owner).fetch_one(sql).await.unwrap()
    };
    for key in ["alive", "dead", "known"] {
        assert_eq!(claimed(&mut sql, key, "first").await, "granted");
    }
    let over = "select count(*) from oncely.idempotency_keys where not_before < clock_timestamp()";
    world.wait_for(over, 3).await;
    // It may have been away for as long as the holder.
    let mut fresh = world.database.connect().await.unwrap();
    for key in ["alive", "dead"] {
        assert_eq!(claimed(&mut fresh, key, "second").await, "in_flight", "{key}");
    }
    // Whoever has asked for long knows that nobody was kept from the server.
    assert_eq!(claimed(&mut sql, "known", "second").await, "granted");
    let token = "select fencing_token from oncely.idempotency_keys where key = 'alive'";
    let token = world.count(token).await;
    assert!(renew(&mut sql, "alive", token).await.unwrap(), "it lives");
    world.wait_for("select count(*) from oncely.idempotency_keys where key = 'dead' and not_before < clock_timestamp()", 1).await;
    let mut fresh = world.database.connect().await.unwrap();
    assert_eq!(claimed(&mut fresh, "dead", "third").await, "granted", "once");
    assert_eq!(claimed(&mut fresh, "alive", "third").await, "in_flight");
    // Whoever was cut off says so.
    let claim = "select outcome from oncely.claim_lease('acme', 'payments', 'cut off', sha256('{}'), $1, may_take_over => false)";
    let granted: String = sqlx::query_scalar(claim).bind("first").fetch_one(&mut sql).await.unwrap();
    assert_eq!(granted, "granted");
    run_out(&mut world, "cut off").await;
    let waits: String = sqlx::query_scalar(claim).bind("second").fetch_one(&mut sql).await.unwrap();
    assert_eq!(waits, "in_flight");
}

#[tokio::test]
async fn claims_give_way_to_whoever_holds_the_key_in_a_transaction() {
    let mut world = World::new().await;
    let mut holder = world.database.connect().await.unwrap();
    let mut other = world.database.connect().await.unwrap();
    let lease = "select outcome from oncely.claim_lease('acme', 'payments', 'k', sha256('{}'), $1)";
    let plain = "select outcome from oncely.claim('acme', 'payments', 'k', sha256('{}'))";
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query(lease).bind("holder").execute(&mut *transaction).await.unwrap();
    let limit = std::time::Duration::from_secs(30);
    for claim in [sqlx::query(lease).bind("other"), sqlx::query(plain)] {
        let refused = tokio::time::timeout(limit, claim.execute(&mut other)).await.expect("it gives way");
        assert_eq!(code(refused.unwrap_err()), "55P03");
    }
    transaction.rollback().await.unwrap();
    // All of them for as long, and workers and the door with them.
    let moments = "select count(*) from pg_proc where pronamespace = 'oncely'::regnamespace and proname in ('claim', 'claim_lease', 'take_leases', 'claim_request', 'retake_request')
        and 'lock_timeout=100ms' = any (proconfig)";
    assert_eq!(world.count(moments).await, 5);
}
