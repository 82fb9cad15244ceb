//! A failover takes back commits while Redis says that they are there: what was lost runs again, nothing else does.

use std::collections::BTreeSet;

use sqlx::PgConnection;
use testbed::{Postgres, Redis};

use crate::support::{World, message, servers};

async fn keys(connection: &mut PgConnection, query: &'static str) -> BTreeSet<String> {
    sqlx::query_scalar(query).fetch_all(connection).await.unwrap().into_iter().collect()
}

fn numbered(letter: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("{letter}{number}")).collect()
}

const EFFECTS: &str = "select key from app.effects";
const OUTBOX: &str = "select count(*) from oncely.outbox";

async fn publish(world: &World, keys: &BTreeSet<String>) {
    for key in keys {
        world.publish("payments", message("acme", key), "{}").await;
    }
}

async fn lost_commits_run_again(mode: &str) {
    let mut primary = Postgres::start(&[]).await.unwrap();
    let redis = Redis::start().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = primary.url();
    let mut world = World::on(urls).await;
    world.with_redis(&redis.url(), &format!("precheck = {mode:?}"));
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut standby = primary.standby().await.unwrap();
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let (kept, lost) = (numbered("kept", 20), numbered("lost", 15));

    publish(&world, &kept).await;
    world.wait_for("select count(*) from app.effects", 20).await;
    world.wait_for(OUTBOX, 0).await;
    primary.wait_for_standby().await.unwrap();
    standby.cut_off().await.unwrap();
    publish(&world, &lost).await;
    world.wait_for("select count(*) from app.effects", 35).await;
    world.wait_for(OUTBOX, 0).await;
    // Redis says of the last ones, too, that they took effect.
    world.publish("payments", message("acme", "lost0"), "{}").await;
    world.wait_for("select count(*) from oncely.audit where key = 'lost0' and reason = 'mirror'", 1).await;
    let before = keys(&mut world.sql, EFFECTS).await;
    assert_eq!(before, &kept | &lost);

    primary.kill().unwrap();
    standby.take_port_of(&primary).await.unwrap();
    // Not promoted yet: the worker meets a server that only reads.
    world.publish("payments", message("acme", "meanwhile"), "{}").await;
    world.wait_for_line(&worker, "consuming waits").await;
    world.sql = world.database.connect().await.unwrap();
    assert_eq!(keys(&mut world.sql, EFFECTS).await, kept);
    standby.promote().await.unwrap();
    world.wait_for_line(&worker, "the database is on another history").await;
    world.wait_for("select count(*) from app.effects where key = 'meanwhile'", 1).await;

    let mut survived = keys(&mut world.sql, EFFECTS).await;
    survived.remove("meanwhile");
    assert_eq!(&before - &survived, lost, "exactly the commits that were not replicated are gone");
    // As a producer's outbox would, or a broker that got no acknowledgement.
    publish(&world, &before).await;
    world.wait_for("select count(*) from app.effects", 36).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 20).await;
    world.stop(worker).await;
    world.stop(relay).await;
    let again =
        keys(&mut world.sql, "select key from oncely.audit where outcome = 'completed' and key like 'lost%'");
    assert_eq!(again.await, lost);
    let duplicates = keys(
        &mut world.sql,
        "select key from oncely.audit where outcome = 'duplicate' and reason = 'postgres'",
    );
    assert_eq!(duplicates.await, kept, "no entry of the old history answers");
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 36);
    assert_eq!(world.count("select count(distinct key) from app.effects").await, 36);
    assert_eq!(world.count("select count(*) from app.effects").await, 36);
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("payments"))).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn commits_lost_by_a_failover_run_again_although_redis_knows_them_in_auto() {
    lost_commits_run_again("auto").await;
}

#[tokio::test]
async fn commits_lost_by_a_failover_run_again_although_redis_knows_them_in_verify() {
    lost_commits_run_again("verify").await;
}

#[tokio::test]
async fn commits_lost_by_a_failover_run_again_although_redis_knows_them_in_trust() {
    lost_commits_run_again("trust").await;
}
