//! A queue that is divided by a hash exchange: its parts are one consumer.

use lapin::ExchangeKind;
use testbed::{Urls, VirtualHost};

use crate::support::{World, message, servers};

const PARTS: usize = 4;
const MESSAGES: i64 = 200;

#[tokio::test]
async fn parts_behind_a_hash_exchange_share_their_keys_and_take_new_parts() {
    let broker = VirtualHost::create().await.unwrap();
    let urls = Urls { rabbitmq: broker.url(), ..servers().await.urls().clone() };
    let mut world = World::on(urls).await;
    world
        .broker
        .declare_exchange("payments", ExchangeKind::Custom("x-consistent-hash".into()))
        .await
        .unwrap();
    world.consumer("payments", "bindings = [{ exchange = \"payments\", routing_key = \"1\" }]");
    let first = world.queue("payments");
    let parts: Vec<String> = (1..=PARTS).map(|number| world.queue(&format!("part{number}"))).collect();
    let queues = |count: usize| format!("queues = {:?}", &parts[..count]);
    world.reconfigure(&format!("queue = {first:?}"), &queues(PARTS - 1));
    world.apply_topology().await;

    let messages = |from: i64, to: i64| {
        let one = |number: i64| (number.to_string(), message("acme", &number.to_string()), b"{}".to_vec());
        (from..to).map(one).collect::<Vec<_>>()
    };
    world.broker.publish_all("payments", messages(0, MESSAGES)).await.unwrap();
    for part in &parts[..PARTS - 1] {
        assert!(world.broker.ready(part).await.unwrap() > 0, "{part} has its part");
    }
    // One more part takes over some of the routing keys: copies of their messages come through another queue.
    world.reconfigure(&queues(PARTS - 1), &queues(PARTS));
    world.apply_topology().await;
    world.broker.publish_all("payments", messages(0, MESSAGES)).await.unwrap();
    assert!(world.broker.ready(&parts[PARTS - 1]).await.unwrap() > 0, "the new part has some");

    let workers = [world.start_as("worker", "one"), world.start_as("worker", "two")];
    world.wait_for("select count(*) from app.effects", MESSAGES).await;
    for part in &parts {
        world.wait_for_ready(part, 0).await;
    }
    for worker in workers {
        world.stop(worker).await;
    }
    assert_eq!(world.count("select count(*) from app.effects").await, MESSAGES);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, MESSAGES);
}
