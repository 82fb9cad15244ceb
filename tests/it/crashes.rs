//! Processes and servers die in the middle of the work; each effect is there once all the same.

use std::time::Duration;

use testbed::proxy::Mode;
use testbed::{Process, RabbitMq, Servers, eventually_within};

use crate::support::gate::{Gate, WAITING};
use crate::support::{World, message, servers};

#[tokio::test]
async fn a_worker_killed_inside_its_transaction_loses_nothing() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1");
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let mut worker = world.start("worker");
    for key in ["a", "b", "c"] {
        world.publish("payments", message("acme", key), r#"{"do": "wait"}"#).await;
    }
    world.wait_for(WAITING, 1).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0, "nothing is visible before COMMIT");
    // An acknowledgement before the commit would take these messages from the broker now. The server goes on with a transaction of one
    // statement, and commits it: they come again as duplicates then.
    world.kill(&mut worker);
    gate.open().await;
    world.wait_for_ready(&world.queue("payments"), 3).await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 3).await;
    // All three are settled, as its heartbeat says: what a worker has not begun with when it stops goes back.
    let settled = "select count(*) from oncely.processes where 3 = (
            select sum((consumers -> 0 -> 'counts' ->> c)::bigint)
            from unnest(array['completed', 'duplicates_mirror', 'duplicates_postgres', 'duplicates_batch']) as c)";
    world.wait_for(settled, 1).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from app.effects").await, 3);
}

#[tokio::test]
async fn a_message_whose_failure_meets_another_payload_of_its_key_is_not_dropped() {
    let mut world = World::new().await;
    sqlx::query("insert into app.numbers values ('7')").execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "batch = 1\nlanes = 2");
    world.apply_topology().await;
    let worker = world.start("worker");
    for round in 1..=5 {
        let key = format!("k{round}");
        let mut gate = Gate::shut(&world).await;
        // Fails at COMMIT, first in its batch and then by itself.
        let failing = r#"{"do": "wait_number", "number": "7"}"#;
        world.publish("payments", message("acme", &key), failing).await;
        world.wait_for(WAITING, 1).await;
        gate.pass(&mut world).await;
        world.wait_for(WAITING, 1).await;
        // The same key with another payload waits for the first one's end, and may have it before the first one's failure
        // is recorded.
        world.publish("payments", message("acme", &key), "{}").await;
        let queued = "select count(*) from pg_locks where locktype = 'transactionid' and not granted
            and pid in (select pid from pg_stat_activity where datname = current_database())";
        world.wait_for(queued, 1).await;
        gate.open().await;
        // Whoever has the key, the other one is refused by name: two messages, two ends.
        let ends = "select (select count(*) from app.effects) + (select count(*) from oncely.dead_letters)";
        world.wait_for(ends, 2 * round).await;
    }
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.dead_letters where reason = 'key_conflict'").await,
        5
    );
}

#[tokio::test]
async fn sigterm_in_the_middle_of_a_batch_finishes_it_first() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let mut worker = world.start("worker");
    world.publish("payments", message("acme", "a"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    worker.signal(testbed::Signal::TERM).unwrap();
    world.wait_for_line(&worker, "finishing work in progress").await;
    // What comes now is left for others.
    world.publish("payments", message("acme", "b"), "{}").await;
    gate.open().await;
    let status = worker.wait_for_end(Duration::from_secs(30)).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", worker.output());
    assert_eq!(world.count("select count(*) from app.effects where key = 'a'").await, 1);
    world.wait_for_ready(&world.queue("payments"), 1).await;
}

#[tokio::test]
async fn work_that_does_not_end_in_time_is_left_to_redelivery() {
    let mut world = World::new().await;
    world.configure("[worker]\nshutdown = \"1s\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let mut worker = world.start("worker");
    world.publish("payments", message("acme", "a"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    let status = worker.terminate(Duration::from_secs(20)).await.unwrap();
    assert_eq!(status.code(), Some(70), "{}", worker.output());
    gate.open().await;
    world.wait_for_ready(&world.queue("payments"), 1).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
}

#[tokio::test]
async fn a_broker_killed_between_commit_and_acknowledgement_doubles_nothing() {
    let mut broker = RabbitMq::start().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    world.configure("[audit]\nduplicates = true");
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "a"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    broker.flush().await.unwrap();
    broker.kill().unwrap();
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 1).await;
    broker.restart().await.unwrap();
    // The acknowledgement could not be sent, so the broker delivers again, and PostgreSQL knows better.
    world
        .wait_for("select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'postgres'", 1)
        .await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    world.broker = testbed::Broker::connect(&broker.url()).await.unwrap();
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}

#[tokio::test]
async fn a_postgresql_killed_under_load_loses_and_doubles_nothing() {
    let mut servers = Servers::start_private_except_rabbitmq(&servers().await.urls().rabbitmq).await.unwrap();
    let mut world = World::on(servers.urls().clone()).await;
    world.consumer("payments", "batch = 20\nhandler = { function = \"app.handle_batch\", batch = true }");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let worker = world.start("worker");
    let total = 3_000;
    let publish = async {
        for chunk in (0..total).collect::<Vec<_>>().chunks(100) {
            let messages = chunk
                .iter()
                .map(|number| (queue.clone(), message("acme", &format!("k{number}")), b"{}".to_vec()))
                .collect();
            world.broker.publish_all("", messages).await.unwrap();
        }
    };
    let kill = async {
        for _ in 0..3 {
            let before = progress(&world).await;
            eventually_within(Duration::from_secs(30), "some progress", || async {
                let now = progress(&world).await;
                if now > before + 50 || now >= total { Ok(()) } else { Err(now) }
            })
            .await
            .unwrap();
            servers.postgres.as_mut().unwrap().restart().await.unwrap();
        }
    };
    tokio::join!(publish, kill);
    world.sql = world.database.connect().await.unwrap();
    world.wait_for("select count(distinct key) from app.effects", total).await;
    world.wait_for_ready(&queue, 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, total, "none doubled");
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 0);
    assert_eq!(world.broker.ready(&format!("{queue}.dead")).await.unwrap(), 0, "an outage spends no attempt");
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, total);
}

async fn progress(world: &World) -> i64 {
    use sqlx::Row as _;
    let Ok(mut connection) = world.database.connect().await else { return 0 };
    match sqlx::query("select count(*) from app.effects").fetch_one(&mut connection).await {
        Ok(row) => row.get(0),
        Err(_) => 0,
    }
}

#[tokio::test]
async fn a_deleted_queue_is_noticed_and_subscribed_to_again_when_it_is_back() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker: Process = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    world.broker.delete_queue(&world.queue("payments")).await.unwrap();
    world.wait_for_line(&worker, "subscription lost").await;
    world.apply_topology().await;
    world.publish("payments", message("acme", "a"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_worker_waits_for_servers_that_are_not_there_yet() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.publish("payments", message("acme", "a"), "{}").await;
    let (broker, url) = world.proxied_rabbitmq().await;
    broker.set(Mode::Refuse);
    let worker = world.start_with("worker", "worker", &[("AMQP_URL", url)]);
    world.wait_for_line(&worker, "waiting for servers").await;
    broker.set(Mode::Pass);
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_queue_that_goes_while_its_batch_waits_takes_no_other_queues_message_with_it() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1");
    let (one, two) = (world.queue("payments"), world.queue("more"));
    let text = std::fs::read_to_string(world.file()).unwrap();
    let text = text.replace(&format!("queue = {one:?}"), &format!("queues = [{one:?}, {two:?}]"));
    std::fs::write(world.file(), text).unwrap();
    world.apply_topology().await;
    let gate = Gate::shut(&world).await;
    let worker = world.start("worker");
    // Keeps the only lane busy, so that the rest makes one batch.
    world.publish("payments", message("acme", "first"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    for number in 0..70 {
        world.publish("payments", message("acme", &format!("k{number}")), "{}").await;
    }
    world.publish("more", message("acme", "other"), "{}").await;
    world.wait_for_ready(&one, 0).await;
    world.wait_for_ready(&two, 0).await;
    // Where no key can be claimed, the whole batch waits. The table is gone as soon as the first message is done.
    let mut owner = world.database.connect().await.unwrap();
    let rename = tokio::spawn(async move {
        sqlx::query("alter table oncely.idempotency_keys rename to away").execute(&mut owner).await.unwrap();
    });
    world
        .wait_for(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'alter%'
        and datname = current_database()",
            1,
        )
        .await;
    gate.open().await;
    rename.await.unwrap();
    world.wait_for_line(&worker, "consuming waits until this is fixed").await;
    world.broker.delete_queue(&one).await.unwrap();
    world.wait_for_line(&worker, "subscription lost").await;
    let waiting = "consuming waits until this is fixed";
    let before = worker.output().matches(waiting).count();
    // The batch still waits.
    world.wait_for_lines(&worker, waiting, before + 2).await;
    sqlx::query("alter table oncely.away rename to idempotency_keys").execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from app.effects where key = 'other'", 1).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&two).await.unwrap(), 0, "and it is acknowledged");
}
