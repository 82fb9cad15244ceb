//! Who may run, and who is told that it has run.

use std::net::SocketAddr;

use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::Postgres;
use testbed::proxy::{OneShot, Protocol, Proxy};

use crate::support::{World, message, servers};

use super::{claim, code, complete, effect, effects, once, status};

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
                    let (mut transaction, claimed) = loop {
                        let mut transaction = sql.begin().await.unwrap();
                        match claim(&mut transaction, &key, "{}").await {
                            Ok(claimed) => break (transaction, claimed),
                            // Another one has it for longer than a claim waits.
                            Err(error) => assert_eq!(code(error), "55P03"),
                        }
                        transaction.rollback().await.unwrap();
                    };
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
                "granted" => {
                    assert_eq!(claimed.attempt, 1, "{number}: a claim that was rolled back never happened")
                }
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
    let given_up = claim(&mut sql, "rejected", r#"{"do": "reject"}"#).await.unwrap();
    assert_eq!(
        (given_up.outcome.as_str(), given_up.reason.as_deref()),
        ("given_up", Some("handler_rejected"))
    );
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
        let given_up = claim(&mut sql, key, "{}").await.unwrap();
        assert_eq!(
            (given_up.outcome.as_str(), given_up.reason.as_deref()),
            ("given_up", Some("incomplete_claim"))
        );
    }
    let worker = world.start("worker");
    world.publish("payments", message("acme", "forgotten"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'incomplete_claim'", 1).await;
    assert_eq!(effects(&mut world, "forgotten").await, 1, "not run again");
    // Somebody has looked: it is there.
    let settle = "set role oncely_operator; select oncely.settle_claim('acme', 'payments', 'autocommit', true, 'it is there'); reset role";
    sqlx::raw_sql(settle).execute(&mut world.sql).await.unwrap();
    let acted =
        "select count(*) from oncely.operator_actions where verb = 'settle_claim' and reason = 'it is there'";
    assert_eq!(world.count(acted).await, 1);
    assert_eq!(claim(&mut sql, "autocommit", "{}").await.unwrap().outcome, "duplicate");
    // With many others it is left out.
    let many = world.oncely(&["failed", "requeue", "--tenant", "acme", "--yes"]).await;
    let said = String::from_utf8_lossy(&many.stdout).into_owned() + &String::from_utf8_lossy(&many.stderr);
    assert!(said.contains("incomplete_claim: they may have taken effect"), "{said}");
    assert_eq!(world.count("select count(*) from oncely.dead_letters where state = 'waiting'").await, 1);
    // Somebody has looked, and lets it run.
    let requeued = world.oncely(&["failed", "requeue", "--key", "forgotten", "--yes"]).await;
    assert!(requeued.status.success(), "{}", String::from_utf8_lossy(&requeued.stderr));
    world.wait_for("select count(*) from app.effects where key = 'forgotten'", 2).await;
    world.stop(worker).await;
    assert_eq!(status(&mut world, "forgotten").await.as_deref(), Some("COMPLETED 1"));
}

#[tokio::test]
async fn a_claim_that_was_settled_as_done_is_remembered_by_the_trail_when_its_key_is_gone() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut sql = world.database.connect().await.unwrap();
    assert_eq!(claim(&mut sql, "autocommit", "{}").await.unwrap().outcome, "granted");
    effect(&mut sql, "autocommit").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "autocommit"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'incomplete_claim'", 1).await;
    world.stop(worker).await;
    let settle = "set role oncely_operator; select oncely.settle_claim('acme', 'payments', 'autocommit', true); reset role";
    sqlx::raw_sql(settle).execute(&mut world.sql).await.unwrap();
    let processed = "select count(*) from oncely.processed_keys where key = 'autocommit' and attempt = 1 and worker = 'operator'";
    assert_eq!(world.count(processed).await, 1);
    // Weeks later.
    for statement in [
        "update oncely.dead_letters set dead_lettered_at = dead_lettered_at - interval '20 days'",
        "update oncely.idempotency_keys set created_at = created_at - interval '20 days', completed_at = completed_at - interval '20 days', expires_at = expires_at - interval '20 days'",
        "update oncely.audit set occurred_at = occurred_at - interval '20 days'",
    ] {
        sqlx::query(statement).execute(&mut world.sql).await.unwrap();
    }
    let collected = world.oncely(&["gc", "run"]).await;
    assert!(collected.status.success(), "{collected:?}");
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 0);
    let refused = world.oncely(&["failed", "requeue", "--key", "autocommit", "--yes"]).await;
    let said =
        String::from_utf8_lossy(&refused.stdout).into_owned() + &String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("took effect, says the audit trail"), "{said}");
    assert_eq!(effects(&mut world, "autocommit").await, 1, "not run again");
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
async fn a_response_that_rust_cannot_hold_stops_no_worker() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut transaction = world.sql.begin().await.unwrap();
    claim(&mut transaction, "k", "{}").await.unwrap();
    effect(&mut transaction, "k").await;
    // jsonb takes it; a 64-bit float does not.
    sqlx::query("select oncely.complete('acme', 'payments', 'k', '{\"n\": 1e400}', queue => 'q')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    for key in ["k", "other"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where key = 'other'", 1).await;
    world.stop(worker).await;
    assert_eq!(effects(&mut world, "k").await, 1);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    let told = world.oncely(&["explain", "k", "--tenant", "acme"]).await;
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("1{}", "0".repeat(400))), "{told}");
    let told = world.oncely(&["explain", "k", "--tenant", "acme", "--json"]).await;
    assert!(told.status.success(), "{told:?}");
}

#[tokio::test]
async fn a_claim_that_waited_for_a_run_which_failed_meanwhile_heeds_its_delay() {
    let world = World::new().await;
    let [mut runs, mut waits] =
        [world.database.connect().await.unwrap(), world.database.connect().await.unwrap()];
    assert_eq!(super::fail(&mut runs, "k", 1, None).await.0, "retry");
    sqlx::query("update oncely.idempotency_keys set not_before = null").execute(&mut runs).await.unwrap();
    let mut transaction = runs.begin().await.unwrap();
    sqlx::query("select from oncely.idempotency_keys for update").execute(&mut *transaction).await.unwrap();
    let claimed = tokio::spawn(async move { claim(&mut waits, "k", "{}").await.unwrap() });
    let mut world = world;
    world.wait_for("select count(*) from pg_locks where not granted", 1).await;
    sqlx::query("update oncely.idempotency_keys set not_before = clock_timestamp() + interval '1 hour'")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(claimed.await.unwrap().outcome, "retry");
}

#[tokio::test]
async fn a_final_failure_is_recorded_although_a_copy_has_failed_in_passing_meanwhile() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    assert_eq!(super::fail(&mut sql, "k", 1, None).await.0, "retry");
    let (outcome, attempts, reason) = super::fail(&mut sql, "k", 1, Some("handler_rejected")).await;
    assert_eq!((outcome.as_str(), attempts, reason.as_deref()), ("given_up", 2, Some("handler_rejected")));
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("FAILED 2"));
    let trail = "select attempt::bigint from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(world.count(trail).await, 2, "as in the row");
}
