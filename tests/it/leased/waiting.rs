//! What waits holds nothing that others need: no place, no right, nothing of the prefetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{COMPLETED, HandlerError, LeasedHandler, Message, Running, message, world_with};
use crate::support::World;
use oncely::handler::{Finish, Lease};

const RETRY: &str = "retry = { delays = [\"50ms\"], max_attempts = 3 }";

/// Does what the key says.
#[derive(Clone, Default)]
struct Does {
    astray: Arc<AtomicUsize>,
    mended: Arc<AtomicBool>,
    begun: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl Does {
    /// Lets messages end until `count` are completed.
    async fn end_all(&self, world: &mut World, count: i64) {
        let all_are_done = async {
            while world.count(COMPLETED).await < count {
                self.go_on.notify_waiters();
            }
        };
        tokio::time::timeout(testbed::DEADLINE, all_are_done).await.expect("all end");
    }
}

impl LeasedHandler for Does {
    async fn handle(&self, _: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        match message.key().split('-').next().unwrap_or_default() {
            "bad" => return Err(HandlerError::permanent("no such account")),
            "astray" if !self.mended.load(Ordering::SeqCst) => {
                self.astray.fetch_add(1, Ordering::SeqCst);
                return Err(HandlerError::environment("404"));
            }
            "lasts" => {
                self.begun.notify_one();
                self.go_on.notified().await;
            }
            _ => {}
        }
        Ok(Finish::done())
    }
}

#[tokio::test]
async fn a_session_that_died_of_rest_does_not_keep_a_dead_runs_key() {
    // A message comes back less often than sessions may rest, and than a lease lasts.
    let mut world = world_with("", "retry = { delays = [\"6s\"], max_attempts = 3 }", "").await;
    let rest = "do $$ begin execute format('alter database %I set idle_session_timeout = ''1s''', current_database()); end $$";
    sqlx::raw_sql(rest).execute(&mut world.sql).await.unwrap();
    // A run elsewhere has died.
    let claimed =
        "select oncely.claim_lease('acme', 'charges', 'orphan', null, 'elsewhere', interval '1 second')";
    sqlx::raw_sql(claimed).execute(&mut world.sql).await.unwrap();
    let does = Does::default();
    let running = Running::start(&world, &does);
    world.publish("charges", message("acme", "first"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    let resting =
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'
        and application_name like 'oncely worker % charges' and query like '%complete_leases%'";
    world.wait_for(resting, 0).await;
    world.publish("charges", message("acme", "orphan"), "{}").await;
    world.wait_for(COMPLETED, 2).await;
    running.end().await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'taken_over'").await, 1);
}

#[tokio::test]
async fn copies_that_can_not_be_published_hold_no_place() {
    let mut world = world_with("", RETRY, "").await;
    let dead = format!("{}.dead", world.queue("charges"));
    let does = Does::default();
    let running = Running::start(&world, &does);
    world.publish("charges", message("acme", "first"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    world.broker.delete_queue(&dead).await.unwrap();
    // Four times as many as there are places.
    for number in 0..32 {
        world.publish("charges", message("acme", &format!("bad-{number}")), "{}").await;
    }
    world.wait_for("select count(*) from oncely.dead_letters", 32).await;
    for number in 0..50 {
        world.publish("charges", message("acme", &format!("good-{number}")), "{}").await;
    }
    world.wait_for(COMPLETED, 51).await;
    assert_eq!(world.broker.ready(&world.queue("charges")).await.unwrap(), 0, "all have come");
    world.apply_topology().await;
    world.wait_for_ready(&dead, 32).await;
    // The worker knows that the last copy has arrived, too.
    let now = world.text("select now()::text").await.unwrap();
    let settled = format!(
        "select count(*) from oncely.processes
         where last_seen_at > '{now}' and consumers -> 0 -> 'unacknowledged' ->> '{}' = '0'",
        world.queue("charges")
    );
    world.wait_for(&settled, 1).await;
    running.end().await;
    assert_eq!(world.broker.ready(&world.queue("charges")).await.unwrap(), 0, "each was acknowledged");
}

#[tokio::test]
async fn a_handler_begins_while_the_result_of_another_is_recorded() {
    let mut world = world_with("", RETRY, "").await;
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table oncely.audit in share mode").execute(&mut other).await.unwrap();
    let does = Does::default();
    let running = Running::start(&world, &does);
    // Eight places: one becomes free, and its message waits for its row of the trail.
    for key in
        ["short", "lasts-1", "lasts-2", "lasts-3", "lasts-4", "lasts-5", "lasts-6", "lasts-7", "lasts-8"]
    {
        world.publish("charges", message("acme", key), "{}").await;
    }
    world.wait_for("select count(*) from oncely.idempotency_keys where owner is not null", 9).await;
    assert_eq!(world.count(COMPLETED).await, 0);
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();
    world.wait_for(COMPLETED, 1).await;
    does.end_all(&mut world, 9).await;
    running.end().await;
}

#[tokio::test]
async fn a_message_that_came_ahead_of_a_pause_runs_when_it_is_over() {
    let mut world = world_with("", RETRY, "").await;
    let does = Does::default();
    let running = Running::start(&world, &does);
    for number in 1..=8 {
        world.publish("charges", message("acme", &format!("lasts-{number}")), "{}").await;
    }
    world.wait_for("select count(*) from oncely.idempotency_keys where owner is not null", 8).await;
    world.publish("charges", message("acme", "short"), "{}").await;
    world.wait_for_ready(&world.queue("charges"), 0).await;
    let pause = "select oncely.pause_consumer('charges', null, 'a deployment', 'ana')";
    sqlx::raw_sql(pause).execute(&mut world.sql).await.unwrap();
    let paused = "select count(*) from oncely.processes where consumers -> 0 -> 'paused' ->> 'reason' = 'a deployment'";
    world.wait_for(paused, 1).await;
    // A place becomes free, for the message that has come.
    does.go_on.notify_one();
    world.wait_for(COMPLETED, 1).await;
    sqlx::raw_sql("select oncely.resume_consumer('charges', 'done', 'ana')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    // Long before the other seven end.
    world.wait_within(Duration::from_secs(20), COMPLETED, 2).await;
    does.end_all(&mut world, 9).await;
    running.end().await;
}

#[tokio::test]
async fn a_tenant_whose_messages_all_fail_keeps_no_other_one_waiting() {
    let mut world = world_with("", RETRY, "").await;
    for number in 0..300 {
        world.publish("charges", message("acme", &format!("astray-{number}")), "{}").await;
    }
    world.publish("charges", message("globex", "fine"), "{}").await;
    let does = Does::default();
    let running = Running::start(&world, &does);
    world.wait_within(Duration::from_secs(20), COMPLETED, 1).await;
    does.mended.store(true, Ordering::SeqCst);
    world
        .wait_within(
            Duration::from_secs(120),
            "select count(*) from oncely.idempotency_keys where status <> 'IN_PROGRESS'",
            301,
        )
        .await;
    running.end().await;
}

#[tokio::test]
async fn suspects_among_runs_that_last_keep_no_fresh_message_waiting() {
    let mut world = world_with("", RETRY, "").await;
    // A process that held six keys, and is gone, as others before it.
    let claim = "select oncely.claim_lease('acme', 'charges', 'suspect-' || n, null, 'dead', interval '1 second', interval '10 minutes',
        on_conflict => 'duplicate') from generate_series(1, 6) as n";
    sqlx::query(claim).execute(&mut world.sql).await.unwrap();
    let died = "update oncely.idempotency_keys set crash_attempts = 1";
    sqlx::query(died).execute(&mut world.sql).await.unwrap();
    let does = Does::default();
    let running = Running::start(&world, &does);
    world.publish("charges", message("acme", "lasts"), "{}").await;
    does.begun.notified().await;
    for number in 1..=6 {
        world.publish("charges", message("acme", &format!("suspect-{number}")), "{}").await;
    }
    let given_back = "select count(*) from oncely.idempotency_keys where key like 'suspect-%' and crash_attempts = 2 and owner is null";
    world.wait_for(given_back, 6).await;
    for number in 1..=10 {
        world.publish("charges", message("acme", &format!("fine-{number}")), "{}").await;
        let fine =
            "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and key like 'fine-%'";
        world.wait_within(Duration::from_secs(5), fine, number).await;
    }
    let waiting =
        "select count(*) from oncely.idempotency_keys where key like 'suspect-%' and status = 'COMPLETED'";
    assert_eq!(world.count(waiting).await, 0, "others are at work");
    does.go_on.notify_one();
    world.wait_within(Duration::from_secs(90), COMPLETED, 17).await;
    running.end().await;
}
