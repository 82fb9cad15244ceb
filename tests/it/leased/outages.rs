//! A database that is slow, away, or waits for a standby: what was called is not called again, no run is blamed, and nobody has died.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testbed::Postgres;
use testbed::proxy::Mode;

use super::{
    COMPLETED, HandlerError, LeasedHandler, Message, Running, message, world_of, world_on, world_with,
};
use crate::support::{World, servers};
use oncely::Worker;
use oncely::handler::{Finish, Lease};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const RETRY: &str = "retry = { delays = [\"50ms\"], max_attempts = 3 }";
const LIMITS: &str = "[postgres]\nstatement_timeout = \"1s\"\nlock_timeout = \"500ms\"";

/// Counts its runs, which take so long.
#[derive(Clone, Default)]
struct Counted {
    runs: Arc<AtomicUsize>,
    takes: Duration,
}

impl LeasedHandler for Counted {
    async fn handle(&self, _: &Lease, _: Message<'_>) -> Result<Finish, HandlerError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        Ok(Finish::done())
    }
}

impl Counted {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_completion_that_takes_too_long_is_no_failure_of_its_run() {
    let mut world = world_with("", RETRY, LIMITS).await;
    let slow = "create sequence app.tries;
        create function app.take_long() returns trigger language plpgsql as $$
        begin
            if nextval('app.tries') <= 2 then perform pg_sleep(3); end if;
            return new;
        end $$;
        create trigger slow before update on oncely.idempotency_keys for each row when (new.status = 'COMPLETED')
        execute function app.take_long()";
    sqlx::raw_sql(slow).execute(&mut world.sql).await.unwrap();
    let handler = Counted::default();
    let running = Running::start(&world, &handler);
    world.publish("charges", message("acme", "k"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    running.end().await;
    assert_eq!(handler.runs(), 1);
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 0);
}

#[tokio::test]
async fn an_outage_takes_nothing_from_the_time_of_a_run_that_begins_behind_it() {
    let mut world = world_of("time = \"5s\", max_run = \"10s\", concurrency = 8", RETRY, LIMITS).await;
    let (proxy, [(_, through)]) = world.proxied_postgres().await;
    let mut config = world.config();
    config.postgres.url = through.into();
    let handler = Counted { takes: Duration::from_secs(4), ..Counted::default() };
    let worker = Worker::builder(config).leased_handler("charges", handler.clone()).build().unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = Running(
        stop,
        tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }),
    );
    world.publish("charges", message("acme", "before"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    world.publish("charges", message("acme", "k"), "{}").await;
    // It is in the worker's hands.
    world.wait_for_ready(&world.queue("charges"), 0).await;
    // Longer than a run may take.
    tokio::time::sleep(Duration::from_secs(12)).await;
    proxy.set(Mode::Pass);
    world.wait_for(COMPLETED, 2).await;
    running.end().await;
    assert_eq!(handler.runs(), 2);
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 0);
}

/// Writes in its first two runs, while PostgreSQL is away.
#[derive(Clone, Default)]
struct Writer {
    runs: Arc<AtomicUsize>,
    begun: Arc<Notify>,
    away: Arc<Notify>,
    failed: Arc<Notify>,
    back: Arc<Notify>,
}

impl LeasedHandler for Writer {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        if message.key() != "writer" || self.runs.fetch_add(1, Ordering::SeqCst) > 1 {
            return Ok(Finish::done());
        }
        self.begun.notify_one();
        self.away.notified().await;
        let written = lease
            .transaction("write", |connection| {
                Box::pin(async move {
                    sqlx::query("select 1").execute(&mut *connection).await?;
                    Ok(())
                })
            })
            .await;
        self.failed.notify_one();
        self.back.notified().await;
        written?;
        Ok(Finish::done())
    }
}

#[tokio::test]
async fn what_a_handler_meets_while_postgresql_is_away_spends_no_attempt_whatever_succeeds_then() {
    let limits = format!("{LIMITS}\nconnect_timeout = \"1s\"");
    let mut world = world_of("time = \"10s\", max_run = \"60s\", concurrency = 8", RETRY, &limits).await;
    let (proxy, [(_, through)]) = world.proxied_postgres().await;
    let mut config = world.config();
    config.postgres.url = through.into();
    let handler = Writer::default();
    let worker = Worker::builder(config).leased_handler("charges", handler.clone()).build().unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = Running(
        stop,
        tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }),
    );
    world.publish("charges", message("acme", "writer"), "{}").await;
    for (witness, done) in [("first", 1), ("second", 2)] {
        handler.begun.notified().await;
        proxy.set(Mode::Refuse);
        proxy.cut();
        handler.away.notify_one();
        handler.failed.notified().await;
        proxy.set(Mode::Pass);
        handler.back.notify_one();
        world.publish("charges", message("acme", witness), "{}").await;
        world.wait_for(&format!("{COMPLETED} and key <> 'writer'"), done).await;
    }
    world.wait_for(COMPLETED, 3).await;
    running.end().await;
    assert_eq!(handler.runs.load(Ordering::SeqCst), 3);
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 0);
}

/// A worker whose claim of `key` waits for a standby that is away, and has been sent again. The first message is done.
async fn stalled_claim(handler: &Counted, key: &str) -> (Postgres, World, Running) {
    let postgres = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = postgres.url();
    let lease = "time = \"5s\", max_run = \"60s\", concurrency = 8";
    let mut world = world_on(World::on(urls).await, lease, RETRY, LIMITS).await;
    let running = Running::start(&world, handler);
    world.publish("charges", message("acme", "before"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    standby(&mut world, "nobody").await;
    world.publish("charges", message("acme", key), "{}").await;
    let again = "select (count(*) > 0)::integer::bigint
        from pg_stat_activity as first
        join pg_stat_activity as again on again.query like '%take_leases(%' and again.query_start > first.query_start
        where first.query like '%take_leases(%' and first.wait_event = 'SyncRep' and again.pid <> pg_backend_pid()";
    world.wait_for(again, 1).await;
    asked_since_now(&mut world).await;
    (postgres, world, running)
}

/// Tries that were under way are over, and there are others.
async fn asked_since_now(world: &mut World) {
    let at = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
    let at = world.count(at).await + 500_000;
    let asked = format!(
        "select (count(*) > 0)::integer::bigint from pg_stat_activity where query like '%take_leases(%'
            and pid <> pg_backend_pid() and query_start > to_timestamp({at} / 1000000.0)"
    );
    world.wait_for(&asked, 1).await;
}

async fn standby(world: &mut World, names: &str) {
    let alter = format!("alter system set synchronous_standby_names = '{names}'");
    sqlx::query(sqlx::AssertSqlSafe(alter)).execute(&mut world.sql).await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut world.sql).await.unwrap();
    // A commit waits from when the checkpointer has read it, too.
    while !names.is_empty() {
        let mut other = world.database.connect().await.unwrap();
        let writing = tokio::spawn(async move {
            sqlx::raw_sql("select pg_logical_emit_message(true, 'probe', '')").execute(&mut other).await
        });
        let waits = "select count(*) from pg_stat_activity where query like '%emit_message%' and wait_event = 'SyncRep'";
        while !writing.is_finished() {
            if world.count(waits).await > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

const DEATHS: &str =
    "select sum(crash_attempts)::bigint + (select count(*) from oncely.audit where outcome = 'taken_over')
    from oncely.idempotency_keys";

#[tokio::test]
async fn a_claim_whose_commit_waits_for_a_standby_is_granted_to_whoever_said_it() {
    let handler = Counted::default();
    let (_postgres, mut world, running) = stalled_claim(&handler, "granted").await;
    standby(&mut world, "").await;
    world.wait_for(COMPLETED, 2).await;
    running.end().await;
    assert_eq!(handler.runs(), 2);
    assert_eq!(world.count(DEATHS).await, 0);
}

#[tokio::test]
async fn a_worker_that_stops_gives_back_what_a_claim_without_an_answer_was_granted() {
    let handler = Counted::default();
    let (_postgres, mut world, running) = stalled_claim(&handler, "stopped").await;
    running.0.cancel();
    asked_since_now(&mut world).await;
    standby(&mut world, "").await;
    running.end().await;
    let free = "select count(*) from oncely.idempotency_keys where key = 'stopped' and owner is null and status = 'IN_PROGRESS'";
    assert_eq!(world.count(free).await, 1);
    let running = Running::start(&world, &handler);
    world.wait_for(COMPLETED, 2).await;
    running.end().await;
    assert_eq!(handler.runs(), 2);
    assert_eq!(world.count(DEATHS).await, 0);
}

#[tokio::test]
async fn what_is_granted_to_a_run_that_was_dropped_meanwhile_is_given_back() {
    let mut world = world_with("", RETRY, "").await;
    let slow = "create function app.take_long() returns trigger language plpgsql as $$
        begin perform pg_sleep(2); return new; end $$;
        create trigger slow before insert on oncely.idempotency_keys for each row execute function app.take_long()";
    sqlx::raw_sql(slow).execute(&mut world.sql).await.unwrap();
    let handler = Counted::default();
    let running = Running::start(&world, &handler);
    world.publish("charges", message("acme", "k"), "{}").await;
    let claimed =
        "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and query like '%take_leases(%'
        and datname = current_database()";
    world.wait_for(claimed, 1).await;
    // A program that embeds the worker, and drops it.
    running.1.abort();
    let free = "select count(*) from oncely.idempotency_keys where key = 'k' and owner is null and status = 'IN_PROGRESS'";
    world.wait_for(free, 1).await;
    assert_eq!(handler.runs(), 0);
    assert_eq!(world.count(DEATHS).await, 0);
}
