//! The broker is away, or takes nothing: no event is lost, and none has an attempt less.

use lapin::types::FieldTable;
use testbed::{Broker, RabbitMq, eventually};

use super::{bodies, run, world_with};
use crate::support::World;

#[tokio::test]
async fn a_memory_alarm_and_a_killed_broker_cost_no_attempt() {
    let mut broker = RabbitMq::start().await.unwrap();
    let mut world = world_with("batch = 50").await;
    world.urls.rabbitmq = broker.url();
    world.configure("[rabbitmq]\ntimeout = \"2s\"");
    world.broker = Broker::connect(&broker.url()).await.unwrap();
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    broker.flush().await.unwrap();
    let relay = world.start("relay");
    run(&mut world, &format!("select oncely.emit('', '{queue}', 'before')")).await;
    world.wait_for("select count(*) from oncely.events", 0).await;

    broker.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]).await.unwrap();
    let emit = format!(
        "select count(oncely.emit('', '{queue}', n::text, ordering_key => case when n % 2 = 0 then 'k' end)) from generate_series(1, 200) as n"
    );
    run(&mut world, &emit).await;
    // It waits, without an attempt, and without publishing the same again and again.
    world.wait_for_line(&relay, "cannot publish events; retrying error=RabbitMQ: no answer").await;
    assert_eq!(
        world.count("select count(*) from oncely.events where attempts = 0 and state = 'pending'").await,
        200
    );
    broker.ctl(&["set_vm_memory_high_watermark", "0.6"]).await.unwrap();
    world.wait_for("select count(*) from oncely.events", 0).await;

    // Killed with events under way.
    let waits = "cannot publish events; retrying";
    let seen = relay.output().matches(waits).count();
    broker.kill().unwrap();
    run(&mut world, &emit.replace("n::text", "(1000 + n)::text")).await;
    world.wait_for_lines(&relay, waits, seen + 1).await;
    broker.restart().await.unwrap();
    world.wait_for("select count(*) from oncely.events", 0).await;
    assert!(!relay.output().contains("oncely outbox list"), "nothing was parked: {}", relay.output());
    world.broker = eventually("a broker", || Broker::connect(&world.urls.rabbitmq)).await.unwrap();
    let arrived = bodies(&world.broker, &queue).await;
    let repeats = arrived.len() - 401;
    let mut numbers: Vec<u32> = arrived.iter().filter_map(|body| body.parse().ok()).collect();
    let ordered: Vec<u32> = {
        let mut seen = std::collections::HashSet::new();
        numbers.iter().copied().filter(|n| n % 2 == 0 && seen.insert(*n)).collect()
    };
    assert!(ordered.is_sorted(), "{ordered:?}");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=200).chain(1001..=1200).collect::<Vec<_>>());
    // Two lanes with a batch each, and those of the restart.
    assert!(repeats <= 300, "{repeats} repeats");
    world.stop(relay).await;
}

/// Makes the process of a queue stand still, or go on: meanwhile the broker takes messages for it, and confirms none.
async fn tell_queue(broker: &RabbitMq, queue: &str, verb: &str) {
    let code = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), sys:{verb}(amqqueue:get_pid(Q))."
    );
    broker.ctl(&["eval", &code]).await.unwrap();
}

#[tokio::test]
async fn a_queue_that_confirms_nothing_holds_up_no_other() {
    let broker = RabbitMq::start().await.unwrap();
    let mut world = World::new().await;
    world.urls.rabbitmq = broker.url();
    world.configure(
        "[relay]\npoll = \"20ms\"\n[events]\nbatch = 4\nlanes = 1\nretry = { delays = [\"100ms\"], max_attempts = 1000 }\n\
         [rabbitmq]\ntimeout = \"1s\"",
    );
    world.broker = Broker::connect(&broker.url()).await.unwrap();
    let (still, well) = (world.queue("still"), world.queue("well"));
    for queue in [&still, &well] {
        world.broker.declare_queue(queue, FieldTable::default()).await.unwrap();
    }
    tell_queue(&broker, &still, "suspend").await;
    // In each batch, others are behind them.
    let both = format!(
        "select count(oncely.emit('', queue, n::text))
        from (select n, queue from generate_series(1, 6) as n, unnest(array['{still}', '{well}']) as queue order by n, queue) as e"
    );
    run(&mut world, &both).await;
    let relay = world.start("relay");
    world.wait_for(&format!("select count(*) from oncely.events where routing_key = '{well}'"), 0).await;
    let mut arrived = bodies(&world.broker, &well).await;
    arrived.sort_unstable();
    assert_eq!(arrived, ["1", "2", "3", "4", "5", "6"], "none is published again");
    world.wait_for_line(&relay, "reason=\"unconfirmed\"").await;
    // One that arrives when the queue is due for a try again is sent, and counts as tried.
    let held_back = "select count(*) from oncely.events where reason = 'held_back' and attempts = 0";
    testbed::eventually("an event is held back", || async {
        let sql = &mut world.database.connect().await?;
        let emit = format!("select oncely.emit('', '{still}', 'held back')");
        sqlx::raw_sql(sqlx::AssertSqlSafe(emit)).execute(&mut *sql).await?;
        let events: i64 = sqlx::query_scalar(held_back).fetch_one(sql).await?;
        if events > 0 { Ok(()) } else { Err(anyhow::anyhow!("none")) }
    })
    .await
    .unwrap();
    tell_queue(&broker, &still, "resume").await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    let mut arrived = bodies(&world.broker, &still).await;
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived, ["1", "2", "3", "4", "5", "6", "held back"]);
    world.stop(relay).await;
}
