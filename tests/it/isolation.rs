//! Messages that kill the process which runs them, and handlers that do not come back.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection};
use testbed::proxy::Mode;
use testbed::{Process, eventually_within};

use crate::support::gate::{Gate, WAITING};
use crate::support::{Login, World, message};

/// Starts the worker again whenever it has died, until `done`; returns how often it died.
async fn keep_alive(
    world: &World,
    environment: &[(&'static str, String)],
    done: &'static str,
    wanted: i64,
) -> (usize, Process) {
    let sql = world.database.connect().await.unwrap();
    let at_work = tokio::sync::Mutex::new((0, world.start_with("worker", "worker", environment), sql));
    let done = eventually_within(Duration::from_secs(120), done, || async {
        let (deaths, worker, sql) = &mut *at_work.lock().await;
        if !worker.is_running() {
            *deaths += 1;
            assert!(*deaths < 20, "it dies again and again: {}", worker.output());
            *worker = world.start_with("worker", "worker", environment);
        }
        match sqlx::query_scalar::<_, i64>(AssertSqlSafe(done)).fetch_one(sql).await {
            Ok(found) if found == wanted => Ok(()),
            Ok(found) => Err(format!("{found} instead of {wanted}")),
            Err(error) => Err(error.to_string()),
        }
    });
    let done = done.await;
    let (deaths, worker, _) = at_work.into_inner();
    done.unwrap_or_else(|error| panic!("{error}: {}", worker.output()));
    (deaths, worker)
}

#[tokio::test]
async fn a_message_that_kills_its_process_is_found_out_and_costs_no_neighbour_its_place() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 20\nlanes = 2\nprefetch = 100");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..60)
        .map(|number| {
            let key = if number == 30 { "killer".to_owned() } else { format!("k{number}") };
            (queue.clone(), message("acme", &key), b"{}".to_vec())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let deadly = [("FAILPOINT", "worker.handle.before=key:kill".to_owned())];
    let ended = "select count(*) from oncely.audit where outcome in ('completed', 'dead_lettered')";
    let (deaths, worker) = keep_alive(&world, &deadly, ended, 60).await;
    world.wait_for_ready(&format!("{queue}.dead"), 1).await;
    world.stop(worker).await;
    // Among strangers, among suspects, and twice alone.
    assert_eq!(deaths, 4);
    assert_eq!(world.count("select count(*) from app.effects").await, 59);
    assert_eq!(world.count("select count(distinct key) from app.effects").await, 59);
    let dead =
        "select key || ' ' || reason || ' ' || detail from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(
        world.text(dead).await.as_deref(),
        Some("killer crash a process died 3 times while this message was at work")
    );
    let row = "select status || ' ' || reason || ' ' || crash_attempts from oncely.idempotency_keys where key = 'killer'";
    assert_eq!(world.text(row).await.as_deref(), Some("FAILED crash 3"));
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
}

#[tokio::test]
async fn two_messages_that_kill_their_process_take_no_innocent_with_them() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 10\nlanes = 2\nprefetch = 100");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = (0..40)
        .map(|number| {
            let key = match number {
                5 | 25 => format!("kill{number}"),
                _ => format!("k{number}"),
            };
            (queue.clone(), message("acme", &key), b"{}".to_vec())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let deadly = [("FAILPOINT", "worker.handle.before=key:kill".to_owned())];
    let ended =
        "select count(distinct key) from oncely.audit where outcome in ('completed', 'dead_lettered')";
    let (_, worker) = keep_alive(&world, &deadly, ended, 40).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 38);
    let dead = "select string_agg(distinct key || ' ' || reason, ', ') from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(world.text(dead).await.as_deref(), Some("kill25 crash, kill5 crash"));
}

#[tokio::test]
async fn messages_that_have_to_run_alone_let_others_pass() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 20\nlanes = 1\nprefetch = 400");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let messages = |name: &str, body: &str, count: usize| {
        let one =
            |number| (queue.clone(), message("acme", &format!("{name}{number}")), body.as_bytes().to_vec());
        (0..count).map(one).collect::<Vec<_>>()
    };
    // As after a process died with them at work.
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, crash_attempts, created_at)
         select 'acme', 'payments', 'suspect' || n, 'IN_PROGRESS', 0, 1, now() from generate_series(0, 199) as n",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.broker.publish_all("", messages("suspect", r#"{"do": "wait"}"#, 200)).await.unwrap();
    testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 200).await.unwrap();
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    world.wait_for(WAITING, 1).await;
    world.broker.publish_all("", messages("fresh", "{}", 10)).await.unwrap();
    world.wait_for_ready(&world.queue("payments"), 0).await;
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 210).await;
    let before = "select count(*) from oncely.audit where outcome = 'completed' and key like 'suspect%'
        and occurred_at < (select min(occurred_at) from oncely.audit where key like 'fresh%')";
    let before = world.count(before).await;
    // Ten batches of suspects are ahead of them, and sixteen run beside each at most.
    assert!(before <= 176, "{before} suspects ran before the first of the others");
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 210);
}

#[tokio::test]
async fn a_channel_that_goes_again_and_again_leaves_no_mark_on_what_it_delivered() {
    let mut world = World::new().await;
    world.consumer(
        "payments",
        "lanes = 1\nretry = { delays = [\"50ms\"], max_attempts = 3, max_crashes = 2 }",
    );
    world.apply_topology().await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    // Redelivered from the first time on, so that each run is counted before it begins.
    testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
    let (proxy, through) = world.proxied_rabbitmq().await;
    let worker = world.start_with("worker", "worker", &[("AMQP_URL", through)]);
    let waiting = "no attempt is spent";
    // The environment is broken, and the message is interrupted at its work, as often as would prove it guilty.
    for round in 1..=4 {
        // Cut while it connects, it would have no subscription to lose.
        world.wait_for_lines(&worker, "subscribed", round).await;
        let seen = worker.output().matches(waiting).count();
        world.wait_for_lines(&worker, waiting, seen + 1).await;
        let marked = "select count(*) from oncely.idempotency_keys where crash_attempts = 0";
        world.wait_for(marked, 1).await;
        proxy.cut();
        world.wait_for_lines(&worker, "subscription lost", round).await;
    }
    sqlx::query("create table app.not_there (n integer)").execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await, 0);
    assert_eq!(world.broker.ready(&format!("{queue}.dead")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_function_past_its_deadline_is_cancelled_in_the_server_and_costs_its_neighbours_nothing() {
    let mut world = World::new().await;
    world.consumer("payments", "deadline = \"1s\"\nretry = { delays = [\"50ms\"], max_attempts = 2 }");
    world.apply_topology().await;
    let mut gate = world.database.connect().await.unwrap();
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.unwrap();
    let queue = world.queue("payments");
    let messages = (0..20)
        .map(|number| {
            let body = if number == 7 { r#"{"do": "wait"}"# } else { "{}" };
            (queue.clone(), message("acme", &format!("k{number}")), body.as_bytes().to_vec())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 19).await;
    world.wait_for_ready(&format!("{queue}.dead"), 1).await;
    world.stop(worker).await;
    let row = "select string_agg(outcome || ' ' || detail, ', ' order by occurred_at) from oncely.audit where key = 'k7'";
    assert_eq!(
        world.text(row).await.as_deref(),
        Some(
            "retried the handler was not done within 1s (SQLSTATE 57014), dead_lettered the handler was not done within 1s (SQLSTATE 57014)"
        )
    );
    let left = "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 4711
        and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(world.count(left).await, 0, "nothing of it is left in the server");
}

#[tokio::test]
async fn a_process_whose_runtime_starves_ends_itself_and_its_messages_come_again() {
    let mut world = World::new().await;
    world.configure("[worker]\nwatchdog = \"1s\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let starved = [("FAILPOINT", "worker.handle.before=starve".to_owned())];
    let mut worker = world.start_with("worker", "starved", &starved);
    let status = worker.wait_for_end(Duration::from_secs(30)).await.unwrap();
    assert_eq!(status.code(), Some(70), "{}", worker.output());
    assert!(worker.output().contains("runtime blocked"));
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_lane_that_was_cut_off_from_all_servers_takes_its_marks_back_while_it_is_idle() {
    let mut world = World::new().await;
    world.configure("[postgres]\nconnect_timeout = \"1s\"\n[log]\nlevel = \"debug\"");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    // Redelivered from the first time on, so that its run is counted before it begins.
    testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
    let gate = Gate::shut(&world).await;
    let (broker, through) = world.proxied_rabbitmq().await;
    let (postgres, [database]) = world.proxied_postgres().await;
    let worker = world.start_with("worker", "worker", &[database, ("AMQP_URL", through)]);
    world.wait_for(WAITING, 1).await;
    let marks = "select count(*) from oncely.idempotency_keys where crash_attempts = 1";
    world.wait_for(marks, 1).await;
    for proxy in [&broker, &postgres] {
        proxy.set(Mode::Refuse);
        proxy.cut();
    }
    world.wait_for_line(&worker, "batch left to redelivery").await;
    postgres.set(Mode::Pass);
    world.wait_for(marks, 0).await;
    gate.open().await;
    broker.set(Mode::Pass);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_copy_that_waited_for_the_count_of_a_live_run_counts_nothing() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
         values ('acme', 'payments', 'k', 'IN_PROGRESS', 0, now())",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut first = world.database.connect().await.unwrap();
    let mut second = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin").execute(&mut first).await.unwrap();
    assert_eq!(count_runs(&mut first, &["k"]).await, 1);
    let waits = async {
        world.wait_for("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'", 1).await;
        // Its run goes on after this: the session lives.
        sqlx::raw_sql("commit").execute(&mut first).await.unwrap();
    };
    let (counted, ()) = tokio::join!(count_runs(&mut second, &["k"]), waits);
    assert_eq!(counted, 0, "the first session's run is at work");
    let counts = "select crash_attempts::bigint from oncely.idempotency_keys where key = 'k'";
    assert_eq!(world.count(counts).await, 1);
    // Its session ends, and with it the run.
    let ended: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut first).await.unwrap();
    first.close().await.unwrap();
    let gone = format!("select count(*) from pg_stat_activity where pid = {ended}");
    world.wait_for(&gone, 0).await;
    assert_eq!(count_runs(&mut second, &["k"]).await, 1);
    assert_eq!(world.count(counts).await, 2);
}

/// Counts runs of keys by the worker's statements: of new ones, then of the others. Returns how many it counted.
async fn count_runs(session: &mut sqlx::PgConnection, keys: &[&str]) -> usize {
    let (pid, started): (i32, chrono::DateTime<chrono::Utc>) = sqlx::query_as(
        "select pid, coalesce(backend_start, now()) from pg_stat_activity where pid = pg_backend_pid()",
    )
    .fetch_one(&mut *session)
    .await
    .unwrap();
    let now = chrono::Utc::now();
    let without = |count: usize| vec![Option::<Vec<u8>>::None; count];
    let new: Vec<(String, String)> =
        sqlx::query_as(include_str!("../../crates/postgres/src/mark_new_suspects.sql"))
            .bind("payments")
            .bind(now)
            .bind(vec!["acme"; keys.len()])
            .bind(keys)
            .bind(without(keys.len()))
            .bind(pid)
            .bind(started)
            .fetch_all(&mut *session)
            .await
            .unwrap();
    let known: Vec<&str> =
        keys.iter().copied().filter(|key| !new.iter().any(|(_, counted)| counted == key)).collect();
    let counted = sqlx::query(include_str!("../../crates/postgres/src/mark_suspects.sql"))
        .bind("payments")
        .bind(vec!["acme"; known.len()])
        .bind(&known)
        .bind(without(known.len()))
        .bind(true)
        .bind(pid)
        .bind(started)
        .bind(now)
        .fetch_all(session)
        .await
        .unwrap();
    new.len() + counted.len()
}

#[tokio::test]
async fn a_session_that_was_opened_while_another_waited_for_a_lock_is_at_work() {
    let mut world = World::new().await;
    // `k` was marked by a session that is over.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys
             (tenant, consumer, key, status, attempts, created_at, crash_attempts, marked_pid, marked_backend_start)
         values ('acme', 'payments', 'a', 'IN_PROGRESS', 0, now(), 0, null, null),
             ('acme', 'payments', 'k', 'IN_PROGRESS', 0, now(), 1, 1, '2026-01-01')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from oncely.idempotency_keys where key = 'a' for update")
        .execute(&mut holder)
        .await
        .unwrap();
    let mut waiting = world.database.connect().await.unwrap();
    let meanwhile = async {
        world.wait_for("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'", 1).await;
        let mut young = world.database.connect().await.unwrap();
        assert_eq!(count_runs(&mut young, &["k", "k2"]).await, 2);
        sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
        young
    };
    let (counted, young) = tokio::join!(count_runs(&mut waiting, &["a", "k"]), meanwhile);
    assert_eq!(counted, 1, "the young session's run of k is at work");
    let counts = "select crash_attempts::bigint from oncely.idempotency_keys where key = 'k'";
    assert_eq!(world.count(counts).await, 2);
    young.close().await.unwrap();
}

#[tokio::test]
async fn a_run_of_another_login_is_at_work_as_long_as_its_session_is_there() {
    let mut world = World::new().await;
    let mut first = world.database.connect().await.unwrap();
    assert_eq!(count_runs(&mut first, &["a", "k"]).await, 2);
    // As workers whose credentials are renewed: the old login's session is there, and the new login may not look into it.
    let mut second = world.database.connect().await.unwrap();
    sqlx::raw_sql("set role oncely_worker").execute(&mut second).await.unwrap();
    let hidden = "select count(*) from pg_stat_activity where usename = 'postgres' and backend_start is null and pid <> pg_backend_pid()";
    let hidden: i64 = sqlx::query_scalar(hidden).fetch_one(&mut second).await.unwrap();
    assert!(hidden > 0, "a role that sees everything shows nothing here");
    assert_eq!(count_runs(&mut second, &["a", "k"]).await, 0, "they are at work");
    let ended: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut first).await.unwrap();
    first.close().await.unwrap();
    let gone = format!("select count(*) from pg_stat_activity where pid = {ended}");
    world.wait_for(&gone, 0).await;
    assert_eq!(count_runs(&mut second, &["a", "k"]).await, 2);
}

#[tokio::test]
async fn a_run_is_counted_although_another_session_wrote_its_key_at_the_same_time() {
    let mut world = World::new().await;
    world.configure("[log]\nlevel = \"debug\"");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    // Redelivered from the first time on, so that its run is counted before it begins.
    testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
    let gate = Gate::shut(&world).await;
    // As a copy that was left undecided writes it.
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql(
        "begin; insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
         values ('acme', 'payments', 'k', 'IN_PROGRESS', 0, now())",
    )
    .execute(&mut other)
    .await
    .unwrap();
    let worker = world.start("worker");
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
        and query like '%Counts a first run%'";
    world.wait_for(waits, 1).await;
    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    world.wait_for(WAITING, 1).await;
    assert_eq!(world.count("select crash_attempts::bigint from oncely.idempotency_keys").await, 1);
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_run_whose_mark_could_not_be_taken_back_is_not_counted_twice() {
    let mut world = World::new().await;
    world.configure("[log]\nlevel = \"debug\"");
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let queue = world.queue("payments");
    world.publish("payments", message("acme", "k"), r#"{"do": "wait"}"#).await;
    // Redelivered from the first time on, so that its run is counted before it begins.
    testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    world.wait_for(WAITING, 1).await;
    let looking = tokio::sync::Mutex::new(world.database.connect().await.unwrap());
    // Next to hold the key.
    let mut holder = world.database.connect().await.unwrap();
    let held = tokio::spawn(async move {
        sqlx::raw_sql("begin; select from oncely.idempotency_keys for update")
            .execute(&mut holder)
            .await
            .unwrap();
        holder
    });
    let waits = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'transactionid'";
    world.wait_for(waits, 1).await;
    let run = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'";
    assert_eq!(world.count(run).await, 1);
    let holder = held.await.unwrap();
    // The mark of the run that is over can't be taken back, and the next run wants one.
    testbed::eventually("it tries to run it again", || async {
        let mut looking = looking.lock().await;
        let waiting: i64 = sqlx::query_scalar(waits).fetch_one(&mut *looking).await.unwrap();
        match worker.output().contains("marked for an earlier run") || waiting > 0 {
            true => Ok(()),
            false => Err(worker.output()),
        }
    })
    .await
    .unwrap();
    holder.close().await.unwrap();
    world.wait_for(WAITING, 1).await;
    assert_eq!(world.count("select crash_attempts::bigint from oncely.idempotency_keys").await, 1);
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

/// What this consumer's worker writes to the keys waits, once a test has said so, as if the server were slow.
const HOLD: &str = "
    create function app.hold() returns trigger language plpgsql as $$
    begin
        if session_user <> 'postgres' then
            perform set_config('lock_timeout', '0', true);
            perform pg_advisory_xact_lock_shared(4713);
        end if;
        return null;
    end $$;
    create trigger hold before insert or update on oncely.idempotency_keys
    for each statement execute function app.hold()";

#[tokio::test]
async fn a_copy_that_takes_effect_just_before_a_run_is_counted_stops_no_lane() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let grants = format!("grant usage on schema app to {0}; grant insert on app.effects to {0}", login.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants)).execute(&mut world.sql).await.unwrap();
    sqlx::raw_sql(HOLD).execute(&mut world.sql).await.unwrap();
    let queue = world.queue("payments");
    for status in ["COMPLETED", "FAILED"] {
        let key = format!("known as {status}");
        world.publish("payments", message("acme", &key), "{}").await;
        // Redelivered from the first time on, so that its run is counted before it begins.
        testbed::Broker::bounce(&world.urls.rabbitmq, &queue, 1).await.unwrap();
        let mut gate = world.database.connect().await.unwrap();
        sqlx::query("select pg_advisory_lock(4713)").execute(&mut gate).await.unwrap();
        // Row-level security binds it, as it does not bind who owns the schema.
        let worker = world.start_with("worker", "worker", &login.environment());
        let waits =
            "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = 4713
            and database = (select oid from pg_database where datname = current_database())";
        world.wait_for(waits, 1).await;
        sqlx::query(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
             values ('acme', 'payments', $1, $2::oncely.key_status, 1, now(), now(), 'poison')",
        )
        .bind(&key)
        .bind(status)
        .execute(&mut world.sql)
        .await
        .unwrap();
        gate.close().await.unwrap();
        world.publish("payments", message("acme", &format!("behind {key}")), "{}").await;
        let behind = format!("select count(*) from app.effects where key = 'behind {key}'");
        world.wait_for(&behind, 1).await;
        let log = world.stopped_log(worker).await;
        assert!(!log.contains("until this is fixed"), "{log}");
        world.wait_for_ready(&queue, 0).await;
    }
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
    login.drop_now(&mut world).await;
}
