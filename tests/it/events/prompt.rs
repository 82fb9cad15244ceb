//! Events that leave at once: a relay that waits is notified of them, and no transaction pays for a notification otherwise.

use lapin::types::FieldTable;
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection};
use testbed::{Postgres, Process};

use super::{run, world_with};
use crate::support::{World, program};

/// The announcement of a relay that waits.
const ANNOUNCED: &str = "select count(*) from pg_locks as l
    join pg_database as d on d.oid = l.database and d.datname = current_database()
    where l.locktype = 'advisory' and l.classid = 1332634476 and l.objid = 1 and l.mode = 'ExclusiveLock' and l.granted";

/// A world of a relay that reads once a minute, with further settings of its events, and a queue.
async fn idle_world(settings: &str) -> (World, String) {
    let mut world = world_with(settings).await;
    world.reconfigure("poll = \"20ms\"", "poll = \"1m\"");
    world.configure("[log]\nlevel = \"debug\"");
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    (world, queue)
}

/// Counts the announcements of the relay of this name.
fn announced_by(name: &str) -> String {
    format!(
        "{ANNOUNCED} and l.pid in (select pid from pg_stat_activity where application_name = 'oncely relay {name} listener')"
    )
}

/// Emits one event after another until the relay is notified of one: an announcement that is seen may be the one that is being withdrawn.
async fn emit_until_notified(world: &mut World, relay: &Process, queue: &str) {
    let notified = || relay.output().matches("notified of events").count();
    let before = notified();
    for _ in 0..50 {
        world.wait_for(ANNOUNCED, 1).await;
        run(world, &format!("select oncely.emit('', '{queue}', 'x')")).await;
        world.wait_for("select count(*) from oncely.events", 0).await;
        if notified() > before {
            return;
        }
    }
    panic!("{}", relay.output());
}

async fn listen(world: &World) -> PgListener {
    let mut listener = PgListener::connect(world.database.url()).await.unwrap();
    listener.listen("oncely_events").await.unwrap();
    listener
}

/// Emits an event, and returns whether its transaction has sent a notification: a later one of another channel shows that none is on its way.
async fn notifies(world: &mut World, listener: &mut PgListener, queue: &str) -> bool {
    listener.listen("end").await.unwrap();
    run(world, &format!("select oncely.emit('', '{queue}', 'x')")).await;
    run(world, "notify \"end\"").await;
    let first = listener.recv().await.unwrap();
    let notified = first.channel() == "oncely_events";
    if notified {
        assert_eq!(listener.recv().await.unwrap().channel(), "end");
    }
    notified
}

#[tokio::test]
async fn an_idle_relay_is_notified_of_each_event_and_publishes_it() {
    let (mut world, queue) = idle_world("").await;
    let relay = world.start("relay");
    for _ in 0..3 {
        emit_until_notified(&mut world, &relay, &queue).await;
        assert_eq!(world.broker.take_exactly(&queue, 1).await.unwrap()[0].data, b"x");
    }
    world.stop(relay).await;
}

#[tokio::test]
async fn nothing_is_notified_where_no_relay_waits() {
    let (mut world, queue) = idle_world("").await;
    let mut listener = listen(&world).await;
    assert!(!notifies(&mut world, &mut listener, &queue).await, "no relay");
    let mut relay = world.start("relay");
    world.wait_for("select count(*) from oncely.events", 0).await;
    world.wait_for(ANNOUNCED, 1).await;
    let mut notified = false;
    // An announcement that is seen may be the one that is being withdrawn.
    for _ in 0..50 {
        world.wait_for(ANNOUNCED, 1).await;
        notified = notified || notifies(&mut world, &mut listener, &queue).await;
    }
    assert!(notified, "a relay waits");
    world.kill(&mut relay);
    world.wait_for(ANNOUNCED, 0).await;
    assert!(!notifies(&mut world, &mut listener, &queue).await, "the relay was killed");
}

#[tokio::test]
async fn a_relay_at_work_has_withdrawn_its_announcement() {
    let (mut world, queue) = idle_world("batch = 1\nlanes = 1").await;
    let relay = world.start("relay");
    world.wait_for(ANNOUNCED, 1).await;
    // More than a batch of one event each takes long enough to be looked at.
    let events =
        format!("select count(oncely.emit('', '{queue}', n::text)) from generate_series(1, 3000) as n");
    run(&mut world, &events).await;
    world.wait_for(ANNOUNCED, 0).await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    world.wait_for(ANNOUNCED, 1).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn another_relay_announces_when_the_first_one_has_died() {
    let (mut world, queue) = idle_world("").await;
    world.reconfigure("poll = \"1m\"", "poll = \"50ms\"");
    let mut first = world.start_as("relay", "first");
    world.wait_for(&announced_by("first"), 1).await;
    let second = world.start_as("relay", "second");
    world.kill(&mut first);
    world.wait_for(&announced_by("second"), 1).await;
    emit_until_notified(&mut world, &second, &queue).await;
    world.stop(second).await;
}

#[tokio::test]
async fn a_lost_session_of_the_listener_is_replaced() {
    let (mut world, queue) = idle_world("").await;
    let relay = world.start("relay");
    world.wait_for(ANNOUNCED, 1).await;
    world
        .count(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
             where application_name like 'oncely relay%listener' and datname = current_database()",
        )
        .await;
    world.wait_for_line(&relay, "no notifications of events; retrying").await;
    emit_until_notified(&mut world, &relay, &queue).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_login_that_holds_the_announcement_delays_no_event_for_longer_than_the_poll() {
    let (mut world, queue) = idle_world("").await;
    world.reconfigure("poll = \"1m\"", "poll = \"50ms\"");
    let mut other = PgConnection::connect(world.database.url()).await.unwrap();
    for lock in ["select pg_advisory_lock(1332634476, 1)", "select pg_advisory_lock_shared(1332634476, 1)"] {
        sqlx::query(lock).execute(&mut other).await.unwrap();
        let relay = world.start("relay");
        run(&mut world, &format!("select oncely.emit('', '{queue}', 'x')")).await;
        world.wait_for("select count(*) from oncely.events", 0).await;
        world.stop(relay).await;
        sqlx::query("select pg_advisory_unlock_all()").execute(&mut other).await.unwrap();
    }
}

#[tokio::test]
async fn a_transaction_with_an_event_can_be_prepared() {
    let postgres = Postgres::start(&["max_prepared_transactions=2"]).await.unwrap();
    let url = postgres.url();
    let migrated = std::process::Command::new(program("oncely"))
        .arg("migrate")
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let mut relay = PgConnection::connect(&url).await.unwrap();
    sqlx::query("select pg_advisory_lock(1332634476, 1)").execute(&mut relay).await.unwrap();
    let mut emitter = PgConnection::connect(&url).await.unwrap();
    let statements = "begin; select oncely.emit('', 'q', 'x', tenant => 'acme'); prepare transaction 'a'; commit prepared 'a'";
    for statement in statements.split("; ") {
        sqlx::raw_sql(statement).execute(&mut emitter).await.expect(statement);
    }
    let events: i64 =
        sqlx::query_scalar("select count(*) from oncely.events").fetch_one(&mut emitter).await.unwrap();
    assert_eq!(events, 1);
}

/// A walk over ordering keys that was to go on has nothing left when its events are gone: the lane pauses as after any empty read.
#[tokio::test]
async fn a_lane_pauses_longer_and_longer_when_the_events_of_its_walk_are_gone() {
    let (mut world, queue) = idle_world("batch = 1\nlanes = 1").await;
    let emitted = format!(
        "select count(oncely.emit('', '{queue}', 'x', tenant => 'acme', ordering_key => 'k' || n)) from generate_series(1, 500) as n"
    );
    run(&mut world, &emitted).await;
    let mut other = PgConnection::connect(world.database.url()).await.unwrap();
    sqlx::raw_sql("begin; select from oncely.events for update").execute(&mut other).await.unwrap();
    let relay = world.start("relay");
    let lane = "select count(*) from pg_stat_activity where datname = current_database()
        and application_name = 'oncely relay relay events 1'";
    world.wait_for(&format!("{lane} and query like '-- Walks over ordering keys%'"), 1).await;
    sqlx::raw_sql("delete from oncely.events; commit").execute(&mut other).await.unwrap();
    world.wait_for(&format!("{lane} and clock_timestamp() - state_change > interval '3 seconds'"), 1).await;
    world.stop(relay).await;
}

/// A lane that is idle looks for events again and again, however many of them are not due.
#[tokio::test]
async fn a_look_for_events_reads_no_event_that_is_not_due() {
    let (mut world, queue) = idle_world("").await;
    let look = format!(
        "prepare look as {}; set plan_cache_mode = force_generic_plan",
        include_str!("../../../crates/postgres/src/events_look.sql")
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(look)).execute(&mut world.sql).await.unwrap();
    for (ordering_key, waiting) in [("null", "interval '1 hour'"), ("'k' || n", "null")] {
        run(
            &mut world,
            &format!(
                "delete from oncely.events;
                 select count(oncely.emit('', '{queue}', 'x', tenant => 'acme', ordering_key => {ordering_key}, delay => {waiting}))
                 from generate_series(1, 5000) as n",
            ),
        )
        .await;
        for analyzed in ["", "analyze oncely.events"] {
            run(&mut world, analyzed).await;
            let plan: serde_json::Value = sqlx::query_scalar("explain (format json) execute look(now())")
                .fetch_one(&mut world.sql)
                .await
                .unwrap();
            let text = plan.to_string();
            assert!(text.contains("events_due") && text.contains("events_ordered"), "{plan:#}");
            assert!(!text.contains("Seq Scan") && !text.contains("Sort"), "{plan:#}");
        }
    }
}
