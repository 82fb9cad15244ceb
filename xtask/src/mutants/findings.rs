//! Scripts for what reviews found: who is to blame, who waits for whom, what verdicts rest on, and what neighbours may do.

use std::time::{Duration, Instant};

use lapin::types::{AMQPValue, FieldTable};
use sqlx::Connection as _;
use testbed::checker::{Act, Beside, Intent};
use testbed::faults::{Fault, Kind};
use testbed::{Arena, Errand, Missing, Signal, eventually};

use super::steps::{end_sessions, publish, some};

/// Long enough for the judge to see that somebody waits while others are served.
const A_WHILE: Duration = Duration::from_secs(24);

/// The same where nobody is served at all.
const A_LONG_WHILE: Duration = Duration::from_secs(36);

fn work(tenant: &str, name: &str, count: usize) -> Vec<Intent> {
    (0..count).map(|number| Intent::new(tenant, &format!("{name}-{number}"), Act::Work, 0)).collect()
}

/// Publishes a message of another tenant now and then, and looks who is served.
async fn go_on(arena: &mut Arena, time: Duration) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < time {
        publish(arena, vec![Intent::new("initech", &format!("steady-{number}"), Act::Work, 0)]).await?;
        number += 1;
        arena.supervise()?;
        arena.look_at_tenants().await?;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(())
}

/// Many copies of messages that always fail come at once.
pub(super) async fn copies_fail(arena: &mut Arena) -> anyhow::Result<()> {
    let all: Vec<Intent> = some(3, Act::Fail, "f").into_iter().flat_map(|one| vec![one; 6]).collect();
    publish(arena, all).await
}

/// A tenant's schema is missing, and stays so, while others have work.
pub(super) async fn branch_is_missing(arena: &mut Arena) -> anyhow::Result<()> {
    arena.take_away(Missing { tenant: 0, what: 0 }).await?;
    let mut all = work("globex", "g", 50);
    for (at, name) in [(5, "one"), (30, "other")] {
        all.insert(at, Intent::new("branch_0", name, Act::Branch, 0));
    }
    publish(arena, all).await?;
    go_on(arena, A_WHILE).await
}

/// The queue is declared anew, by somebody who bounds it; an operator who is told so declares it as it should be.
pub(super) async fn queue_drops_its_head(arena: &mut Arena) -> anyhow::Result<()> {
    let (broker, queue) = (arena.broker().await?, arena.queue().to_owned());
    let mut bounded = FieldTable::default();
    bounded.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    bounded.insert("x-max-length".into(), AMQPValue::LongInt(10));
    broker.delete_queue(&queue).await?;
    broker.declare_queue(&queue, bounded).await?;
    if arena.oncely(&["check"]).await.is_err() {
        broker.delete_queue(&queue).await?;
        arena.oncely(&["topology", "apply"]).await?;
    }
    let gate = arena.shut_gates().await?;
    publish(arena, some(40, Act::Gate, "k")).await?;
    gate.open().await
}

/// No partition of the week is there, and each writer of the trail takes its time.
const SLOW_TRAIL: &str = "
    do $$ begin execute format('drop table oncely.audit_%s', to_char(date_trunc('week', now() at time zone 'UTC'), 'YYYYMMDD')); end $$;
    create function judge.dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return null; end $$;
    create trigger dawdle after insert on oncely.audit for each statement execute function judge.dawdle()";

/// The partition of the week is made while two sessions go on writing into it.
pub(super) async fn partition_under_load(arena: &mut Arena) -> anyhow::Result<()> {
    arena.want_partitions();
    arena.sql(SLOW_TRAIL).await?;
    publish(arena, some(150, Act::Work, "k")).await?;
    for round in 1..=5 {
        arena.wait_for_effects(10 * round).await?;
        // With the bug it says that it can't.
        let _ = arena.oncely(&["gc", "run"]).await;
    }
    Ok(())
}

/// A burst of messages that each make a temporary table of one name, among others.
pub(super) async fn temporary_tables(arena: &mut Arena) -> anyhow::Result<()> {
    let mut all = work("globex", "g", 30);
    all.extend(work("acme", "t", 30).into_iter().map(|one| one.beside(Beside::Temporary)));
    publish(arena, all).await?;
    go_on(arena, A_WHILE).await
}

/// Somebody's open transaction holds a key that a message in the middle of others wants.
pub(super) async fn key_is_held(arena: &mut Arena) -> anyhow::Result<()> {
    let mut other = arena.connect().await?;
    let mut holds = other.begin().await?;
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
         values ('branch_0', 'faults', 'held', 'IN_PROGRESS', 0, now())",
    )
    .execute(&mut *holds)
    .await?;
    let mut all = work("globex", "g", 60);
    all.insert(30, Intent::new("branch_0", "held", Act::Work, 0));
    publish(arena, all).await?;
    go_on(arena, A_WHILE).await?;
    holds.rollback().await?;
    Ok(())
}

/// For a while a sequence that one of many messages needs is used up.
pub(super) async fn sequence_is_used_up(arena: &mut Arena) -> anyhow::Result<()> {
    arena
        .sql(
            "create function judge.used_up() returns trigger language plpgsql as
             $$ begin raise exception 'used up' using errcode = '2200H'; end $$;
             create trigger used_up before insert on judge.late
             for each row when (new.number = 7) execute function judge.used_up()",
        )
        .await?;
    let mut all = work("globex", "g", 40);
    all.insert(20, Intent::new("acme", "late", Act::Late, 0));
    publish(arena, all).await?;
    // Long enough for two attempts, and shorter than all five.
    go_on(arena, Duration::from_millis(1_500)).await?;
    arena.sql("drop trigger used_up on judge.late").await
}

/// A run of a redelivered message that is counted has not locked its key yet: the server is slow in between.
const SLOW_BEFORE_CLAIM: &str = "
    create function judge.dawdle() returns trigger language plpgsql as $$
    begin
        if exists (select from oncely.idempotency_keys where marked_pid = pg_backend_pid()) then
            perform pg_sleep(0.5);
        end if;
        return null;
    end $$;
    create trigger dawdle before insert or update on oncely.idempotency_keys
    for each statement execute function judge.dawdle()";

/// Two copies of each message are redelivered, to two lanes: while one runs, its copy comes.
pub(super) async fn copies_redelivered(arena: &mut Arena) -> anyhow::Result<()> {
    arena.sql(SLOW_BEFORE_CLAIM).await?;
    // Delivered to a process that stands still, so that nothing of it has begun when it is delivered again.
    arena.workers[0].process.signal(Signal::STOP)?;
    publish(arena, some(8, Act::Work, "twice").into_iter().flat_map(|one| vec![one; 2]).collect()).await?;
    // What is confirmed may be on its way to the process; what was not on its way yet is no redelivery later.
    let (broker, queue) = (arena.broker().await?, arena.queue());
    eventually("all are delivered", || async {
        match broker.ready(queue).await {
            Ok(0) => Ok(()),
            other => Err(other),
        }
    })
    .await?;
    arena.run_fault(&Fault::of(Kind::CloseConnections)).await?;
    arena.workers[0].process.signal(Signal::CONT)
}

/// Messages come, fail once, and come again, while somebody writes into Redis whatever is asked for.
pub(super) async fn fail_once(arena: &mut Arena) -> anyhow::Result<()> {
    // A few at a time: of a large batch only a sample is asked for. The listener needs a moment to listen, and to write.
    for round in 0..12 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        publish(arena, some(8, Act::FailOnce, &format!("f{round}"))).await?;
    }
    Ok(())
}

/// What two attackers with few rights can do before messages come.
pub(super) async fn overheard(arena: &mut Arena) -> anyhow::Result<()> {
    for number in 0..12 {
        // The neighbours hear of the first of them.
        arena.overhear(&some(1, Act::Work, &format!("k{number}")));
        tokio::time::sleep(Duration::from_millis(600)).await;
        publish(arena, some(5, Act::Work, &format!("k{number}"))).await?;
    }
    Ok(())
}

/// Some usual work, and somebody looks into it.
pub(super) async fn usual_work(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    publish(arena, some(2, Act::FailOnce, "f")).await?;
    // They succeed: what fails beside them is charged, and tried again.
    go_on(arena, Duration::from_secs(2)).await?;
    arena.wait_until("effects", "select count(*) from judge.effects where tenant = 'acme'", 12).await?;
    publish(arena, some(1, Act::Reject, "r")).await?;
    arena.wait_until("dead letters", "select count(*) from oncely.dead_letters", 1).await?;
    arena.oncely(&["explain", "k-1"]).await?;
    // Compares hashes of keys, which functions of another schema may claim to make.
    arena.oncely(&["failed", "requeue", "--key", "r-0", "--dry-run"]).await?;
    arena.oncely(&["gc", "run"]).await
}

/// So many days go by, and each second day somebody collects.
async fn days_pass(arena: &mut Arena, days: u32) -> anyhow::Result<()> {
    for _ in 0..days / 2 {
        arena.let_days_pass(2).await?;
        arena.collect().await?;
    }
    Ok(())
}

/// A requeue is broken off behind its publish; when nobody remembers, somebody goes through the queue.
pub(super) async fn requeue_broken_off(arena: &mut Arena) -> anyhow::Result<()> {
    arena.expect_retention(7, 7);
    let missing = Missing { tenant: 0, what: 0 };
    arena.take_away(missing).await?;
    let branch = |key: &str| Intent::new("branch_0", key, Act::Branch, 0);
    publish(arena, (0..5).map(|number| branch(&format!("b-{number}"))).collect()).await?;
    publish(arena, some(2, Act::Reject, "r")).await?;
    // They succeed: what fails beside them answers for itself.
    go_on(arena, Duration::from_secs(8)).await?;
    arena.wait_until("dead letters", "select count(*) from oncely.dead_letters", 7).await?;
    arena.give_back(missing).await?;
    arena.run_errand(Errand::Requeue).await?;
    arena.wait_until("effects", "select count(*) from judge.log where tenant = 'branch_0'", 5).await?;
    days_pass(arena, 10).await?;
    // As a requeue leaves them whose second commit failed, and a collection that looked at nothing but their age.
    arena
        .sql(
            "delete from oncely.idempotency_keys where tenant = 'branch_0';
             update oncely.dead_letters set state = 'requeueing', swept_at = null where state = 'requeued'",
        )
        .await?;
    arena.run_errand(Errand::Requeue).await?;
    arena.run_errand(Errand::Discard).await
}

/// The worker stands still while the key of identities is replaced and signs; what it signed waits for it then.
pub(super) async fn key_is_replaced(arena: &mut Arena) -> anyhow::Result<()> {
    let missing = Missing { tenant: 0, what: 0 };
    arena.take_away(missing).await?;
    let branch = |key: &str| Intent::new("branch_0", key, Act::Branch, 0);
    publish(arena, (0..5).map(|number| branch(&format!("b-{number}"))).collect()).await?;
    go_on(arena, Duration::from_secs(8)).await?;
    arena.wait_until("dead letters", "select count(*) from oncely.dead_letters", 5).await?;
    arena.give_back(missing).await?;
    arena.workers[0].process.signal(Signal::STOP)?;
    arena.sql("select oncely.rotate_secret('identity', '5 seconds', null, null, 'a script')").await?;
    let signs =
        "select count(*) from oncely.secrets where purpose = 'identity' and signs_from <= clock_timestamp()";
    arena.wait_until("the new key signs", signs, 2).await?;
    arena.run_errand(Errand::Requeue).await?;
    arena.workers[0].process.signal(Signal::CONT)
}

/// The collection runs with a file that knows a shorter retention; then copies come.
pub(super) async fn another_file(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena.wait_until_mirrored().await?;
    days_pass(arena, 4).await?;
    arena.run_errand(Errand::CollectWithAnotherFile).await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// The consumer is paused for longer than it remembers, and somebody collects; copies of what is done wait meanwhile.
pub(super) async fn paused_for_long(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena.wait_until_mirrored().await?;
    let pause = Fault::of(Kind::PauseConsumer);
    arena.inject(&pause).await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    days_pass(arena, 12).await?;
    arena.heal(&pause).await
}

/// The database's clock jumps far ahead, somebody collects, and copies come.
pub(super) async fn clock_jumps(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena.wait_until_mirrored().await?;
    // To whoever looks at the clock a jump of the clock and an ageing of all but the last look at it are one and the same.
    arena.let_days_pass(40).await?;
    arena.collect().await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// The login of a relay asks for the trail to be dropped.
pub(super) async fn trail_dropped(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    // Refused, without the bug.
    let _ = arena
        .sql("set role oncely_relay; select oncely.drop_audit_partition(now() + interval '100 years')")
        .await;
    Ok(())
}

/// A copy cannot be published for a long while; what waits behind it has nothing to do with it.
pub(super) async fn copy_stays(arena: &mut Arena) -> anyhow::Result<()> {
    arena.broker().await?.delete_queue(&format!("{}.dead", arena.queue())).await?;
    let mut all = work("globex", "g", 20);
    all.insert(0, Intent::new("acme", "rejected", Act::Reject, 0));
    all.insert(10, Intent::new("acme", "rejected too", Act::Reject, 0));
    publish(arena, all).await?;
    go_on(arena, A_LONG_WHILE).await?;
    arena.oncely(&["topology", "apply"]).await
}

/// A message is at work when its process dies, twice, and then for long; others come meanwhile.
pub(super) async fn suspect_is_slow(arena: &mut Arena) -> anyhow::Result<()> {
    let gate = arena.shut_gates().await?;
    publish(arena, vec![Intent::new("branch_0", "slow", Act::Gate, 0)]).await?;
    for _ in 0..2 {
        arena.wait_for_sessions(1).await?;
        arena.run_fault(&Fault::of(Kind::KillWorker)).await?;
        end_sessions(arena).await?;
        arena.wait_for_sessions(0).await?;
    }
    arena.wait_for_sessions(1).await?;
    go_on(arena, A_LONG_WHILE).await?;
    gate.open().await
}

/// A handler works longer than a statement may take by default (30 s), and ends before its deadline.
pub(super) async fn handler_is_slow(arena: &mut Arena) -> anyhow::Result<()> {
    let gate = arena.shut_gates().await?;
    publish(arena, vec![Intent::new("acme", "slow", Act::Gate, 0)]).await?;
    arena.wait_for_sessions(1).await?;
    // Nobody looks who is served: this one is at work for longer than the judge lets anybody wait. Cut off, it runs once more by itself.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(64) {
        arena.supervise()?;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    gate.open().await
}

/// What a handler has put off until COMMIT does not end; others are in its batch, and come.
pub(super) async fn endless_at_commit(arena: &mut Arena) -> anyhow::Result<()> {
    let mut all = work("globex", "g", 20);
    all.insert(10, Intent::new("acme", "endless", Act::EndlessAtCommit, 0));
    publish(arena, all).await?;
    go_on(arena, A_WHILE).await
}

/// Many messages of a tenant use up their time, each in vain; others are in their batches, and come.
pub(super) async fn endless(arena: &mut Arena) -> anyhow::Result<()> {
    let mut all = some(12, Act::Endless, "endless");
    all.extend(work("globex", "g", 10));
    publish(arena, all).await?;
    go_on(arena, A_LONG_WHILE).await
}

/// An event that no program can read lies in the outbox, as from before the checks of `oncely.emit`; others come.
pub(super) async fn unreadable_event(arena: &mut Arena) -> anyhow::Result<()> {
    arena
        .sql(
            "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, headers, payload)
             values ('stranger', gen_random_uuid(), now(), now(), '', 'nowhere', '{\"n\": 1e400}', '');
             select judge.tell('script', null), judge.tell('script', 'a')",
        )
        .await?;
    publish(arena, some(10, Act::Work, "k")).await
}

/// Messages wait for a retry while what is compared when a key comes back becomes something else.
pub(super) async fn policy_changes(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(5, Act::Fail, "f")).await?;
    // They succeed: what fails beside them is charged.
    go_on(arena, Duration::from_secs(2)).await?;
    arena
        .wait_until("a failure", "select least(count(*), 5) from oncely.audit where outcome = 'retried'", 5)
        .await?;
    arena.change(&testbed::Change::Fingerprint("canonical_json")).await
}
