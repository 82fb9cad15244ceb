//! Two operators at once.

use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};
use testbed::eventually;
use tokio::sync::Mutex;

use super::{WAITING, dead, failed, fragile, kind, mend, requeue_all};
use crate::support::message;

/// Whoever notes that letters were requeued waits until the test lets go of a lock.
const HOLD: &str = "
    create function app.hold() returns trigger language plpgsql as
        $$ begin perform pg_catalog.pg_advisory_xact_lock(4242); return new; end $$;
    create trigger hold before update on oncely.dead_letters for each row
        when (old.state = 'requeueing' and new.state = 'requeued') execute function app.hold();
    select pg_advisory_lock(4242)";

/// Somebody waits for that.
const HELD: &str =
    "select count(*) from pg_locks where locktype = 'advisory' and objid = 4242 and not granted
    and database = (select oid from pg_database where datname = current_database())";

/// Letters that nobody holds: those that a requeue under way has not come to yet.
const FREE: &str =
    "select string_agg(id::text, ' ') from (select id from oncely.dead_letters for update skip locked) as l";

#[tokio::test]
async fn a_letter_that_is_discarded_while_a_requeue_publishes_does_not_run() {
    let mut world = fragile(&["a"], "").await;
    // Longer than the test takes between two of its own steps.
    world.configure("[postgres]\nstatement_timeout = \"60s\"\nlock_timeout = \"60s\"");
    let worker = world.start("worker");
    for number in 0..80 {
        world.publish("payments", message("acme", &format!("k{number}")), &kind("a")).await;
    }
    world.wait_for(WAITING, 80).await;
    world.wait_for_ready(&dead(&world), 80).await;
    mend(&mut world).await;
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql(HOLD).execute(&mut holder).await.unwrap();
    let mut sql = world.database.connect().await.unwrap();
    let discard = async {
        let of = async |sql: &mut PgConnection, query: &'static str| {
            sqlx::query(query).fetch_one(sql).await.unwrap()
        };
        let held = Mutex::new(&mut sql);
        eventually("the requeue notes what it has published", || async {
            match of(&mut *held.lock().await, HELD).await.get::<i64, _>(0) {
                0 => Err("not yet"),
                _ => Ok(()),
            }
        })
        .await
        .unwrap();
        let free: String = of(&mut sql, FREE).await.get(0);
        let ids: Vec<&str> = free.split(' ').collect();
        let plan = failed(&world, 0, &[&["discard"][..], &ids, &["--dry-run"]].concat()).await;
        let discard = [&["discard"][..], &ids, &["--yes", "--max", "80"]].concat();
        let committed = async {
            let held = Mutex::new(&mut sql);
            let discarded = "select count(*) from oncely.dead_letters where state = 'discarded'";
            eventually("they are discarded", || async {
                match of(&mut *held.lock().await, discarded).await.get::<i64, _>(0) {
                    0 => Err("not yet"),
                    _ => Ok(()),
                }
            })
            .await
            .unwrap();
            // Now the requeue goes on.
            holder.close().await.unwrap();
        };
        let (done, ()) = futures::join!(failed(&world, 0, &discard), committed);
        assert_eq!(done["done"], ids.len());
        (plan["notes"].to_string(), ids.len())
    };
    let (told, (notes, discarded)) = futures::join!(requeue_all(&world), discard);
    assert!(discarded > 0);
    let count = i64::try_from(80 - discarded).unwrap();
    let rest = "select count(*) from oncely.idempotency_keys as k join oncely.dead_letters as d using (tenant, consumer, key)
        where d.state = 'requeued' and k.status <> 'COMPLETED'";
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.wait_for(rest, 0).await;
    world.stop(worker).await;
    let ran = "select count(*) from app.effects as e join oncely.dead_letters as d on d.key = e.key and d.state = 'discarded'";
    assert_eq!(world.count(ran).await, 0, "what was given up did not run");
    assert_eq!(world.count("select count(*) from app.effects").await, count);
    assert_eq!(
        (&told["done"], &told["discarded"]),
        (&json!(80 - discarded), &json!(discarded)),
        "and the requeue says so: {told}"
    );
    assert!(!notes.contains("broken off") && notes.contains("under way"), "{notes}");
}

#[tokio::test]
async fn a_letter_that_fails_keeps_no_other_from_running_from_its_queue() {
    let mut world = fragile(&["a"], "").await;
    world.configure("[dead_letters]\nmax_body = 100");
    let worker = world.start("worker");
    let large = format!("{{\"kind\": \"a\", \"filling\": {:?}}}", "x".repeat(200));
    world.publish("payments", message("acme", "large"), &large).await;
    world.publish("payments", message("acme", "unreadable"), &kind("a")).await;
    world.wait_for(WAITING, 2).await;
    world.wait_for_ready(&dead(&world), 2).await;
    sqlx::raw_sql("update oncely.dead_letters set properties = '{\"n\": 1e400}' where key = 'unreadable'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    mend(&mut world).await;
    let done = failed(&world, 0, &["requeue", "--all", "--yes"]).await;
    assert_eq!((&done["failed"], &done["swept"][0]["requeued"]), (&json!(0), &json!(2)), "{done}");
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_letter_whose_copy_somebody_holds_is_not_taken_for_swept() {
    let mut world = fragile(&["a"], "").await;
    let worker = world.start("worker");
    for key in ["k1", "k2"] {
        world.publish("payments", message("acme", key), &kind("a")).await;
    }
    world.wait_for(WAITING, 2).await;
    world.wait_for_ready(&dead(&world), 2).await;
    world.stop(worker).await;
    let held = world.broker.channel().basic_get(dead(&world).as_str().into(), Default::default()).await;
    let held = held.unwrap().unwrap();
    let done = failed(&world, 0, &["discard", "--all", "--yes"]).await;
    assert_eq!((&done["done"], &done["swept"][0]["dropped"]), (&json!(2), &json!(1)), "{done}");
    let swept = "select count(*) from oncely.dead_letters where swept_at is not null";
    assert_eq!(world.count(swept).await, 1, "one of the two copies is still there");
    failed(&world, 0, &["sweep"]).await;
    assert_eq!(world.count(swept).await, 1);
    // Whoever held it dies.
    held.delivery
        .nack(lapin::options::BasicNackOptions { requeue: true, ..Default::default() })
        .await
        .unwrap();
    world.wait_for_ready(&dead(&world), 1).await;
    failed(&world, 0, &["sweep"]).await;
    assert_eq!(world.count(swept).await, 2);
    eventually("nothing is left", || async {
        match world.broker.ready(&dead(&world)).await.unwrap() {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await
    .unwrap();
}
