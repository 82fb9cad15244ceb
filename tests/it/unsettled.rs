//! Copies that the broker does not take wait beside the lanes, and nobody with them.

use testbed::{RabbitMq, eventually};

use crate::support::{World, message, servers};

/// Largest message that a broker takes on channels that are opened from now on.
async fn limit_messages(broker: &RabbitMq, bytes: u32) {
    // The second is where RabbitMQ 4 looks.
    let set = format!(
        "application:set_env(rabbit, max_message_size, {bytes}), persistent_term:put(max_message_size, {bytes})."
    );
    broker.ctl(&["eval", &set]).await.unwrap();
}

async fn world_on(broker: &RabbitMq) -> World {
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    World::on(urls).await
}

#[tokio::test]
async fn copies_that_the_broker_does_not_take_keep_no_good_message_waiting() {
    let broker = RabbitMq::start().await.unwrap();
    let mut world = world_on(&broker).await;
    world.consumer("payments", "lanes = 1\nmax_body = 1000");
    world.apply_topology().await;
    let too_large = "x".repeat(5_000);
    for (key, body) in [("a", "{}"), ("large-1", &too_large), ("b", "{}"), ("large-2", &too_large)] {
        world.publish("payments", message("acme", key), body).await;
    }
    // As after an upgrade of the broker: what is in a queue may be larger than what may be published.
    limit_messages(&broker, 3_000).await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "the originals stay unacknowledged").await;
    for number in 0..20 {
        world.publish("payments", message("acme", &format!("good-{number}")), "{}").await;
    }
    // Copies of others go their way, too.
    world.publish("payments", message("acme", "bad"), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from app.effects", 22).await;
    let dead = format!("{}.dead", world.queue("payments"));
    world.wait_for_ready(&dead, 1).await;
    // What lies behind them is acknowledged all the same.
    eventually("only the two are unacknowledged", || async {
        let listed = broker
            .ctl(&["-q", "list_queues", "name", "messages_unacknowledged", "--no-table-headers"])
            .await?;
        let line = format!("{}\t2", world.queue("payments"));
        if listed.lines().any(|found| found == line) { Ok(()) } else { Err(anyhow::anyhow!(listed)) }
    })
    .await
    .unwrap();
    limit_messages(&broker, 100_000).await;
    world.wait_for_ready(&dead, 3).await;
    world.wait_for_line(&worker, "all copies for retry and dead-letter queues are published").await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
    let reasons =
        "select string_agg(reason, ', ' order by reason) from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(
        world.text(reasons).await.as_deref(),
        Some("body_too_large, body_too_large, handler_rejected")
    );
}

#[tokio::test]
async fn a_consumer_with_too_much_unsettled_waits_and_says_for_whom() {
    let broker = RabbitMq::start().await.unwrap();
    let mut world = world_on(&broker).await;
    // One copy may wait aside.
    world.consumer("payments", "lanes = 1\nprefetch = 4\nmax_body = 1000");
    world.apply_topology().await;
    let too_large = "x".repeat(5_000);
    for number in 0..3 {
        world.publish("payments", message("acme", &format!("large-{number}")), &too_large).await;
    }
    world.publish("payments", message("acme", "good"), "{}").await;
    limit_messages(&broker, 3_000).await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "consumer waits: the limit of unsettled messages is reached").await;
    let told = worker.output();
    let line = told.lines().find(|line| line.contains("consumer waits")).unwrap();
    assert!(line.contains(&world.queue("payments")), "{line}");
    // Told to stop, it stops, and the broker has them all.
    world.stop(worker).await;
    world.wait_for_ready(&world.queue("payments"), 4).await;
    limit_messages(&broker, 100_000).await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 3).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&world.queue("payments")).await.unwrap(), 0);
}
