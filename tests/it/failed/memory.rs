//! What is published again is what somebody remembers: a copy that nothing would recognise is not made.

use serde_json::{Value, json};

use super::{WAITING, dead, failed, fragile, kind, mend, requeue_all};
use crate::support::{World, message};

/// Letters of these keys, with the default retention of a week, and a handler that is mended.
async fn letters(keys: &[&str]) -> (World, testbed::Process) {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in keys {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    let count = i64::try_from(keys.len()).unwrap();
    world.wait_for(WAITING, count).await;
    world.wait_for_ready(&dead(&world), u32::try_from(count).unwrap()).await;
    mend(&mut world).await;
    (world, worker)
}

/// Everything that is known happened so many days ago.
async fn age(world: &mut World, days: i32) {
    for statement in [
        "update oncely.dead_letters set dead_lettered_at = dead_lettered_at - make_interval(days => $1), updated_at = updated_at - make_interval(days => $1)",
        "update oncely.idempotency_keys set created_at = created_at - make_interval(days => $1), completed_at = completed_at - make_interval(days => $1)",
        "update oncely.audit set occurred_at = occurred_at - make_interval(days => $1)",
    ] {
        sqlx::query(statement).bind(days).execute(&mut world.sql).await.unwrap();
    }
}

/// A requeue of a letter that published its copy and died before it noted that; the old copy is still in its queue.
async fn half_requeued(world: &mut World, key: &str) {
    sqlx::query("update oncely.dead_letters set state = 'requeueing' where key = $1")
        .bind(key)
        .execute(&mut world.sql)
        .await
        .unwrap();
    sqlx::query(
        "update oncely.idempotency_keys set status = 'IN_PROGRESS', attempts = 0, completed_at = null, reason = null where key = $1",
    )
    .bind(key)
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.publish("payments", message("acme", key), &kind("a")).await;
    world.wait_for("select count(*) from app.effects", 1).await;
}

async fn collect(world: &World) {
    let output = world.oncely(&["gc", "run"]).await;
    assert!(output.status.success(), "{output:?}");
}

const STATE: &str = "select state from oncely.dead_letters where key = 'stale'";

#[tokio::test]
async fn a_key_stays_while_its_letter_is_being_requeued_and_the_sweep_publishes_no_second_copy() {
    let (mut world, worker) = letters(&["stale", "other"]).await;
    half_requeued(&mut world, "stale").await;
    age(&mut world, 30).await;
    collect(&world).await;
    let keys = "select string_agg(key || ' ' || status, ' ') from oncely.idempotency_keys";
    assert_eq!(
        world.text(keys).await.as_deref(),
        Some("stale COMPLETED"),
        "the other one was given up 30 days ago"
    );
    // Days later somebody discards another letter of the queue.
    let done = failed(&world, 0, &["discard", "--key", "other", "--yes"]).await;
    assert_eq!(
        (&done["swept"][0]["dropped"], &done["swept"][0]["requeued"]),
        (&json!(2), &json!(0)),
        "{done}"
    );
    assert_eq!(world.text(STATE).await.as_deref(), Some("requeued"));
    collect(&world).await;
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 0, "now it may go");
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_letter_whose_key_is_gone_though_it_took_effect_is_told_and_not_published() {
    let (mut world, worker) = letters(&["stale", "other"]).await;
    half_requeued(&mut world, "stale").await;
    age(&mut world, 30).await;
    sqlx::query("delete from oncely.idempotency_keys").execute(&mut world.sql).await.unwrap();
    let output = world.oncely(&["failed", "discard", "--key", "other", "--yes"]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("1 of an earlier requeue that was broken off were not published"), "{told}");
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 1, "it stays");
    let refused = refused(&world, &["requeue", "--all", "--yes", "--even-if-forgotten"]).await;
    assert!(refused.contains("took effect, says the audit trail"), "{refused}");
    failed(&world, 0, &["discard", "--key", "stale", "--yes"]).await;
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_letter_that_is_younger_than_a_retention_of_today_runs_only_where_the_trail_knows_of_no_effect() {
    let (mut world, worker) = letters(&["stale", "other"]).await;
    half_requeued(&mut world, "stale").await;
    sqlx::query("update oncely.dead_letters set state = 'waiting'").execute(&mut world.sql).await.unwrap();
    // Collected by a retention that was shorter than the one of today, or by the claim's own.
    age(&mut world, 3).await;
    sqlx::query("delete from oncely.idempotency_keys").execute(&mut world.sql).await.unwrap();
    let refused = refused(&world, &["requeue", "--key", "stale", "--yes"]).await;
    assert!(refused.contains("took effect, says the audit trail"), "{refused}");
    let done = failed(&world, 0, &["requeue", "--key", "other", "--yes"]).await;
    assert_eq!(done["done"], 1, "it never took effect");
    world.wait_for("select count(*) from app.effects where key = 'other'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'stale'").await, 1);
}

#[tokio::test]
async fn an_effect_of_before_a_retention_was_shortened_is_remembered_for_letters_of_that_time() {
    let (mut world, worker) = letters(&["stale"]).await;
    half_requeued(&mut world, "stale").await;
    sqlx::query("update oncely.dead_letters set state = 'waiting'").execute(&mut world.sql).await.unwrap();
    sqlx::query("delete from oncely.idempotency_keys").execute(&mut world.sql).await.unwrap();
    age(&mut world, 80).await;
    sqlx::raw_sql(
        "update oncely.dead_letters set dead_lettered_at = now() - interval '40 days';
         select oncely.set_retention('payments', '90 days', null, 'ana', null);
         select oncely.set_retention('payments', '30 days', null, 'ana', null)",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let refused = refused(&world, &["requeue", "--key", "stale", "--yes"]).await;
    assert!(refused.contains("took effect, says the audit trail"), "{refused}");
    // A clock that was ahead when it became a dead letter hides nothing.
    sqlx::query("update oncely.dead_letters set dead_lettered_at = now() + interval '400 days'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let refused = self::refused(&world, &["requeue", "--key", "stale", "--yes"]).await;
    assert!(refused.contains("took effect, says the audit trail"), "{refused}");
    // A claim that was made anew, and not completed: what was before is another message's.
    sqlx::query("update oncely.dead_letters set dead_lettered_at = now() - interval '1 day', reason = 'incomplete_claim'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let done = failed(&world, 0, &["requeue", "--key", "stale", "--yes"]).await;
    assert_eq!(done["done"], 1, "somebody has looked");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_young_letter_whose_time_the_trail_has_lost_runs_only_where_a_person_says_so() {
    let (mut world, worker) = letters(&["stale"]).await;
    age(&mut world, 3).await;
    sqlx::query("delete from oncely.idempotency_keys").execute(&mut world.sql).await.unwrap();
    sqlx::query("select oncely.append_seal('dropped', 'epoch', now() - interval '2 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let why = refused(&world, &["requeue", "--all", "--yes"]).await;
    assert!(why.contains("and may have taken effect"), "{why}");
    world.stop(worker).await;
}

/// Why nothing matches.
async fn refused(world: &World, arguments: &[&str]) -> String {
    let plan: Value = failed(world, 1, arguments).await;
    plan["refused"].to_string()
}

#[tokio::test]
async fn a_letter_that_waited_longer_than_its_key_is_remembered_runs_where_the_trail_knows_of_no_effect() {
    let (mut world, worker) = letters(&["stale"]).await;
    age(&mut world, 60).await;
    collect(&world).await;
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 0);
    assert_eq!(requeue_all(&world).await["done"], 1);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.text(STATE).await.as_deref(), Some("requeued"));
}

#[tokio::test]
async fn a_letter_that_is_older_than_the_trail_runs_only_where_a_person_says_so() {
    let (mut world, worker) = letters(&["stale"]).await;
    age(&mut world, 60).await;
    collect(&world).await;
    // What was decided in the time when it came was dropped.
    sqlx::query("select oncely.append_seal('dropped', 'epoch', now() - interval '61 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let why = refused(&world, &["requeue", "--all", "--yes"]).await;
    assert!(why.contains("and may have taken effect"), "{why}");
    assert_eq!(world.text(STATE).await.as_deref(), Some("waiting"));
    let done = failed(&world, 0, &["requeue", "--all", "--yes", "--even-if-forgotten"]).await;
    assert_eq!(done["done"], 1);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn no_key_is_collected_while_a_requeue_is_being_decided() {
    let (mut world, worker) = letters(&["stale"]).await;
    half_requeued(&mut world, "stale").await;
    world.stop(worker).await;
    sqlx::query("update oncely.dead_letters set state = 'waiting'").execute(&mut world.sql).await.unwrap();
    age(&mut world, 30).await;
    // An operator's transaction has looked at the key, and will take the letter.
    let mut operator = world.database.connect().await.unwrap();
    let mut deciding = sqlx::Connection::begin(&mut operator).await.unwrap();
    sqlx::query("select oncely.take_lock('requeue', true)").execute(&mut *deciding).await.unwrap();
    let collecting = collect(&world);
    let decided = async {
        let mut watch = world.database.connect().await.unwrap();
        testbed::eventually("the collection waits", || async {
            let row: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock' and query like '%take_lock%'",
            )
            .fetch_one(&mut world.database.connect().await?)
            .await?;
            if row > 0 { Ok(()) } else { Err(anyhow::anyhow!("nobody waits")) }
        })
        .await
        .unwrap();
        sqlx::query("update oncely.dead_letters set state = 'requeueing'")
            .execute(&mut *deciding)
            .await
            .unwrap();
        deciding.commit().await.unwrap();
        sqlx::query("select 1").execute(&mut watch).await.unwrap();
    };
    tokio::join!(collecting, decided);
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 1);
}
