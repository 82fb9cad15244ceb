//! Who answers for a failure under a lease, who waits for whom, and what a handler may not do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{
    COMPLETED, HandlerError, LeasedHandler, Message, Repeat, Running, Step, message, others_succeed_until,
    world_with,
};
use oncely::handler::{Finish, Lease};

const RETRY: &str = "retry = { delays = [\"50ms\"], max_attempts = 3 }";
const CALL: Step = Step::new("call", Repeat::Always);

/// As many runs as may be at work at the same time.
struct Meeting(tokio::sync::Barrier);

impl Default for Meeting {
    fn default() -> Self {
        Self(tokio::sync::Barrier::new(8))
    }
}

/// Shut, at first.
struct Gates(tokio::sync::Semaphore);

impl Default for Gates {
    fn default() -> Self {
        Self(tokio::sync::Semaphore::new(0))
    }
}

/// Does what the key says.
#[derive(Clone, Default)]
struct Odd {
    /// Runs at this moment, and whether a run that took over was ever among others.
    running: Arc<AtomicUsize>,
    crowded: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    mended: Arc<AtomicBool>,
    /// A run that lasts has begun; it may end.
    begun: Arc<Notify>,
    go_on: Arc<Notify>,
    /// The one whose answer can't be stored has come. It may come back to be judged, and meets nobody then.
    large_came: Arc<AtomicBool>,
    /// Where runs meet before they end.
    ending: Arc<Meeting>,
    /// What a run that has begun needs to go on.
    gate: Arc<Gates>,
    /// A message came as a copy of ours, or again.
    copied: Arc<AtomicBool>,
}

impl LeasedHandler for Odd {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        let calls = Arc::clone(&self.calls);
        match message.key().split('-').next().unwrap_or_default() {
            "suspect" => {
                let others = self.running.fetch_add(1, Ordering::SeqCst);
                if others > 0 && lease.is_takeover() {
                    self.crowded.store(true, Ordering::SeqCst);
                }
                // Its work: long enough for the others to begin theirs; of some, longer than a suspect keeps those waiting that are none.
                let is_long = message.key().ends_with(['1', '2', '3']);
                tokio::time::sleep(Duration::from_millis(if is_long { 1_500 } else { 100 })).await;
                self.running.fetch_sub(1, Ordering::SeqCst);
            }
            "overdue" => {
                self.gate.0.acquire().await.unwrap().forget();
                lease.step(&CALL, async |_| Ok(calls.fetch_add(1, Ordering::SeqCst))).await?;
            }
            "astray" if !self.mended.load(Ordering::SeqCst) => {
                return Err(HandlerError::environment("a service is away"));
            }
            "slow" => {
                lease.step(&CALL, async |_| Ok(calls.fetch_add(1, Ordering::SeqCst))).await?;
                return Ok(Finish::done().with(|connection| {
                    Box::pin(async move {
                        // Longer than a statement of ours may take, and no statement of it is.
                        for _ in 0..8 {
                            sqlx::query("select pg_sleep(1.5)").execute(&mut *connection).await?;
                        }
                        Ok(())
                    })
                }));
            }
            "missing" => {
                lease.step(&CALL, async |_| Ok(calls.fetch_add(1, Ordering::SeqCst))).await?;
                return Ok(Finish::done().with(|connection| {
                    Box::pin(async move {
                        sqlx::query("insert into app.nowhere values (1)").execute(connection).await?;
                        Ok(())
                    })
                }));
            }
            "lasts" => {
                self.begun.notify_one();
                self.go_on.notified().await;
            }
            "together" | "large" => {
                let is_large = message.key().starts_with("large");
                if !is_large || !self.large_came.swap(true, Ordering::SeqCst) {
                    self.ending.0.wait().await;
                }
                let length = if is_large { 70_000 } else { 7 };
                return Finish::response("x".repeat(length));
            }
            "held" => {
                let by_its_queue = message.routing_key() == message.queue();
                let copied = message.headers().keys().any(|name| name.starts_with("x-oncely-"));
                self.copied.store(copied || !by_its_queue, Ordering::SeqCst);
            }
            "nested" => {
                let inner = lease.clone();
                let within = lease.transaction("books", move |_| {
                    Box::pin(async move { inner.step(&CALL, async |_| Ok(1)).await })
                });
                within.await?;
            }
            _ => {}
        }
        Ok(Finish::done())
    }
}

#[tokio::test]
async fn what_was_at_work_when_a_process_died_runs_alone() {
    let mut world = world_with("", RETRY, "").await;
    // A process that held six keys, and is gone.
    let claim = "select oncely.claim_lease('acme', 'charges', 'suspect-' || n, null, 'dead', interval '1 second', interval '10 minutes',
        on_conflict => 'duplicate') from generate_series(1, 6) as n";
    sqlx::query(claim).execute(&mut world.sql).await.unwrap();
    // They died with a process before.
    sqlx::query("update oncely.idempotency_keys set crash_attempts = 1")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let over = "select count(*) from oncely.idempotency_keys where not_before <= clock_timestamp()";
    world.wait_for(over, 6).await;
    for number in 1..=6 {
        world.publish("charges", message("acme", &format!("suspect-{number}")), "{}").await;
    }
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.wait_for(COMPLETED, 6).await;
    running.end().await;
    assert!(!odd.crowded.load(Ordering::SeqCst), "each may be what kills the process");
    let crashes = "select sum(crash_attempts) from oncely.idempotency_keys";
    assert_eq!(world.count(crashes).await, 12, "two deaths each: giving a key back is none");
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'taken_over'").await, 6);
}

#[tokio::test]
async fn an_environments_error_is_the_messages_where_others_succeed() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "astray-1"), "{}").await;
    world.publish("charges", message("acme", "missing-1"), "{}").await;
    // Nobody answers for it as long as nothing succeeds.
    world.wait_for("select count(*) from oncely.idempotency_keys where steps ? 'call'", 1).await;
    assert_eq!(world.count("select sum(attempts) from oncely.idempotency_keys").await, 0);
    // Each success is a witness for what failed before it.
    let begun = std::time::Instant::now();
    for number in 0.. {
        if world.count("select count(*) from oncely.dead_letters").await == 2 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody is charged");
        world.publish("charges", message("acme", &format!("fine-{number}")), "{}").await;
        world.wait_for(COMPLETED, number + 1).await;
    }
    running.end().await;
    assert_eq!(
        world
            .text("select string_agg(key || ' ' || reason, ', ' order by key) from oncely.dead_letters")
            .await
            .as_deref(),
        Some("astray-1 attempts_exhausted, missing-1 attempts_exhausted")
    );
    assert_eq!(
        odd.calls.load(Ordering::SeqCst),
        1,
        "what was called is known, and only the write is tried again"
    );
}

#[tokio::test]
async fn an_environments_error_of_all_spends_nothing() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    for number in 0..5 {
        world.publish("charges", message("acme", &format!("astray-{number}")), "{}").await;
    }
    let stalled = "select count(*) from oncely.idempotency_keys where owner is null and attempts = 0 and fencing_token > 0";
    world.wait_for(stalled, 5).await;
    odd.mended.store(true, Ordering::SeqCst);
    world.wait_for(COMPLETED, 5).await;
    running.end().await;
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 0);
}

#[tokio::test]
async fn a_run_whose_lease_a_clock_took_is_not_charged() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    for number in 0..8 {
        world.publish("charges", message("acme", &format!("overdue-{number}")), "{}").await;
    }
    world.wait_for("select count(*) from oncely.idempotency_keys where owner is not null", 8).await;
    // As after a clock has jumped: the runs' time is over, and nobody else has their keys.
    let jump =
        "update oncely.idempotency_keys set run_ends_at = clock_timestamp(), not_before = clock_timestamp()";
    sqlx::raw_sql(jump).execute(&mut world.sql).await.unwrap();
    // For these runs, and for those that come after them.
    odd.gate.0.add_permits(100);
    world.wait_for(COMPLETED, 8).await;
    running.end().await;
    assert_eq!(odd.calls.load(Ordering::SeqCst), 8);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 0);
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
}

#[tokio::test]
async fn a_write_may_take_as_long_as_its_run() {
    let mut world =
        world_with("", RETRY, "[postgres]\nstatement_timeout = \"3s\"\nlock_timeout = \"500ms\"").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "slow-1"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    running.end().await;
    let once = "select count(*) from oncely.audit where outcome = 'completed' and attempt = 1";
    assert_eq!(world.count(once).await, 1);
    assert_eq!(odd.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_step_inside_a_transaction_of_its_lease_is_refused() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "nested-1"), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    running.end().await;
    let told = world.text("select reason || ': ' || detail from oncely.dead_letters").await.unwrap();
    assert!(told.starts_with("handler_rejected: ") && told.contains("inside a transaction"), "{told}");
}

#[tokio::test]
async fn what_is_in_flight_waits_in_the_worker_where_the_consumer_says_so_or_has_no_retry_queues() {
    for (lease, retry) in
        [(", in_flight = \"wait\"", RETRY), ("", "retry = { delays = [], max_attempts = 1 }")]
    {
        let mut world = world_with(lease, retry, "").await;
        let claim = "select oncely.claim_lease('acme', 'charges', 'held', null, 'elsewhere')";
        sqlx::query(claim).execute(&mut world.sql).await.unwrap();
        let odd = Odd::default();
        let running = Running::start(&world, &odd);
        world.publish("charges", message("acme", "held"), "{}").await;
        world.publish("charges", message("acme", "other"), "{}").await;
        world.wait_for(COMPLETED, 1).await;
        world.wait_for_ready(&world.queue("charges"), 0).await;
        let revoke = "set role oncely_operator; select oncely.revoke_lease('acme', 'charges', 'held', 'gone'); reset role";
        sqlx::raw_sql(revoke).execute(&mut world.sql).await.unwrap();
        world.wait_for(COMPLETED, 2).await;
        running.end().await;
        assert!(!odd.copied.load(Ordering::SeqCst), "it never left the worker");
    }
}

#[tokio::test]
async fn what_is_in_flight_is_rejected_where_the_consumer_says_so() {
    let mut world = world_with(", in_flight = \"reject\"", RETRY, "").await;
    let claim = "select oncely.claim_lease('acme', 'charges', 'k', null, 'elsewhere')";
    sqlx::query(claim).execute(&mut world.sql).await.unwrap();
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "k"), "{}").await;
    world
        .wait_for("select count(*) from oncely.dead_letters where reason = 'in_flight' and attempt = 0", 1)
        .await;
    running.end().await;
    let held =
        "select count(*) from oncely.idempotency_keys where owner = 'elsewhere' and status = 'IN_PROGRESS'";
    assert_eq!(world.count(held).await, 1, "whose it is keeps it");
}

#[tokio::test]
async fn a_copy_of_ours_is_not_rejected_as_in_flight() {
    let retry = "retry = { delays = [\"3s\"], max_attempts = 9 }";
    let mut world = world_with(", in_flight = \"reject\"", retry, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "astray-1"), "{}").await;
    let fails = "select count(*) from oncely.idempotency_keys where key = 'astray-1' and attempts = 1 and owner is null";
    others_succeed_until(&mut world, "{}", fails, 1).await;
    // As a process has it that was killed.
    let held = "update oncely.idempotency_keys set owner = 'dead', not_before = clock_timestamp() + interval '8 seconds',
        run_ends_at = clock_timestamp() + interval '1 minute', fencing_token = fencing_token + 1, crash_attempts = 0
        where key = 'astray-1'";
    sqlx::query(held).execute(&mut world.sql).await.unwrap();
    odd.mended.store(true, Ordering::SeqCst);
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where key = 'astray-1' and status = 'COMPLETED'",
            1,
        )
        .await;
    running.end().await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
}

#[tokio::test]
async fn what_is_said_together_fails_by_itself() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "large-1"), "{}").await;
    for number in 1..8 {
        world.publish("charges", message("acme", &format!("together-{number}")), "{}").await;
    }
    world.wait_for(COMPLETED, 7).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    running.end().await;
    let others = "select count(*) from oncely.audit where outcome = 'completed' and attempt = 1";
    assert_eq!(world.count(others).await, 7, "their runs were not tried again");
    assert_eq!(
        world.text("select key || ' ' || attempt from oncely.dead_letters").await.as_deref(),
        Some("large-1 1"),
        "whose answer can't be stored"
    );
}

#[tokio::test]
async fn a_run_that_lasts_keeps_no_innocent_waiting_while_another_fails() {
    let mut world = world_with("", RETRY, "").await;
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "lasts-1"), "{}").await;
    odd.begun.notified().await;
    for number in 1..=2 {
        world.publish("charges", message("acme", &format!("astray-{number}")), "{}").await;
        let failed =
            "select count(*) from oncely.idempotency_keys where key like 'astray-%' and owner is null";
        world.wait_for(failed, number).await;
    }
    world.publish("charges", message("acme", "fine-1"), "{}").await;
    // Long before the run that lasts would be over (lease.max_run, a minute).
    world.wait_within(Duration::from_secs(40), COMPLETED, 1).await;
    odd.go_on.notify_one();
    odd.mended.store(true, Ordering::SeqCst);
    world.wait_for(COMPLETED, 4).await;
    running.end().await;
}

#[tokio::test]
async fn a_key_in_an_open_transaction_is_not_rejected_as_in_flight() {
    let port = testbed::free_port().unwrap();
    let mut world =
        world_with(", in_flight = \"reject\"", "retry = { delays = [\"2s\"], max_attempts = 3 }", "").await;
    world.reconfigure("shutdown = \"6s\"", &format!("shutdown = \"6s\"\nlisten = \"127.0.0.1:{port}\""));
    let mut client = world.database.connect().await.unwrap();
    let claim = "begin; select oncely.claim_lease('acme', 'charges', 'k', null, 'elsewhere')";
    sqlx::raw_sql(claim).execute(&mut client).await.unwrap();
    let odd = Odd::default();
    let running = Running::start(&world, &odd);
    world.publish("charges", message("acme", "k"), "{}").await;
    let waits = "oncely_aside_messages{consumer=\"charges\"} 1\n";
    crate::support::http::wait_for(&format!("127.0.0.1:{port}"), "/metrics", 200, waits).await;
    // Nobody ran it after all.
    sqlx::raw_sql("rollback").execute(&mut client).await.unwrap();
    world.wait_for(COMPLETED, 1).await;
    running.end().await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
}

#[tokio::test]
async fn a_letter_that_cannot_be_written_is_told_of_and_written_when_it_can() {
    let mut world = world_with("", RETRY, "").await;
    let closed = "alter table oncely.dead_letters add constraint closed check (false) not valid";
    sqlx::raw_sql(closed).execute(&mut world.sql).await.unwrap();
    let running = Running::start(&world, &Odd::default());
    world.publish("charges", message("acme", ""), "{}").await;
    let told = "select count(*) from oncely.processes where state = 'unready' and reason like '%23514%'";
    world.wait_for(told, 1).await;
    sqlx::raw_sql("alter table oncely.dead_letters drop constraint closed")
        .execute(&mut world.sql)
        .await
        .unwrap();
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    world.wait_for("select count(*) from oncely.processes where state = 'unready'", 0).await;
    running.end().await;
}
