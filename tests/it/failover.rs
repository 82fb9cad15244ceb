//! A failover takes back commits while Redis says that they are there: what was lost runs again, nothing else does.

use std::collections::BTreeSet;

use sqlx::{Connection as _, PgConnection};
use testbed::{Postgres, Process, Redis};

use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message, servers};

async fn keys(connection: &mut PgConnection, query: &'static str) -> BTreeSet<String> {
    sqlx::query_scalar(query).fetch_all(connection).await.unwrap().into_iter().collect()
}

fn numbered(letter: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("{letter}{number}")).collect()
}

const EFFECTS: &str = "select key from app.effects";
const MIRROR_QUEUE: &str = "select count(*) from oncely.mirror_queue";

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
    world.wait_for(MIRROR_QUEUE, 0).await;
    primary.wait_for_standby().await.unwrap();
    standby.cut_off().await.unwrap();
    publish(&world, &lost).await;
    world.wait_for("select count(*) from app.effects", 35).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
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
    world.wait_for_line(&worker, "database epoch changed").await;
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
    assert_eq!(duplicates.await, kept, "no entry of the old epoch answers");
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

/// A worker that believes Redis, and a batch of two in it: `lost`, which Redis knows and the standby, cut off, does not; and `second`,
/// whose handler waits at the gate.
struct Forgotten {
    world: World,
    primary: Postgres,
    standby: Postgres,
    worker: Process,
    relay: Process,
    _redis: Redis,
    _gate: Gate,
}

impl Forgotten {
    async fn at_work(settings: &str) -> Self {
        let primary = Postgres::start(&["max_prepared_transactions=2"]).await.unwrap();
        let redis = Redis::start().await.unwrap();
        let mut urls = servers().await.urls().clone();
        urls.postgres = primary.url();
        let mut world = World::on(urls).await;
        world.with_redis(&redis.url(), "precheck = \"trust\"");
        world.configure(settings);
        world.consumer("payments", "lanes = 1");
        world.apply_topology().await;
        let standby = primary.standby().await.unwrap();
        let (worker, relay) = (world.start("worker"), world.start("relay"));
        primary.wait_for_standby().await.unwrap();
        standby.cut_off().await.unwrap();
        world.publish("payments", message("acme", "lost"), "{}").await;
        world.wait_for("select count(*) from app.effects", 1).await;
        world.wait_for(MIRROR_QUEUE, 0).await;

        let mut gate = Gate::shut(&world).await;
        world.publish("payments", message("acme", "first"), r#"{"do": "wait"}"#).await;
        world.wait_for(WAITING, 1).await;
        world.publish("payments", message("acme", "lost"), "{}").await;
        world.publish("payments", message("acme", "second"), r#"{"do": "wait"}"#).await;
        world.wait_for_ready(&world.queue("payments"), 0).await;
        gate.pass(&mut world).await;
        world.wait_for(WAITING, 1).await;
        Self { world, primary, standby, worker, relay, _redis: redis, _gate: gate }
    }

    /// Both have taken effect on the new primary, and nothing else has.
    async fn both_took_effect(mut self) {
        self.world.wait_for("select count(*) from app.effects where key = 'second'", 1).await;
        self.world.wait_for("select count(*) from app.effects where key = 'lost'", 1).await;
        self.world.stop(self.worker).await;
        self.world.stop(self.relay).await;
        assert_eq!(self.world.count("select count(*) from app.effects").await, 2);
        assert_eq!(self.world.broker.ready(&self.world.queue("payments")).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_duplicate_that_a_failover_forgets_while_its_batch_runs_runs_again() {
    let mut scene = Forgotten::at_work("[audit]\nduplicates = true").await;
    fail_over(&mut scene.world, &mut scene.primary, &mut scene.standby).await;
    scene.both_took_effect().await;
}

/// As above, where nothing is written on the new primary before the batch is settled: the message beside it waits for a held key.
#[tokio::test]
async fn a_duplicate_that_a_failover_forgets_runs_again_although_nothing_beside_it_commits() {
    let mut scene = Forgotten::at_work("").await;
    scene.primary.kill().unwrap();
    scene.standby.promote().await.unwrap();
    // Before the worker finds the new primary, a transaction holds the key there, and outlives the change of the port.
    let url = scene.standby.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    let mut holder =
        PgConnection::connect(&format!("{server}/{}", scene.world.database.name())).await.unwrap();
    sqlx::raw_sql(
        "begin;
         insert into oncely.idempotency_keys (tenant, consumer, key, status, created_at, attempts)
             values ('acme', 'payments', 'second', 'IN_PROGRESS', now(), 0);
         prepare transaction 'holder'",
    )
    .execute(&mut holder)
    .await
    .unwrap();
    drop(holder);
    scene.standby.take_port_of(&scene.primary).await.unwrap();
    scene.world.sql = scene.world.database.connect().await.unwrap();
    scene.world.wait_for("select count(*) from app.effects where key = 'lost'", 1).await;
    sqlx::query("rollback prepared 'holder'").execute(&mut scene.world.sql).await.unwrap();
    scene.both_took_effect().await;
}

/// A world on a primary of its own, with a standby.
async fn with_standby() -> (World, Postgres, Postgres) {
    let primary = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = primary.url();
    let mut world = World::on(urls).await;
    world.configure("[postgres]\nstatement_timeout = \"2s\"\nlock_timeout = \"1s\"");
    let standby = primary.standby().await.unwrap();
    (world, primary, standby)
}

/// Commits wait for the standby from now on.
async fn make_synchronous(world: &mut World) {
    sqlx::query("alter system set synchronous_standby_names = '*'").execute(&mut world.sql).await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from pg_stat_replication where sync_state = 'sync'", 1).await;
}

const AWAITS_STANDBY: &str =
    "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()";

/// The primary dies, and the standby takes its place with what has reached it.
async fn fail_over(world: &mut World, primary: &mut Postgres, standby: &mut Postgres) {
    primary.kill().unwrap();
    standby.take_port_of(primary).await.unwrap();
    standby.promote().await.unwrap();
    world.sql = world.database.connect().await.unwrap();
}

#[tokio::test]
async fn auto_does_not_trust_a_primary_whose_standby_was_cut_off() {
    let (mut world, primary, standby) = with_standby().await;
    let redis = Redis::start().await.unwrap();
    world.with_redis(&redis.url(), "precheck = \"auto\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for_line(&worker, "PostgreSQL may lose commits that it reported").await;
    publish(&world, &numbered("before", 1)).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    primary.wait_for_standby().await.unwrap();
    standby.cut_off().await.unwrap();
    world.wait_for("select count(*) from pg_stat_replication", 0).await;
    // The worker has asked since, and was told that nothing can be lost.
    let now = world.text("select clock_timestamp()::text").await.unwrap();
    let asked = format!(
        "select count(*) from pg_stat_activity where application_name like 'oncely worker%epoch' and state = 'idle'
            and query_start > '{now}' and datname = current_database()"
    );
    world.wait_for(&asked, 1).await;
    publish(&world, &numbered("k", 1)).await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    // As the standby will have it when it takes over, before anybody knows that it did.
    sqlx::raw_sql(
        "delete from app.effects where key = 'k0'; delete from oncely.idempotency_keys where key = 'k0'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    publish(&world, &numbered("k", 1)).await;
    world.wait_for("select count(*) from app.effects where key = 'k0'", 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_commit_that_never_reached_the_synchronous_standby_is_not_acknowledged() {
    let (mut world, mut primary, mut standby) = with_standby().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    make_synchronous(&mut world).await;
    let worker = world.start("worker");
    publish(&world, &numbered("before", 1)).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    standby.cut_off().await.unwrap();
    publish(&world, &numbered("k", 1)).await;
    world.wait_for(AWAITS_STANDBY, 1).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1, "not visible while it waits");
    // Its wait is cut short: the row is visible, and nowhere but here.
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()";
    sqlx::query(cut).execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from app.effects", 2).await;
    // The worker finds it done, and must ask the standby before it believes that.
    world.wait_for(AWAITS_STANDBY, 1).await;
    fail_over(&mut world, &mut primary, &mut standby).await;
    world.wait_for("select count(*) from app.effects where key = 'k0'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

/// A transaction of one statement is cancelled at the deadline: while it waits for the standby, it is done all the same, and says so.
#[tokio::test]
async fn a_commit_whose_wait_for_the_standby_is_cancelled_at_the_deadline_is_not_acknowledged() {
    let (mut world, mut primary, mut standby) = with_standby().await;
    world.consumer("payments", "handler = { function = \"app.quiet\" }\nlanes = 1\ndeadline = \"2s\"");
    world.apply_topology().await;
    make_synchronous(&mut world).await;
    let worker = world.start("worker");
    publish(&world, &numbered("before", 1)).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    standby.cut_off().await.unwrap();
    publish(&world, &numbered("k", 1)).await;
    world.wait_for(AWAITS_STANDBY, 1).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1, "not visible while it waits");
    // The deadline has struck: the row is visible, and nowhere but here. The worker asks the standby.
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for(AWAITS_STANDBY, 1).await;
    fail_over(&mut world, &mut primary, &mut standby).await;
    world.wait_for("select count(*) from app.effects where key = 'k0'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_worker_that_starts_while_there_is_only_a_standby_waits_for_its_promotion() {
    let (mut world, mut primary, mut standby) = with_standby().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    primary.wait_for_standby().await.unwrap();
    primary.kill().unwrap();
    standby.take_port_of(&primary).await.unwrap();
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for_line(&worker, "the server is a standby").await;
    world.wait_for_line(&relay, "the server is a standby").await;
    publish(&world, &numbered("k", 1)).await;
    standby.promote().await.unwrap();
    world.sql = world.database.connect().await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn nothing_is_written_to_an_old_primary_that_comes_back_to_life() {
    let (mut world, mut primary, mut standby) = with_standby().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    primary.wait_for_standby().await.unwrap();
    let worker = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    primary.kill().unwrap();
    standby.take_port_of(&primary).await.unwrap();
    standby.promote().await.unwrap();
    publish(&world, &numbered("k", 1)).await;
    world.sql = world.database.connect().await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;

    standby.kill().unwrap();
    primary.restart().await.unwrap();
    publish(&world, &numbered("m", 1)).await;
    world.wait_for_line(&worker, "the database is on an older timeline").await;
    world.sql = world.database.connect().await.unwrap();
    assert_eq!(world.count("select count(*) from app.effects").await, 0, "nobody reads this past");
    primary.kill().unwrap();
    standby.restart().await.unwrap();
    world.sql = world.database.connect().await.unwrap();
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
}

/// `oncely.cell.history_id` is changed after a second promotion (docs/src/explanation/failure-modes.md), while workers live.
#[tokio::test]
async fn an_epoch_that_changes_under_a_living_worker_keeps_no_batch_from_being_settled() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "precheck = \"trust\"");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "first"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    sqlx::query("update oncely.cell set history_id = gen_random_uuid()")
        .execute(&mut world.sql)
        .await
        .unwrap();
    world.wait_for_line(&worker, "database epoch changed").await;
    // Of the new epoch: a key that a relay with a session of now has mirrored.
    sqlx::raw_sql(
        "begin;
         select oncely.claim('acme', 'payments', 'k', sha256('{}'));
         select oncely.complete('acme', 'payments', 'k');
         commit",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let relay = world.start("relay");
    world.wait_for(MIRROR_QUEUE, 0).await;
    let mut gate = Gate::shut(&world).await;
    world.publish("payments", message("acme", "waits"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.publish("payments", message("acme", "fresh"), "{}").await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    gate.pass(&mut world).await;
    world.wait_for("select count(*) from app.effects", 3).await;
    // The lane goes on.
    world.publish("payments", message("acme", "later"), "{}").await;
    world.wait_for("select count(*) from app.effects", 4).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from app.effects where key = 'k'").await, 0);
}
