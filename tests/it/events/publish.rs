//! What leaves for RabbitMQ, and when.

use lapin::types::{AMQPValue, FieldTable, LongString};

use super::{bodies, run, world_with};

#[tokio::test]
async fn an_event_arrives_with_all_that_was_asked_for() {
    let mut world = world_with("").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{queue}', '{{\"a\":1}}', headers => '{{\"text\": \"ü\", \"number\": -7, \"yes\": true, \"none\": null}}',
                type => 'order.paid', source => '/shop', correlation_id => 'c', reply_to => 'r', app_id => 'shop', tenant => 'acme')"
        ),
    )
    .await;
    let id = world.text("select id::text from oncely.events").await.unwrap();
    let created =
        world.count("select floor(extract(epoch from created_at))::bigint from oncely.events").await;
    let relay = world.start("relay");
    let told = world.broker.take_exactly(&queue, 1).await.unwrap().remove(0);
    world.wait_for("select count(*) from oncely.events", 0).await;
    world.stop(relay).await;
    assert_eq!(told.data, b"{\"a\":1}");
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().unwrap().to_string();
    let properties = &told.properties;
    assert_eq!(text(properties.message_id()), id);
    assert_eq!(text(properties.content_type()), "application/json");
    assert_eq!(text(properties.kind()), "order.paid");
    assert_eq!(text(properties.correlation_id()), "c");
    assert_eq!(text(properties.reply_to()), "r");
    assert_eq!(text(properties.app_id()), "shop");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(properties.timestamp().unwrap(), u64::try_from(created).unwrap());
    let headers = properties.headers().as_ref().unwrap().inner();
    let long = |text: &str| AMQPValue::LongString(LongString::from(text));
    assert_eq!(headers["text"], long("ü"));
    assert_eq!(headers["number"], AMQPValue::LongLongInt(-7));
    assert_eq!(headers["yes"], AMQPValue::Boolean(true));
    assert_eq!(headers["none"], AMQPValue::Void);
    assert_eq!(headers["x-oncely-event"], long(&id));
    assert_eq!(headers["cloudEvents:id"], long(&id));
    assert_eq!(headers["cloudEvents:specversion"], long("1.0"));
}

#[tokio::test]
async fn a_delayed_event_leaves_when_its_time_has_come() {
    let mut world = world_with("").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{queue}', 'late', delay => '1 h'); select oncely.emit('', '{queue}', 'soon', delay => '100 ms');
             select oncely.emit('', '{queue}', 'now')"
        ),
    )
    .await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.events", 1).await;
    // Without an ordering key there is no order, and both may be due when the relay comes.
    let mut arrived = bodies(&world.broker, &queue).await;
    arrived.sort();
    assert_eq!(arrived, ["now", "soon"]);
    run(&mut world, "update oncely.events set available_at = clock_timestamp()").await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    assert_eq!(bodies(&world.broker, &queue).await, ["late"]);
    world.stop(relay).await;
}

#[tokio::test]
async fn a_relay_without_events_needs_no_broker() {
    let mut world = world_with("").await;
    // Nobody listens there.
    world.urls.rabbitmq = "amqp://guest:guest@127.0.0.1:9/%2f".to_owned();
    run(
        &mut world,
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         values ('acme', gen_random_uuid(), 'mirror', now(), now() + interval '1 day', 'payments', '\\x00112233445566778899aabbccddeeff')",
    )
    .await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    assert!(!relay.output().contains("RabbitMQ"), "{}", relay.output());
    // With one, it says what is missing, and the rest of its work goes on.
    run(&mut world, "select oncely.emit('', 'q', 'x')").await;
    world.wait_for_line(&relay, "cannot publish events; retrying").await;
    run(
        &mut world,
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         values ('acme', gen_random_uuid(), 'mirror', now(), now() + interval '1 day', 'payments', '\\x00112233445566778899aabbccddeeff')",
    )
    .await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    assert_eq!(
        world.count("select attempts::bigint from oncely.events").await,
        0,
        "an outage spends no attempt"
    );
    world.stop(relay).await;
}

#[tokio::test]
async fn many_events_leave_in_many_batches() {
    let mut world = world_with("batch = 100").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    let (first, second) = (world.start_as("relay", "first"), world.start_as("relay", "second"));
    run(
        &mut world,
        &format!("select count(oncely.emit('', '{queue}', n::text)) from generate_series(1, 3000) as n"),
    )
    .await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    let mut numbers: Vec<u32> =
        bodies(&world.broker, &queue).await.iter().map(|n| n.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=3000).collect::<Vec<_>>(), "each once: nothing failed");
    world.stop(first).await;
    world.stop(second).await;
}
