//! What the doctor says of a broker: by AMQP, and by its HTTP API.

use lapin::types::{AMQPValue, FieldTable};
use oncely::config::Config;
use oncely_doctor::{CheckSelection, Limits, Verdict};
use secrecy::SecretString;
use testbed::{RabbitMq, Urls, VirtualHost};

use super::{all, of, only, says};
use crate::support::{World, message, servers};

/// Some work queue with bindings, declared.
async fn world() -> World {
    let mut world = World::new().await;
    let exchange = world.queue("orders");
    world.broker.declare_exchange(&exchange, lapin::ExchangeKind::Topic).await.unwrap();
    world.consumer(
        "payments",
        &format!("bindings = [{{ exchange = {exchange:?}, routing_key = \"order.*\" }}]"),
    );
    world.apply_topology().await;
    world
}

async fn is(config: &Config, check: &str, verdict: Verdict, part: &str) {
    says(config, &only(check, Limits::default()), check, verdict, part).await;
}

#[tokio::test]
async fn what_is_missing_around_a_queue_is_told_by_the_check_of_its_part() {
    let world = world().await;
    let config = world.config();
    let queue = world.queue("payments");
    for check in ["mq.queue", "mq.dlq", "mq.dlx", "mq.retry", "mq.bindings", "mq.user", "mq.alarms"] {
        is(&config, check, Verdict::Ok, "").await;
    }
    for (gone, check, verdict) in [
        (queue.clone(), "mq.queue", Verdict::Error),
        (format!("{queue}.dead"), "mq.dlq", Verdict::Error),
        (format!("{queue}.retry.100ms"), "mq.retry", Verdict::Error),
    ] {
        world.broker.delete_queue(&gone).await.unwrap();
        is(&config, check, verdict, &format!("queues {gone}; run `oncely topology apply`")).await;
        world.apply_topology().await;
        is(&config, check, Verdict::Ok, "").await;
    }
    for (gone, check, verdict) in [
        (format!("{queue}.dlx"), "mq.dlx", Verdict::Error),
        (format!("{queue}.return"), "mq.retry", Verdict::Error),
        (world.queue("orders"), "mq.bindings", Verdict::Error),
    ] {
        world.broker.delete_exchange(&gone).await.unwrap();
        is(&config, check, verdict, &gone).await;
        if check == "mq.bindings" {
            world.broker.declare_exchange(&gone, lapin::ExchangeKind::Topic).await.unwrap();
        }
        world.apply_topology().await;
        is(&config, check, Verdict::Ok, "").await;
    }
    // A dead-letter queue that forgets.
    world.broker.delete_queue(&format!("{queue}.dead")).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(60_000));
    world.broker.declare_queue(&format!("{queue}.dead"), arguments).await.unwrap();
    is(&config, "mq.dlq", Verdict::Error, "not as Oncely declares it").await;
}

#[tokio::test]
async fn messages_that_nobody_takes_are_told() {
    let mut world = world().await;
    let config = world.config();
    is(&config, "mq.consumers", Verdict::Ok, "").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    is(&config, "mq.consumers", Verdict::Error, "1 messages wait in").await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    is(&config, "mq.consumers", Verdict::Ok, "").await;
    world.stop(worker).await;
}

/// A virtual host of a broker with its HTTP API, and a worker's world on it.
async fn managed() -> (VirtualHost, World, Config) {
    let broker = VirtualHost::create().await.unwrap();
    let (world, config) = managed_at(broker.url(), broker.management_url()).await;
    (broker, world, config)
}

async fn managed_at(rabbitmq: String, management: String) -> (World, Config) {
    let urls = Urls { rabbitmq, ..servers().await.urls().clone() };
    let mut world = World::on(urls).await;
    world.broker.declare_exchange("orders", lapin::ExchangeKind::Topic).await.unwrap();
    world.consumer(
        "payments",
        "queue_type = \"quorum\"\nbindings = [{ exchange = \"orders\", routing_key = \"order.*\" }]",
    );
    world.apply_topology().await;
    let mut config = world.config();
    config.rabbitmq.management = Some(SecretString::from(management));
    (world, config)
}

#[tokio::test]
async fn a_run_under_a_lease_fits_twice_into_the_consumer_timeout_with_two_minutes() {
    let broker = VirtualHost::create().await.unwrap();
    let urls = Urls { rabbitmq: broker.url(), ..servers().await.urls().clone() };
    let mut world = World::on(urls).await;
    // RabbitMQ 4.3 refuses the argument on a classic queue, where it has no effect.
    world.consumer("charges", "queue_type = \"quorum\"\nqueue_arguments = { x-consumer-timeout = 1120000 }");
    world.apply_topology().await;
    let mut config = world.config();
    config.rabbitmq.management = Some(SecretString::from(broker.management_url()));
    // A SQL function takes no lease.
    is(&config, "mq.limits", Verdict::Ok, "").await;
    config.consumers[0].handler = None;
    is(&config, "mq.limits", Verdict::Info, "if the handler runs under leases: ").await;
    config.consumers[0].lease.max_run = std::time::Duration::from_secs(501);
    is(&config, "mq.limits", Verdict::Warning, "may take 8m 21s (lease.max_run), twice that and two minutes")
        .await;
    config.consumers[0].lease.max_run = std::time::Duration::from_secs(500);
    is(&config, "mq.limits", Verdict::Ok, "").await;
}

#[tokio::test]
async fn policies_limits_and_ways_are_read_from_the_http_api() {
    let (broker, world, config) = managed().await;
    let queue = world.queue("payments");
    for (check, verdict) in
        [("mq.policies", Verdict::Ok), ("mq.limits", Verdict::Ok), ("mq.routes", Verdict::Ok)]
    {
        is(&config, check, verdict, "").await;
    }
    let is_old = broker.version().await.unwrap().starts_with("3.");
    match is_old {
        // "mq.version", Verdict::Ok is what a newer one gets, and the release beside it is tested, too.
        true => is(&config, "mq.version", Verdict::Info, "without community support").await,
        false => is(&config, "mq.version", Verdict::Ok, "").await,
    }
    let all_queues = format!("^{queue}(\\.dead)?$");
    for (definition, check, verdict, part) in [
        (r#"{"message-ttl": 60000}"#, "mq.policies", Verdict::Error, "message-ttl 60000"),
        (r#"{"expires": 3600000}"#, "mq.policies", Verdict::Error, "expires 3600000"),
        (r#"{"max-length": 10}"#, "mq.policies", Verdict::Error, ".dead (max-length 10, overflow drop-head)"),
        (
            r#"{"max-length": 10, "overflow": "reject-publish"}"#,
            "mq.policies",
            Verdict::Warning,
            "publishers and copies wait when it is full",
        ),
        (r#"{"delivery-limit": 20}"#, "mq.limits", Verdict::Warning, "a delivery limit of 20"),
        (r#"{"delivery-limit": 20}"#, "mq.dlq", Verdict::Error, "after so many a dead letter vanishes"),
        (r#"{"consumer-timeout": 60000}"#, "mq.limits", Verdict::Warning, "a consumer timeout of 1m"),
    ] {
        // A broker of 3.10 does not know the policy.
        let set = broker.policy("bad", Some((&all_queues, definition))).await;
        if set.is_err() && definition.contains("consumer-timeout") && is_old {
            continue;
        }
        set.unwrap();
        is(&config, check, verdict, part).await;
        broker.policy("bad", None).await.unwrap();
        is(&config, check, Verdict::Ok, "").await;
    }
    for (bound, source, key, part) in [
        (format!("{queue}.dead"), format!("{queue}.dlx"), "", ".dlx: run `oncely topology apply`"),
        (queue.clone(), format!("{queue}.return"), "", ".return: run `oncely topology apply`"),
        (
            queue.clone(),
            "orders".to_owned(),
            "order.*",
            "is not bound to orders with the routing key \"order.*\"",
        ),
    ] {
        world.broker.unbind(&bound, &source, key).await.unwrap();
        is(&config, "mq.routes", Verdict::Error, part).await;
        world.apply_topology().await;
        is(&config, "mq.routes", Verdict::Ok, "").await;
    }
}

#[tokio::test]
async fn a_queue_that_somebody_else_declares_is_judged_by_the_http_api() {
    let (broker, mut world, _) = managed().await;
    world.consumer("foreign", "declare = false\nqueue_type = \"classic\"");
    let queue = world.queue("foreign");
    let mut config = world.config();
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    world.apply_topology().await;
    is(&config, "mq.queue", Verdict::Skipped, "the arguments of queues with declare = false").await;
    config.rabbitmq.management = Some(SecretString::from(broker.management_url()));
    is(&config, "mq.queue", Verdict::Ok, "").await;
    is(&config, "mq.dlx", Verdict::Error, "is none: what the broker gives up").await;
    world.broker.delete_queue(&queue).await.unwrap();
    let mut arguments = FieldTable::default();
    let exchange = format!("{queue}.dlx");
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(exchange.as_str().into()));
    world.broker.declare_queue(&queue, arguments).await.unwrap();
    world.apply_topology().await;
    is(&config, "mq.dlx", Verdict::Ok, "").await;
    world.broker.delete_queue(&queue).await.unwrap();
    let transient = lapin::options::QueueDeclareOptions {
        auto_delete: true,
        ..lapin::options::QueueDeclareOptions::durable()
    };
    world
        .broker
        .channel()
        .queue_declare(queue.as_str().into(), transient, FieldTable::default())
        .await
        .unwrap();
    is(&config, "mq.queue", Verdict::Error, "is auto-delete").await;
}

#[tokio::test]
async fn an_alarm_a_user_without_permissions_and_one_without_the_api_are_told() {
    // An alarm is the whole broker's.
    let broker = RabbitMq::start_with_management().await.unwrap();
    let (world, mut config) = managed_at(broker.url(), broker.management_url().unwrap()).await;
    for arguments in [
        &["add_user", "narrow", "S3CR3T"][..],
        &["set_permissions", "narrow", "^$", "^$", ".*"],
        &["add_user", "plain", "S3CR3T"],
        &["set_permissions", "plain", ".*", ".*", ".*"],
    ] {
        broker.ctl(arguments).await.unwrap();
    }
    let guest = config.rabbitmq.url.clone();
    let other =
        |user: &str| SecretString::from(broker.url().replace("guest:guest", &format!("{user}:S3CR3T")));
    config.rabbitmq.url = other("narrow");
    is(&config, "mq.user", Verdict::Error, "may not publish to").await;
    let as_relay =
        CheckSelection { role: Some(oncely_doctor::Role::Relay), ..only("mq.user", Limits::default()) };
    says(&config, &as_relay, "mq.user", Verdict::Skipped, "may not publish to").await;
    config.rabbitmq.url = SecretString::from(broker.url().replace("guest:guest", "guest:S3CR3T"));
    is(&config, "mq.reach", Verdict::Error, "is refused").await;
    // Its own user in management, then the broker's, which has not the tag.
    config.rabbitmq.url = other("plain");
    is(&config, "mq.routes", Verdict::Ok, "").await;
    config.rabbitmq.management = config.rabbitmq.management.map(|url| {
        SecretString::from(secrecy::ExposeSecret::expose_secret(&url).replace("guest:guest@", ""))
    });
    is(&config, "mq.routes", Verdict::Skipped, "refuses the user (status 401)").await;
    config.rabbitmq.management = Some(SecretString::from("http://127.0.0.1:1"));
    is(&config, "mq.routes", Verdict::Skipped, "the HTTP API: ").await;
    config.rabbitmq.url = guest;
    broker.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await.unwrap();
    is(&config, "mq.alarms", Verdict::Error, "the broker takes no messages").await;
    let report = all(&config).await;
    assert!(!format!("{report:?}").contains("S3CR3T"), "{report:?}");
    assert_eq!(of(&report, "mq.queue").verdict, Verdict::Ok, "looking is not publishing: {report:#?}");
    broker.ctl(&["set_vm_memory_high_watermark", "0.9"]).await.unwrap();
    is(&config, "mq.alarms", Verdict::Ok, "").await;
    drop(world);
}

#[tokio::test]
async fn looking_leaves_nothing_behind() {
    let world = world().await;
    let queue = world.queue("payments");
    // A binding that is missing is no reason to make one.
    world.broker.unbind(&format!("{queue}.dead"), &format!("{queue}.dlx"), "").await.unwrap();
    all(&world.config()).await;
    let lost = world.broker.publish(&format!("{queue}.dlx"), "", message("acme", "k"), b"{}").await;
    assert!(lost.unwrap_err().to_string().contains("found no queue"));
    for name in [queue.clone(), format!("{queue}.dead"), format!("{queue}.retry.100ms")] {
        assert_eq!(world.broker.ready(&name).await.unwrap(), 0, "{name}");
    }
}
