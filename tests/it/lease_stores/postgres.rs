//! The store in PostgreSQL.

use oncely::HandlerError;
use oncely::lease::{Claimed, LeaseRunner, LeaseStore as _, PostgresStore, Ran, StoreError, fingerprint};
use oncely::reason::Reason;
use sqlx::postgres::PgPoolOptions;

use super::clocks::PostgresClock;
use super::{claim, conforms, hold, identity};
use crate::support::{Login, World};

async fn pool(url: &str) -> sqlx::PgPool {
    PgPoolOptions::new().max_connections(12).connect(url).await.unwrap()
}

#[tokio::test]
async fn the_store_in_postgresql_conforms() {
    let world = World::new().await;
    let pool = pool(world.database.url()).await;
    conforms(&PostgresStore::new(pool.clone()), &PostgresClock(pool), 300).await;
}

#[tokio::test]
async fn a_key_is_one_key_for_a_store_and_for_the_sql_protocol() {
    let mut world = World::new().await;
    let store = PostgresStore::new(pool(world.database.url()).await);
    let key = identity("order 1");
    let held = hold(&store, &key, "the store").await;
    // The fingerprint is that of the body, so the protocol takes it for the same payload.
    let (outcome, token): (String, Option<i64>) = sqlx::query_as(
        "select outcome, token from oncely.claim_lease('acme', 'payments', 'order 1', sha256('{}'), 'somebody')",
    )
    .fetch_one(&mut world.sql)
    .await
    .unwrap();
    assert_eq!((outcome.as_str(), token), ("in_flight", None));
    store.complete(&held, Some(&"done".into())).await.unwrap();
    let response: serde_json::Value =
        sqlx::query_scalar("select response from oncely.claim('acme', 'payments', 'order 1', sha256('{}'))")
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
    assert_eq!(response, "done");
    let outcomes = "select count(*) from oncely.audit where key = 'order 1' and outcome = 'completed'";
    assert_eq!(world.count(outcomes).await, 1);
}

#[tokio::test]
async fn who_may_not_consume_holds_nothing_and_who_may_needs_no_table() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    let store = PostgresStore::new(pool(&login.url).await);
    let key = identity("order 1");
    let refused = store.claim(&claim(&key, "first")).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.to_string().contains("ONC16")),
        "{refused:?}"
    );
    let grant = "insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
        values ('acme', 'consume', 'payments', $1, now(), 'test')";
    sqlx::query(grant).bind(&login.name).execute(&mut world.sql).await.unwrap();
    let held = hold(&store, &key, "first").await;
    store.complete(&held, None).await.unwrap();
    assert_eq!(store.claim(&claim(&key, "second")).await.unwrap(), Claimed::Done(None));
    let looked = store.look_up(&key).await;
    assert!(looked.is_err(), "a consumer reads no table: {looked:?}");
    drop(store);
}

#[tokio::test]
async fn a_run_that_failed_as_often_as_it_may_is_given_up() {
    let mut world = World::new().await;
    let store = PostgresStore::new(pool(world.database.url()).await);
    let policies = [("delays", vec![std::time::Duration::ZERO], 2), ("none", vec![], 9)];
    for (name, delays, max_attempts) in policies {
        let runner = LeaseRunner::new(store.clone()).retry(delays, max_attempts, 3);
        let key = identity(name);
        let fail = async |_| Err(HandlerError::transient("away"));
        let mut ran = runner.run(&key, fingerprint(b"{}"), fail).await.unwrap();
        if name == "delays" {
            assert!(matches!(ran, Ran::Failed { .. }), "{ran:?}");
            ran = runner.run(&key, fingerprint(b"{}"), fail).await.unwrap();
        }
        assert!(matches!(ran, Ran::GivenUp { reason: Reason::AttemptsExhausted, .. }), "{name}: {ran:?}");
        let again = runner.run(&key, fingerprint(b"{}"), async |_| panic!("it ran")).await.unwrap();
        assert!(matches!(again, Ran::GivenUp { reason: Reason::AttemptsExhausted, .. }), "{name}: {again:?}");
    }
    let given_up = "select count(*) from oncely.idempotency_keys where reason = 'attempts_exhausted'";
    assert_eq!(world.count(given_up).await, 2);
}
