//! Queues: those that can't carry the promise are refused, and what they are bound to is declared.

use lapin::ExchangeKind;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use testbed::Broker;

use crate::support::{World, message};

fn arguments(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

async fn checked(world: &World) -> (Option<i32>, String) {
    let output = world.oncely(&["check"]).await;
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn a_queue_that_can_t_carry_the_promise_is_refused() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let queue = world.queue("payments");
    let dlx = ("x-dead-letter-exchange", text(&format!("{queue}.dlx")));
    let classic = ("x-queue-type", text("classic"));
    let durable = QueueDeclareOptions::durable();
    for (what, options, entries) in [
        ("a stream", durable, vec![("x-queue-type", text("stream"))]),
        (
            "auto-delete",
            QueueDeclareOptions { auto_delete: true, ..durable },
            vec![classic.clone(), dlx.clone()],
        ),
        ("not durable", QueueDeclareOptions::default(), vec![classic.clone(), dlx.clone()]),
        ("drops its head", durable, vec![classic.clone(), ("x-max-length", AMQPValue::LongInt(10))]),
        ("forgets", durable, vec![classic.clone(), ("x-message-ttl", AMQPValue::LongInt(60_000))]),
        (
            "vanishes",
            durable,
            vec![classic.clone(), dlx.clone(), ("x-expires", AMQPValue::LongInt(3_600_000))],
        ),
    ] {
        world
            .broker
            .channel()
            .queue_declare(queue.as_str().into(), options, arguments(&entries))
            .await
            .unwrap();
        // Its companions.
        world.oncely(&["topology", "apply"]).await;
        let (code, told) = checked(&world).await;
        assert_eq!(code, Some(78), "{what}: {told}");
        assert!(told.contains(&queue) && told.contains("not as Oncely declares it"), "{what}: {told}");
        let worker = world.start("worker");
        world.wait_for_line(&worker, "not as Oncely declares it").await;
        world.stop(worker).await;
        world.broker.delete_queue(&queue).await.unwrap();
    }
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let other = Broker::connect(&world.urls.rabbitmq).await.unwrap();
    other.channel().queue_declare(queue.as_str().into(), exclusive, FieldTable::default()).await.unwrap();
    let (code, told) = checked(&world).await;
    assert_eq!(code, Some(78), "exclusive: {told}");
    assert!(told.contains("in another's use"), "{told}");
    other.delete_queue(&queue).await.unwrap();
    world.apply_topology().await;
    assert_eq!(checked(&world).await.0, Some(0));
}

#[tokio::test]
async fn a_queue_with_further_arguments_and_one_that_somebody_else_declares_are_read() {
    let mut world = World::new().await;
    world.consumer("payments", "queue_arguments = { x-max-priority = 10 }");
    world.consumer("ledger", "declare = false");
    let ledger = world.queue("ledger");
    let foreign = arguments(&[("x-queue-mode", text("lazy"))]);
    world.broker.declare_queue(&ledger, foreign).await.unwrap();
    world.apply_topology().await;
    let (code, told) = checked(&world).await;
    assert_eq!(code, Some(0), "{told}");
    let worker = world.start("worker");
    for consumer in ["payments", "ledger"] {
        world.publish(consumer, message("acme", "k"), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_stream_that_somebody_else_declares_is_not_consumed() {
    let mut world = World::new().await;
    world.consumer("payments", "declare = false");
    let stream = arguments(&[("x-queue-type", text("stream"))]);
    world.broker.declare_queue(&world.queue("payments"), stream).await.unwrap();
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "cannot subscribe: only classic and quorum queues").await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
}

#[tokio::test]
async fn bindings_come_back_with_a_queue_that_is_declared_anew() {
    let mut world = World::new().await;
    let exchange = format!("{}-orders", world.queue("x"));
    let bindings = format!("bindings = [{{ exchange = {exchange:?}, routing_key = \"order.*\" }}]");
    world.consumer("payments", &bindings);
    world.consumer("ledger", "");
    let applied = world.oncely(&["topology", "apply"]).await;
    assert_eq!(applied.status.code(), Some(1), "the exchange is yours to declare");
    let (code, told) = checked(&world).await;
    assert_eq!(code, Some(78));
    assert!(told.contains(&format!("there is no exchange {exchange}")), "{told}");
    let told = String::from_utf8_lossy(&applied.stderr);
    assert!(!told.contains("is new"), "there was no earlier queue: {told}");
    world.broker.declare_exchange(&exchange, ExchangeKind::Topic).await.unwrap();
    world.apply_topology().await;
    let worker = world.start("worker");
    world.broker.publish(&exchange, "order.paid", message("acme", "1"), b"{}").await.unwrap();
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;

    for consumer in ["payments", "ledger"] {
        world.broker.delete_queue(&world.queue(consumer)).await.unwrap();
    }
    let applied = world.oncely(&["topology", "apply"]).await;
    let told = String::from_utf8_lossy(&applied.stderr);
    let unbound = format!(
        "queue {} is new: what was bound to an earlier one of this name is gone",
        world.queue("ledger")
    );
    assert!(applied.status.success() && told.contains(&unbound), "{told}");
    assert!(!told.contains(&format!("queue {} is new", world.queue("payments"))), "{told}");
    let worker = world.start("worker");
    world.broker.publish(&exchange, "order.paid", message("acme", "2"), b"{}").await.unwrap();
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn what_is_missing_is_named_and_what_is_there_is_counted() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.broker.delete_queue(&format!("{}.dead", world.queue("payments"))).await.unwrap();
    let output = world.oncely(&["status", "--json"]).await;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let queue = &status["queues"][0];
    assert_eq!((queue["ready"].as_u64(), queue["subscriptions"].as_u64()), (Some(1), Some(0)), "{status}");
    assert!(queue["dead"].is_null(), "{status}");
}
