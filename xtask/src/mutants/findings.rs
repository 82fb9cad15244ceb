//! Scripts for what reviews found: who is to blame, who waits for whom, what verdicts rest on, and what neighbours may do.

use std::time::{Duration, Instant};

use sqlx::Connection as _;
use testbed::checker::{Act, Beside, Intent};
use testbed::faults::{Fault, Kind};
use testbed::{Arena, Errand, Missing};

use super::scripts::{publish, some};

/// Long enough for the judge to see that somebody waits while others are served.
const A_WHILE: Duration = Duration::from_secs(16);

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

/// Messages in two lanes want the same rows, each in an order of its own.
pub(super) async fn hot_rows(arena: &mut Arena) -> anyhow::Result<()> {
    let all = work("acme", "h", 600).into_iter().enumerate().map(|(number, one)| {
        let first = u8::try_from(number * 7 % 16).unwrap_or(0);
        let second = u8::try_from(number * 11 % 16).unwrap_or(0);
        one.beside(Beside::Hot(first, second))
    });
    publish(arena, all.collect()).await
}

/// For a while a sequence that all handlers need is used up.
pub(super) async fn sequence_is_used_up(arena: &mut Arena) -> anyhow::Result<()> {
    arena
        .sql(
            "create or replace function judge.premise() returns void language plpgsql as
             $$ begin raise exception 'used up' using errcode = '2200H'; end $$",
        )
        .await?;
    publish(arena, some(40, Act::Work, "k")).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    arena.sql("create or replace function judge.premise() returns void language sql as ''").await
}

/// Two copies of each message are redelivered to two lanes at once.
pub(super) async fn copies_redelivered(arena: &mut Arena) -> anyhow::Result<()> {
    let all: Vec<Intent> = some(8, Act::Slow, "s").into_iter().flat_map(|one| vec![one; 2]).collect();
    publish(arena, all).await?;
    arena.until("a handler at work", super::scripts::BUSY, 1).await?;
    arena.fault(&Fault::of(Kind::CloseConnections)).await
}

/// Messages come, fail once, and come again, while somebody writes into Redis whatever is asked for.
pub(super) async fn fail_once(arena: &mut Arena) -> anyhow::Result<()> {
    // The listener needs a moment to listen.
    tokio::time::sleep(Duration::from_millis(500)).await;
    publish(arena, some(60, Act::FailOnce, "f")).await
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
    arena.until_effects(12).await?;
    arena.oncely(&["explain", "k-1"]).await?;
    arena.oncely(&["gc", "run"]).await
}

/// A requeue is broken off behind its publish; days later somebody sweeps.
pub(super) async fn requeue_broken_off(arena: &mut Arena) -> anyhow::Result<()> {
    arena.expect_retention(2, 2);
    let missing = Missing { tenant: 0, what: 0 };
    arena.take_away(missing).await?;
    let branch = |key: &str| Intent::new("branch_0", key, Act::Branch, 0);
    publish(arena, (0..5).map(|number| branch(&format!("b-{number}"))).collect()).await?;
    publish(arena, some(2, Act::Reject, "r")).await?;
    arena.until("dead letters", "select count(*) from oncely.dead_letters", 7).await?;
    arena.give_back(missing).await?;
    arena.errand(Errand::Requeue).await?;
    arena.until("effects", "select count(*) from judge.log", 5).await?;
    // As a requeue leaves them whose second commit failed.
    arena
        .sql(
            "update oncely.dead_letters set state = 'requeueing', swept_at = null where state = 'requeued';
             select judge.note()",
        )
        .await?;
    arena.let_days_pass(3).await?;
    arena.collect().await?;
    arena.errand(Errand::Requeue).await?;
    arena.errand(Errand::Discard).await
}

/// The collection runs with a file that knows a shorter retention; then a copy comes.
pub(super) async fn another_file(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.until_effects(10).await?;
    arena.until_mirrored().await?;
    arena.let_days_pass(4).await?;
    arena.errand(Errand::CollectWithAnotherFile).await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Messages wait for a retry while what is compared when a key comes back becomes something else.
pub(super) async fn policy_changes(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(5, Act::Fail, "f")).await?;
    arena.until("a failure", "select least(count(*), 5) from oncely.audit where outcome = 'retried'", 5).await?;
    arena.change(&testbed::Change::Fingerprint("canonical_json")).await
}
