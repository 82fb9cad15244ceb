//! The consumer protocol in SQL: `oncely.claim`, `complete` and `fail`, beside the worker and without it.

use std::net::SocketAddr;

use oncely::decide::{KeyDecision, KeyRecord, KeyStatus, OnConflict, decide};
use oncely::fault::FaultClass;
use oncely::fingerprint::{Fingerprint, FingerprintPolicy};
use oncely::pg::class_of;
use oncely::reason::Reason;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use testbed::proxy::{OneShot, Protocol, Proxy};
use testbed::{Postgres, Redis};

use crate::support::{World, message, servers};

/// What `oncely.claim` answered.
#[derive(Debug, PartialEq)]
struct Claimed {
    outcome: String,
    attempt: i32,
    response: Option<Value>,
    reason: Option<String>,
}

async fn claim(sql: &mut PgConnection, key: &str, body: &str) -> Result<Claimed, sqlx::Error> {
    let row =
        sqlx::query("select * from oncely.claim('acme', 'payments', $1, sha256(convert_to($2, 'UTF8')))")
            .bind(key)
            .bind(body)
            .fetch_one(sql)
            .await?;
    Ok(Claimed {
        outcome: row.get("outcome"),
        attempt: row.get("attempt"),
        response: row.get("response"),
        reason: row.get("reason"),
    })
}

async fn complete(sql: &mut PgConnection, key: &str, response: Value) -> Result<(), sqlx::Error> {
    sqlx::query("select oncely.complete('acme', 'payments', $1, $2, queue => 'q')")
        .bind(key)
        .bind(response)
        .execute(sql)
        .await
        .map(drop)
}

/// Outcome, attempts and reason of `oncely.fail`.
async fn fail(
    sql: &mut PgConnection,
    key: &str,
    attempt: i32,
    reason: Option<&str>,
) -> (String, i32, Option<String>) {
    let row = sqlx::query(
        "select * from oncely.fail('acme', 'payments', $1, sha256('{}'), $2, 'boom', $3, max_attempts => 3)",
    )
    .bind(key)
    .bind(attempt)
    .bind(reason)
    .fetch_one(sql)
    .await
    .unwrap();
    (row.get("outcome"), row.get("attempts"), row.get("final_reason"))
}

async fn effect(sql: &mut PgConnection, key: &str) {
    sqlx::query("insert into app.effects (tenant, consumer, key) values ('acme', 'payments', $1)")
        .bind(key)
        .execute(sql)
        .await
        .unwrap();
}

/// Claims, works and completes in one transaction; what a duplicate would get.
async fn once(sql: &mut PgConnection, key: &str) -> Claimed {
    let mut transaction = sql.begin().await.unwrap();
    let claimed = claim(&mut transaction, key, "{}").await.unwrap();
    if claimed.outcome == "granted" {
        effect(&mut transaction, key).await;
        complete(&mut transaction, key, json!({ "done": key })).await.unwrap();
    }
    transaction.commit().await.unwrap();
    claimed
}

fn code(error: sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
}

async fn effects(world: &mut World, key: &str) -> i64 {
    world.count(&format!("select count(*) from app.effects where key = '{key}'")).await
}

async fn status(world: &mut World, key: &str) -> Option<String> {
    world
        .text(&format!("select status || ' ' || attempts from oncely.idempotency_keys where key = '{key}'"))
        .await
}

#[tokio::test]
async fn of_many_connections_that_claim_one_key_one_is_granted_and_the_others_get_its_response() {
    let mut world = World::new().await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(world.database.connect().await.unwrap());
    }
    for round in 0..10 {
        let key = format!("k{round}");
        // Half of them give up what they were granted: the next one in the queue is granted it then.
        let tasks: Vec<_> = clients
            .drain(..)
            .enumerate()
            .map(|(number, mut sql)| {
                let key = key.clone();
                tokio::spawn(async move {
                    let mut transaction = sql.begin().await.unwrap();
                    let claimed = claim(&mut transaction, &key, "{}").await.unwrap();
                    let granted = claimed.outcome == "granted";
                    if granted {
                        effect(&mut transaction, &key).await;
                        complete(&mut transaction, &key, json!({ "by": number })).await.unwrap();
                    }
                    match granted && number % 2 == 0 {
                        true => transaction.rollback().await.unwrap(),
                        false => transaction.commit().await.unwrap(),
                    }
                    (sql, number, claimed)
                })
            })
            .collect();
        let mut duplicates = Vec::new();
        for task in tasks {
            let (sql, number, claimed) = task.await.unwrap();
            clients.push(sql);
            match claimed.outcome.as_str() {
                "granted" => assert_eq!(claimed.attempt, 1, "{number}: a claim that was rolled back is none"),
                "duplicate" => duplicates.push(claimed.response.unwrap()),
                other => panic!("{number}: {other}"),
            }
        }
        assert_eq!(effects(&mut world, &key).await, 1, "{key}");
        duplicates.dedup();
        assert!(duplicates.len() <= 1, "{key}: one response for all: {duplicates:?}");
        assert_eq!(status(&mut world, &key).await.as_deref(), Some("COMPLETED 1"));
    }
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 10);
}

#[tokio::test]
async fn a_client_whose_commit_reply_is_lost_asks_again_and_learns_what_happened() {
    let mut world = World::new().await;
    let mut through: url::Url = world.database.url().parse().unwrap();
    let upstream: SocketAddr = format!("127.0.0.1:{}", through.port().unwrap()).parse().unwrap();
    let proxy = Proxy::start(Protocol::Postgres, upstream).await.unwrap();
    through.set_port(Some(proxy.port())).unwrap();
    for (key, one_shot, again) in
        [("kept", OneShot::LoseCommitReply, "duplicate"), ("lost", OneShot::CutBeforeCommit, "granted")]
    {
        let mut sql = PgConnection::connect(through.as_str()).await.unwrap();
        let mut transaction = sql.begin().await.unwrap();
        assert_eq!(claim(&mut transaction, key, "{}").await.unwrap().outcome, "granted");
        effect(&mut transaction, key).await;
        complete(&mut transaction, key, json!({ "done": key })).await.unwrap();
        proxy.arm(Some(one_shot));
        assert!(transaction.commit().await.is_err(), "{key}: nobody knows");
        let mut other = world.database.connect().await.unwrap();
        let claimed = once(&mut other, key).await;
        assert_eq!(claimed.outcome, again, "{key}");
        assert_eq!(claimed.response.is_some(), again == "duplicate", "{key}");
        assert_eq!(effects(&mut world, key).await, 1, "{key}");
    }
}

#[tokio::test]
async fn a_worker_and_clients_of_the_protocol_share_the_same_keys() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    for number in 0..20 {
        once(&mut sql, &format!("both{number}")).await;
    }
    let worker = world.start("worker");
    let queue = world.queue("payments");
    let messages = (0..60).map(|n| (queue.clone(), message("acme", &format!("both{n}")), b"{}".to_vec()));
    world.broker.publish_all("", messages.collect()).await.unwrap();
    // Against the worker, from the other end.
    let mut won = 0;
    for number in (20..60).rev() {
        let claimed = once(&mut sql, &format!("both{number}")).await;
        won += i64::from(claimed.outcome == "granted");
        assert!(["granted", "duplicate"].contains(&claimed.outcome.as_str()), "{claimed:?}");
    }
    world.wait_for("select count(distinct key) from app.effects", 60).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 60);
    let by_clients = "select count(*) from oncely.audit where outcome = 'completed' and queue = 'q'";
    assert_eq!(world.count(by_clients).await, 20 + won);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 60);
    // The worker's response.
    world.publish("payments", message("acme", "worker's"), "{}").await;
    world.wait_for("select count(*) from oncely.idempotency_keys where key = 'worker''s'", 1).await;
    let duplicate = claim(&mut sql, "worker's", "{}").await.unwrap();
    assert_eq!(duplicate.response, Some(json!({ "done": "worker's" })));
    // Another payload, and a failure of the worker's that a client takes over.
    let conflict = claim(&mut sql, "worker's", "[]").await.unwrap();
    assert_eq!((conflict.outcome.as_str(), conflict.reason.as_deref()), ("conflict", Some("key_conflict")));
    world.publish("payments", message("acme", "rejected"), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from oncely.idempotency_keys where status = 'FAILED'", 1).await;
    world.stop(worker).await;
    let refused = claim(&mut sql, "rejected", r#"{"do": "reject"}"#).await.unwrap();
    assert_eq!((refused.outcome.as_str(), refused.reason.as_deref()), ("refused", Some("handler_rejected")));
}

#[tokio::test]
async fn sql_decides_as_rust_does() {
    let mut world = World::new().await;
    let print = |byte: Option<u8>| byte.map(|byte| Fingerprint([byte; 32]));
    let mut cases = 0;
    for status in [KeyStatus::InProgress, KeyStatus::Completed, KeyStatus::Failed] {
        for known in [None, Some(1), Some(2)] {
            for new in [None, Some(1), Some(2)] {
                for on_conflict in [OnConflict::DeadLetter, OnConflict::Duplicate] {
                    let record = KeyRecord {
                        status,
                        fingerprint: print(known),
                        attempts: 1,
                        crash_attempts: 0,
                        reason: (status == KeyStatus::Failed).then_some(Reason::Poison),
                        last_error: None,
                        response: None,
                    };
                    let rust = match decide(&record, print(new).as_ref(), on_conflict) {
                        KeyDecision::Retake => "retake",
                        KeyDecision::Duplicate => "duplicate",
                        KeyDecision::Refuse(rejection) if rejection.reason == Reason::KeyConflict => {
                            "conflict"
                        }
                        KeyDecision::Refuse(_) => "refused",
                    };
                    let name = match on_conflict {
                        OnConflict::DeadLetter => "dead_letter",
                        OnConflict::Duplicate => "duplicate",
                    };
                    let sql: String = sqlx::query_scalar("select oncely.decide($1, $2, $3, $4)")
                        .bind(status.as_str())
                        .bind(print(known).map(|print| print.0.to_vec()))
                        .bind(print(new).map(|print| print.0.to_vec()))
                        .bind(name)
                        .fetch_one(&mut world.sql)
                        .await
                        .unwrap();
                    assert_eq!(sql, rust, "{status:?}, {known:?}, {new:?}, {on_conflict:?}");
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 54);
    // Both make the same fingerprint of a body.
    let sql: Vec<u8> =
        sqlx::query_scalar("select sha256('{\"a\": 1}')").fetch_one(&mut world.sql).await.unwrap();
    assert_eq!(FingerprintPolicy::Body.of(b"{\"a\": 1}").unwrap().0.to_vec(), sql);
}

#[tokio::test]
async fn sql_reads_errors_as_the_worker_does() {
    let mut world = World::new().await;
    let codes = [
        "", "00000", "08006", "22012", "22P02", "23505", "25006", "28000", "3D000", "3F000", "40001",
        "40P01", "42501", "42P01", "53100", "54001", "55P03", "57014", "57P01", "58030", "F0000", "XX000",
        "P0001", "ONC01", "ONC02", "ONC03", "ONC04", "ONC05", "ONC10", "ONC11", "ONC12", "ONC13", "ONC14",
        "ONC15",
    ];
    for code in codes {
        let rust = match class_of(code) {
            None | Some(FaultClass::Environment) => "environment",
            Some(FaultClass::Transient) => "transient",
            Some(FaultClass::Poison) => "poison",
            Some(FaultClass::Rejected) => "handler_rejected",
            Some(FaultClass::NotJson) => "invalid_json",
            Some(FaultClass::Crashed) => "crash",
        };
        let sql: String = sqlx::query_scalar("select oncely.error_class($1)")
            .bind(code)
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
        assert_eq!(sql, rust, "{code}");
    }
    // What is not the message's fault is not counted, and a claim of the same transaction is given back.
    let mut sql = world.database.connect().await.unwrap();
    let mut transaction = sql.begin().await.unwrap();
    claim(&mut transaction, "k", "{}").await.unwrap();
    let fails = "select outcome || ' ' || attempts from oncely.fail('acme', 'payments', 'k', sha256('{}'), 1, 'x', error_code => $1)";
    for (code, outcome) in [("42P01", "retry 0"), ("22012", "given_up 1")] {
        let found: String = sqlx::query_scalar(fails).bind(code).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(found, outcome, "{code}");
        if code == "42P01" {
            transaction.commit().await.unwrap();
            assert_eq!(status(&mut world, "k").await.as_deref(), Some("IN_PROGRESS 0"));
            transaction = sql.begin().await.unwrap();
        }
    }
    transaction.commit().await.unwrap();
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("FAILED 1"));
    assert_eq!(claim(&mut sql, "k", "{}").await.unwrap().reason.as_deref(), Some("poison"));
}

#[tokio::test]
async fn a_claim_that_is_committed_without_complete_is_neither_done_nor_run_again() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    let mut transaction = sql.begin().await.unwrap();
    claim(&mut transaction, "forgotten", "{}").await.unwrap();
    effect(&mut transaction, "forgotten").await;
    transaction.commit().await.unwrap();
    // Without BEGIN: the claim is committed before the work begins, and the first message tells the programmer.
    assert_eq!(claim(&mut sql, "autocommit", "{}").await.unwrap().outcome, "granted");
    assert_eq!(code(complete(&mut sql, "autocommit", json!(null)).await.unwrap_err()), "ONC12");
    for key in ["forgotten", "autocommit"] {
        let refused = claim(&mut sql, key, "{}").await.unwrap();
        assert_eq!(
            (refused.outcome.as_str(), refused.reason.as_deref()),
            ("refused", Some("incomplete_claim"))
        );
    }
    let worker = world.start("worker");
    world.publish("payments", message("acme", "forgotten"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'incomplete_claim'", 1).await;
    assert_eq!(effects(&mut world, "forgotten").await, 1, "not run again");
    // Somebody has looked: it is there.
    let settle = "set role oncely_operator;
        update oncely.idempotency_keys set status = 'COMPLETED', reason = null where key = 'autocommit'; reset role";
    sqlx::raw_sql(settle).execute(&mut world.sql).await.unwrap();
    assert_eq!(claim(&mut sql, "autocommit", "{}").await.unwrap().outcome, "duplicate");
    // Somebody has looked, and lets it run.
    let requeued = world.oncely(&["failed", "requeue", "--key", "forgotten", "--yes"]).await;
    assert!(requeued.status.success(), "{}", String::from_utf8_lossy(&requeued.stderr));
    world.wait_for("select count(*) from app.effects where key = 'forgotten'", 2).await;
    world.stop(worker).await;
    assert_eq!(status(&mut world, "forgotten").await.as_deref(), Some("COMPLETED 1"));
}

#[tokio::test]
async fn a_client_that_is_told_of_a_duplicate_waits_for_the_synchronous_standby() {
    let postgres = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = postgres.url();
    let mut world = World::on(urls).await;
    let mut sql = world.database.connect().await.unwrap();
    once(&mut sql, "k").await;
    let set = async |world: &mut World, names: &str| {
        let alter = format!("alter system set synchronous_standby_names = '{names}'");
        sqlx::query(sqlx::AssertSqlSafe(alter)).execute(&mut world.sql).await.unwrap();
        sqlx::query("select pg_reload_conf()").execute(&mut world.sql).await.unwrap();
        let is_set =
            format!("select (current_setting('synchronous_standby_names') = '{names}')::int::bigint");
        world.wait_for(&is_set, 1).await;
    };
    // A standby that is away.
    set(&mut world, "nobody").await;
    let mut sql = world.database.connect().await.unwrap();
    let client = tokio::spawn(async move { once(&mut sql, "k").await });
    world.wait_for("select count(*) from pg_stat_activity where wait_event = 'SyncRep'", 1).await;
    assert!(!client.is_finished());
    set(&mut world, "").await;
    assert_eq!(client.await.unwrap().outcome, "duplicate");
}

#[tokio::test]
async fn a_claim_that_is_rolled_back_is_none() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let mut transaction = sql.begin().await.unwrap();
    sqlx::query("savepoint s").execute(&mut *transaction).await.unwrap();
    assert_eq!(claim(&mut transaction, "k", "{}").await.unwrap().outcome, "granted");
    sqlx::query("rollback to s").execute(&mut *transaction).await.unwrap();
    assert_eq!(code(complete(&mut transaction, "k", json!(1)).await.unwrap_err()), "ONC12");
    sqlx::query("rollback to s").execute(&mut *transaction).await.unwrap();
    assert_eq!(claim(&mut transaction, "k", "{}").await.unwrap().outcome, "granted");
    // Inside a savepoint that stays, too.
    sqlx::query("savepoint deeper").execute(&mut *transaction).await.unwrap();
    effect(&mut transaction, "k").await;
    complete(&mut transaction, "k", json!(2)).await.unwrap();
    sqlx::query("release deeper").execute(&mut *transaction).await.unwrap();
    // A copy of the message in the same batch.
    let copy = claim(&mut transaction, "k", "{}").await.unwrap();
    assert_eq!((copy.outcome.as_str(), copy.response), ("duplicate", Some(json!(2))));
    transaction.commit().await.unwrap();
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("COMPLETED 1"));
    let mut transaction = sql.begin().await.unwrap();
    claim(&mut transaction, "twice", "{}").await.unwrap();
    assert_eq!(code(claim(&mut transaction, "twice", "{}").await.unwrap_err()), "ONC13");
    transaction.rollback().await.unwrap();
    assert_eq!(code(complete(&mut sql, "never claimed", json!(1)).await.unwrap_err()), "ONC12");
    // Somebody else's claim of this moment.
    let mut holder = world.database.connect().await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    claim(&mut transaction, "other", "{}").await.unwrap();
    assert_eq!(code(complete(&mut sql, "other", json!(1)).await.unwrap_err()), "ONC12");
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn other_isolation_levels_are_refused_before_anything_is_done() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for level in ["repeatable read", "serializable"] {
        for call in [
            "select oncely.claim('acme', 'payments', 'k', null)",
            "select oncely.fail('acme', 'payments', 'k', null, 1, 'boom')",
        ] {
            let begin = format!("begin isolation level {level}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut sql).await.unwrap();
            assert_eq!(code(sqlx::query(call).execute(&mut sql).await.unwrap_err()), "ONC10", "{level}");
            sqlx::raw_sql("rollback").execute(&mut sql).await.unwrap();
        }
    }
    assert_eq!(status(&mut world, "k").await, None);
}

#[tokio::test]
async fn what_is_no_identity_or_no_fingerprint_is_refused_by_code() {
    let mut world = World::new().await;
    let long = "x".repeat(256);
    for (tenant, consumer, key) in [
        (None, Some("c"), Some("k")),
        (Some("t"), None, Some("k")),
        (Some("t"), Some("c"), None),
        (Some(""), Some("c"), Some("k")),
        (Some("t"), Some(""), Some("k")),
        (Some("t"), Some("c"), Some("")),
        (Some("t"), Some("c"), Some(long.as_str())),
    ] {
        for call in ["select oncely.claim($1, $2, $3, null)", "select oncely.fail($1, $2, $3, null, 1, 'x')"]
        {
            let refused =
                sqlx::query(call).bind(tenant).bind(consumer).bind(key).execute(&mut world.sql).await;
            assert_eq!(code(refused.unwrap_err()), "ONC11", "{tenant:?} {consumer:?} {key:?}");
        }
    }
    for call in [
        "select oncely.claim('t', 'c', 'k', 'short')",
        "select oncely.claim('t', 'c', 'k', null, retention => null)",
        "select oncely.claim('t', 'c', 'k', null, retention => interval '-1 day')",
        "select oncely.claim('t', 'c', 'k', null, on_conflict => 'ignore')",
        "select oncely.fail('t', 'c', 'k', null, null, 'x')",
        "select oncely.fail('t', 'c', 'k', null, 1, 'x', max_attempts => 0)",
        "select oncely.fail('t', 'c', 'k', null, 1, 'x', 'because')",
    ] {
        assert_eq!(code(sqlx::query(call).execute(&mut world.sql).await.unwrap_err()), "ONC11", "{call}");
    }
    let large = "do $$ begin perform oncely.claim('t', 'c', 'k', null); perform oncely.complete('t', 'c', 'k', to_jsonb(repeat('x', 65535))); end $$";
    assert_eq!(code(sqlx::raw_sql(large).execute(&mut world.sql).await.unwrap_err()), "ONC15");
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 0);
    // The longest of all, and bytes that are odd and allowed.
    let odd = format!("{}\u{1}\u{202e} ", "x".repeat(250));
    let claimed = claim(&mut world.sql, &odd, "{}").await.unwrap();
    assert_eq!(claimed.outcome, "granted");
    let version: i32 =
        sqlx::query_scalar("select oncely.protocol_version()").fetch_one(&mut world.sql).await.unwrap();
    assert_eq!(version, 1);
}

#[tokio::test]
async fn failures_are_counted_once_each_until_the_message_is_given_up() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for attempt in 1..=3 {
        let mut transaction = sql.begin().await.unwrap();
        let claimed = claim(&mut transaction, "k", "{}").await.unwrap();
        assert_eq!((claimed.outcome.as_str(), claimed.attempt), ("granted", attempt));
        if attempt == 2 {
            // In the transaction of the claim, after the work was taken back.
            let outcome = fail(&mut transaction, "k", attempt, None).await;
            assert_eq!(outcome, ("retry".to_owned(), 2, None));
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
            let outcome =
                if attempt < 3 { ("retry", None) } else { ("given_up", Some("attempts_exhausted")) };
            let expected = (outcome.0.to_owned(), attempt, outcome.1.map(str::to_owned));
            assert_eq!(fail(&mut sql, "k", attempt, None).await, expected);
        }
        if attempt < 3 {
            // The reply was lost: told again, it is not counted again.
            assert_eq!(fail(&mut sql, "k", attempt, None).await, ("retry".to_owned(), attempt, None));
        }
    }
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("FAILED 3"));
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 2);
    let refused = claim(&mut sql, "k", "{}").await.unwrap();
    assert_eq!(
        (refused.outcome.as_str(), refused.reason.as_deref()),
        ("refused", Some("attempts_exhausted"))
    );
    assert_eq!(fail(&mut sql, "k", 0, None).await.0, "refused");
    let given_up = fail(&mut sql, "poison", 1, Some("poison")).await;
    assert_eq!(given_up, ("given_up".to_owned(), 1, Some("poison".to_owned())));
    // What took effect in the meantime stays so.
    once(&mut sql, "done").await;
    assert_eq!(fail(&mut sql, "done", 1, None).await.0, "duplicate");
    assert_eq!(status(&mut world, "done").await.as_deref(), Some("COMPLETED 1"));
    let other = "select outcome from oncely.fail('acme', 'payments', 'done', sha256('other'), 1, 'boom')";
    assert_eq!(world.text(other).await.as_deref(), Some("conflict"));
}

#[tokio::test]
async fn what_a_client_completed_is_mirrored_and_the_workers_precheck_believes_it() {
    for settings in ["precheck = \"trust\"", "precheck = \"trust\"\nkey = \"a key of sixteen bytes\""] {
        let redis = Redis::start().await.unwrap();
        let mut world = World::new().await;
        world.with_redis(&redis.url(), settings);
        world.configure("[audit]\nduplicates = true");
        world.consumer("payments", "");
        world.apply_topology().await;
        let mut sql = world.database.connect().await.unwrap();
        once(&mut sql, "k").await;
        let relay = world.start("relay");
        world.wait_for("select count(*) from oncely.outbox", 0).await;
        let worker = world.start("worker");
        world.publish("payments", message("acme", "k"), "{}").await;
        let by_mirror = "select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror'";
        world.wait_for(by_mirror, 1).await;
        // Another payload has another tag: PostgreSQL decides.
        world.publish("payments", message("acme", "k"), "[]").await;
        world.wait_for("select count(*) from oncely.dead_letters where reason = 'key_conflict'", 1).await;
        world.stop(worker).await;
        world.stop(relay).await;
        assert_eq!(effects(&mut world, "k").await, 1);
    }
}

#[tokio::test]
async fn every_statement_finds_its_row_by_the_primary_key() {
    let mut world = World::new().await;
    // The migrations' own, when they built the indexes.
    let whole = "select seq_scan from pg_stat_user_tables where relname = 'idempotency_keys'";
    sqlx::query("select pg_stat_force_next_flush()").execute(&mut world.sql).await.unwrap();
    let before = world.count(whole).await;
    // Of a table that was never analysed, with many rows of one consumer in all states: what a planner may get wrong.
    sqlx::raw_sql(
        "do $$
         begin
             for n in 1..300 loop
                 perform oncely.claim('acme', 'payments', 'k' || n, null), oncely.complete('acme', 'payments', 'k' || n);
                 perform oncely.fail('acme', 'payments', 'f' || n, null, 1, 'x');
                 perform oncely.fail('acme', 'payments', 'p' || n, null, 1, 'x', 'poison');
                 perform oncely.claim('acme', 'payments', 'f' || n, null);
                 perform oncely.fail('acme', 'payments', 'f' || n, null, 2, 'x');
             end loop;
         end $$;
         select pg_stat_force_next_flush()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let scans = "select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes
        where relname = 'idempotency_keys' and indexrelname <> 'idempotency_keys_pkey'";
    assert_eq!(world.count(scans).await, 0);
    let by_key = "select (idx_scan >= 1500)::int::bigint from pg_stat_user_indexes where indexrelname = 'idempotency_keys_pkey'";
    world.wait_for(by_key, 1).await;
    assert_eq!(world.count(whole).await, before);
}

#[tokio::test]
async fn keys_of_clients_live_as_long_as_their_claim_said_whatever_their_consumer() {
    let mut world = World::new().await;
    world.configure("[gc]\nbatch = 3");
    world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    // Claimed 20 days ago with retentions around that, under a consumer of the configuration and under one of nobody's.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason, expires_at)
         select 'acme', consumer, status || n, status, 1, now() - interval '20 days',
            case when status <> 'IN_PROGRESS' then now() - interval '20 days' end, case when status = 'FAILED' then 'poison' end,
            now() + make_interval(days => n)
         from unnest(array['COMPLETED', 'FAILED', 'IN_PROGRESS']) as status
         cross join unnest(array['payments', 'orders']) as consumer
         cross join unnest(array[-5, -1, 1, 5]) as n;
         insert into oncely.outbox (tenant, id, kind, created_at, expires_at, consumer, key)
         values ('acme', gen_random_uuid(), 'identity', now() - interval '20 days', now() + interval '5 days', 'orders', 'COMPLETED5')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let collect = async |world: &World, arguments: &[&str]| -> Value {
        let output = world.oncely(arguments).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // Those whose mirror record may be pending wait for the relay.
    assert_eq!(collect(&world, &["gc", "run", "--dry-run", "--json"]).await["expired"], 8);
    assert_eq!(collect(&world, &["gc", "run", "--json"]).await["expired"], 8);
    sqlx::query("delete from oncely.outbox").execute(&mut world.sql).await.unwrap();
    let report = collect(&world, &["gc", "run", "--json"]).await;
    assert_eq!((&report["expired"], &report["consumers"][0]["completed"]), (&json!(4), &json!(0)));
    let left = "select string_agg(distinct key, ' ' order by key) from oncely.idempotency_keys";
    assert_eq!(
        world.text(left).await.as_deref(),
        Some("COMPLETED1 COMPLETED5 FAILED1 FAILED5 IN_PROGRESS1 IN_PROGRESS5")
    );
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 12);
    // A worker that completes what a client failed at gives the key its own retention.
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "IN_PROGRESS1"), "{}").await;
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and expires_at is null",
            1,
        )
        .await;
    world.stop(worker).await;
}

#[tokio::test]
async fn an_application_with_the_consumers_role_can_consume_and_touch_nothing_else() {
    let mut world = World::new().await;
    sqlx::raw_sql("grant usage on schema app to oncely_consumer; grant insert on app.effects to oncely_consumer; set role oncely_consumer")
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(once(&mut world.sql, "k").await.outcome, "granted");
    let again = once(&mut world.sql, "k").await;
    assert_eq!((again.outcome.as_str(), again.response), ("duplicate", Some(json!({ "done": "k" }))));
    fail(&mut world.sql, "f", 1, None).await;
    for statement in [
        "select * from oncely.idempotency_keys",
        "insert into oncely.audit select * from oncely.audit",
        "delete from oncely.outbox",
        "select secret from oncely.cell",
        "select oncely.drop_audit_partitions(now())",
    ] {
        let refused = sqlx::query(statement).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(code(refused), "42501", "{statement}");
    }
    sqlx::raw_sql("reset role; drop owned by oncely_consumer").execute(&mut world.sql).await.unwrap();
}
