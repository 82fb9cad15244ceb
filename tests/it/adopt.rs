//! An existing queue on its way to Oncely: observed beside its consumer, then taken over.

use std::path::Path;

use lapin::BasicProperties;
use lapin::types::FieldTable;
use serde_json::{Value, json};
use testbed::VirtualHost;

use crate::command_line::stdout;
use crate::support::{World, message, program, servers};

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A queue that is bound to an exchange, as it was before Oncely; and an observer that is configured beside it.
async fn observed(world: &mut World, settings: &str) -> (String, String) {
    let (queue, exchange) = (world.queue("payments"), world.queue("shop"));
    world.broker.declare_exchange(&exchange, lapin::ExchangeKind::Topic).await.unwrap();
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    for key in ["order.*", "refund.#"] {
        world.broker.bind(&queue, &exchange, key).await.unwrap();
    }
    world.consumer("payments", &format!("mode = \"observe\"\n{settings}"));
    (queue, exchange)
}

async fn publish(world: &World, exchange: &str, properties: BasicProperties, body: &str) {
    world.broker.publish(exchange, "order.placed", properties, body.as_bytes()).await.unwrap();
}

async fn report(world: &World) -> (i32, Value) {
    let output = world.oncely(&["adopt", "report", "--consumer", "payments", "-o", "json"]).await;
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).expect("an object"))
}

#[test]
fn a_name_that_ends_as_an_observers_is_an_observers() {
    let refused = |consumer: &str| {
        let text = format!(
            "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[[consumers]]\n{consumer}\n\
             tenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\nhandler = {{ function = \"app.f\" }}\n"
        );
        oncely::config::Config::parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
    };
    assert_eq!(refused("name = \"x\"\nqueue = \"q\"\nmode = \"observe\""), "");
    assert_eq!(refused("name = \"observe\"\nqueue = \"q.observer\""), "");
    for (consumer, place) in [
        ("name = \"x.observe\"\nqueue = \"q\"", "consumers[0].name"),
        ("name = \"x\"\nqueue = \"q.observe\"", "consumers[0].queue"),
        ("name = \"x\"\nqueues = [\"q\", \"r.observe\"]", "consumers[0].queue"),
    ] {
        let told = refused(consumer);
        assert!(
            told.contains(place) && told.contains("must not end with \".observe\""),
            "{consumer}: {told}"
        );
    }
}

#[tokio::test]
async fn an_observer_is_bound_as_the_queue_is_sees_each_message_and_leaves_all_as_it_was() {
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.configure(&format!("[rabbitmq]\nmanagement = {:?}", broker.management_url()));
    // The function is not there yet: it is not called.
    let (queue, exchange) = observed(&mut world, "handler = { function = \"app.later\" }").await;
    world.apply_topology().await;
    let observer = world.start("worker");
    publish(&world, &exchange, message("acme", "k1"), "{\"n\": 1}").await;
    publish(&world, &exchange, message("acme", "k1"), "{\"n\": 1}").await;
    publish(&world, &exchange, message("acme", "k1"), "{\"n\": 2}").await;
    publish(&world, &exchange, message("globex", "k1"), "{\"n\": 1}").await;
    publish(&world, &exchange, message("acme", "k2"), "not JSON").await;
    publish(&world, &exchange, BasicProperties::default(), "{}").await;
    world.broker.publish(&exchange, "refund.eu.late", message("acme", "k2"), b"not JSON").await.unwrap();
    world.wait_for("select count(*) from oncely.audit where outcome = 'observed'", 7).await;
    world.wait_for_ready(&format!("{queue}.observe"), 0).await;
    let (code, object) = report(&world).await;
    assert_eq!(code, 1, "{object}");
    for (name, wanted) in [
        ("schema", json!("oncely.adopt.report/1")),
        ("consumer", json!("payments.observe")),
        ("messages", json!(7)),
        ("keys", json!(3)),
        ("doubles_stopped", json!(2)),
        ("conflicts", json!(1)),
        ("unidentified", json!(1)),
        ("unsure", json!(0)),
        ("verdict", json!("incomplete")),
        ("conflicting_keys", json!([{ "tenant": "acme", "key": "k1", "messages": 1 }])),
    ] {
        assert_eq!(object[name], wanted, "{name}: {object}");
    }
    let output = world.oncely(&["adopt", "report", "--consumer", "payments.observe"]).await;
    assert!(stdout(&output).contains("tenant_missing"), "{}", stdout(&output));
    assert!(told(&output).contains("2 doubles would have been stopped"), "{}", told(&output));
    let status = world.oncely(&["status"]).await;
    assert!(!stdout(&status).contains(" missing"), "it needs no queues around it: {}", stdout(&status));
    // Nothing of it was anybody's business.
    assert_eq!(world.broker.ready(&queue).await.unwrap(), 7, "the old queue has all of its messages");
    for table in ["dead_letters", "mirror_queue", "events", "processed_keys"] {
        assert_eq!(world.count(&format!("select count(*) from oncely.{table}")).await, 0, "{table}");
    }
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
    assert!(world.broker.ready(&format!("{queue}.observe.dead")).await.is_err(), "no dead-letter queue");
    let text = stdout(&world.oncely(&["explain", "k1", "--tenant", "acme"]).await);
    assert!(text.contains("OBSERVED: nothing ran"), "{text}");
    world.stop(observer).await;

    // Whoever takes over has seen nothing yet.
    world.reconfigure("mode = \"observe\"", "declare = false");
    world.reconfigure("app.later", "app.handle");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 3).await;
    world
        .wait_for(
            "select count(*) from oncely.dead_letters where reason in ('key_conflict', 'tenant_missing')",
            2,
        )
        .await;
    world.stop(worker).await;
}

#[tokio::test]
async fn an_observer_that_is_killed_at_every_step_counts_nothing_twice_without_saying_so() {
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.configure(&format!("[rabbitmq]\nmanagement = {:?}", broker.management_url()));
    let exchange = world.queue("shop");
    let bindings =
        format!("bindings = [{{ exchange = {exchange:?}, routing_key = \"order.*\" }}]\nbatch = 50");
    let (_, exchange) = observed(&mut world, &bindings).await;
    world.apply_topology().await;
    let queue = format!("{}.observe", world.queue("payments"));
    let observed = "select count(*) from oncely.audit where outcome = 'observed'";
    let unsure = "select count(*) from oncely.audit where outcome = 'observed' and reason = 'unsure'";
    let (mut keys, mut noted_twice) = (0, 0);
    let steps: Vec<&str> =
        oncely_failpoint::STEPS.iter().copied().filter(|step| step.starts_with("observe.")).collect();
    assert_eq!(steps.len(), 4);
    for step in steps {
        let mut observer = world.start_with("worker", step, &[("FAILPOINT", step.to_owned())]);
        let messages: Vec<_> = (0..50)
            .map(|n| ("order.placed".to_owned(), message("acme", &format!("{step} {n}")), b"{}".to_vec()))
            .collect();
        world.broker.publish_all(&exchange, messages).await.unwrap();
        observer.wait_for_end(std::time::Duration::from_secs(60)).await.unwrap();
        let observer = world.start_as("worker", "surviving");
        keys += 50;
        let all = "select count(*) from oncely.idempotency_keys where consumer = 'payments.observe'";
        world.wait_for(all, keys).await;
        world.wait_for_ready(&queue, 0).await;
        world.stop(observer).await;
        noted_twice = world.count(unsure).await;
        assert_eq!(world.count(observed).await, keys + noted_twice, "{step}");
    }
    assert!(noted_twice > 0, "none was noted and not acknowledged");
    let (code, object) = report(&world).await;
    assert_eq!((code, &object["keys"], &object["doubles_stopped"]), (0, &json!(keys), &json!(0)), "{object}");
    assert_eq!(
        (&object["unsure"], &object["verdict"]),
        (&json!(noted_twice), &json!("unproven")),
        "{object}"
    );
}

#[tokio::test]
async fn a_queue_that_nobody_can_be_bound_like_is_told_what_to_do() {
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "mode = \"observe\"");
    world.broker.declare_queue(&world.queue("payments"), FieldTable::default()).await.unwrap();
    let output = world.oncely(&["topology", "apply"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("rabbitmq.management is not set"), "{}", told(&output));
    world.configure(&format!("[rabbitmq]\nmanagement = {:?}", broker.management_url()));
    let output = world.oncely(&["topology", "apply"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("messages reach it by its name alone"), "{}", told(&output));
    assert!(
        world.broker.ready(&format!("{}.observe", world.queue("payments"))).await.is_err(),
        "it is not declared"
    );
    let (code, object) = report(&world).await;
    assert_eq!((code, &object["messages"], &object["verdict"]), (1, &json!(0), &Value::Null));
}

#[tokio::test]
async fn no_observer_is_bound_to_an_exchange_that_divides_its_messages() {
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.configure(&format!("[rabbitmq]\nmanagement = {:?}", broker.management_url()));
    world.consumer("payments", "mode = \"observe\"");
    let (queue, exchange) = (world.queue("payments"), world.queue("divided"));
    let kind = lapin::ExchangeKind::Custom("x-consistent-hash".to_owned());
    world.broker.declare_exchange(&exchange, kind).await.unwrap();
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // The routing key is a weight.
    world.broker.bind(&queue, &exchange, "1").await.unwrap();
    let observer = format!("{queue}.observe");
    let refused = async |world: &World| {
        let output = world.oncely(&["topology", "apply"]).await;
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        assert!(told(&output).contains("has the type x-consistent-hash"), "{}", told(&output));
        assert!(world.broker.ready(&observer).await.is_err(), "it is not declared");
    };
    refused(&world).await;
    let (code, remarks) = checked(&world).await;
    assert_eq!(code, 1);
    assert!(
        remarks.iter().any(|(level, found)| level == "must" && found.contains("x-consistent-hash")),
        "{remarks:?}"
    );
    // Named by hand it is no better.
    let named =
        format!("mode = \"observe\"\nbindings = [{{ exchange = {exchange:?}, routing_key = \"1\" }}]");
    world.reconfigure("mode = \"observe\"", &named);
    refused(&world).await;
    for n in 0..40 {
        world
            .broker
            .publish(&exchange, &format!("{n}"), message("acme", &format!("k{n}")), b"{}")
            .await
            .unwrap();
    }
    world.wait_for_ready(&queue, 40).await;
}

#[tokio::test]
async fn a_consumer_in_python_with_a_backlog_is_taken_over_back_and_over_again_while_all_are_killed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    let target = std::fs::canonicalize(target).unwrap();
    let python = testbed::python(&root.join("examples/python"), &target.join("examples/python")).unwrap();
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let management = broker.management_url();
    let programs = program("oncely").parent().unwrap().to_path_buf();
    let report = testbed::adopt(&programs, root, python, &urls, &management, 2_000, 17).await.unwrap();
    assert!(report.is_good(), "{report:#?}");
    assert_eq!((report.sent.unsure, report.verdict.as_str()), (0, "incomplete"));
    assert!(report.kills >= 4 && report.seeded > 0, "{report:#?}");
}

/// What `oncely adopt check` says: its exit code, and each remark's level with what was found.
async fn checked(world: &World) -> (i32, Vec<(String, String)>) {
    let output = world.oncely(&["adopt", "check", "--consumer", "payments", "-o", "json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let text = |remark: &Value, name: &str| remark[name].as_str().unwrap().to_owned();
    let remarks = object["remarks"].as_array().unwrap().iter();
    let remarks = remarks.map(|remark| (text(remark, "level"), text(remark, "found")));
    (output.status.code().unwrap(), remarks.collect())
}

#[tokio::test]
async fn what_a_queue_lacks_is_told_and_the_guides_policy_mends_it() {
    let broker = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = broker.url();
    let mut world = World::on(urls).await;
    world.configure(&format!("[rabbitmq]\nmanagement = {:?}", broker.management_url()));
    world.consumer("payments", "declare = true");
    let queue = world.queue("payments");
    let (code, remarks) = checked(&world).await;
    assert_eq!((code, remarks.len()), (0, 1), "it is not there: {remarks:?}");
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-priority".into(), lapin::types::AMQPValue::LongInt(5));
    world.broker.declare_queue(&queue, arguments).await.unwrap();
    world.broker.publish("", &queue, message("acme", "waits"), b"{}").await.unwrap();
    let (code, remarks) = checked(&world).await;
    let has = |remarks: &[(String, String)], level: &str, said: &str| {
        remarks.iter().any(|(found_level, found)| found_level == level && found.contains(said))
    };
    assert_eq!(code, 1, "{remarks:?}");
    for (level, said) in [
        ("fine", "1 message ready"),
        ("fine", "classic, durable true"),
        ("must", "no dead-letter exchange"),
        ("must", "not as Oncely would declare it"),
        ("note", "bound to no exchange"),
    ] {
        assert!(has(&remarks, level, said), "{level} {said}: {remarks:?}");
    }
    // The guide's policy, by the HTTP API.
    world.reconfigure("declare = true", "declare = false");
    let definition = format!("{{\"dead-letter-exchange\": \"{queue}.dlx\"}}");
    let pattern = format!("^{queue}$");
    broker.policy("dlx", Some((&pattern, &definition))).await.unwrap();
    world.apply_topology().await;
    testbed::eventually("the policy holds", || async {
        let (code, remarks) = checked(&world).await;
        if code == 0 && has(&remarks, "fine", "goes to") { Ok(()) } else { Err(remarks) }
    })
    .await
    .unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where key = 'waits'", 1).await;
    let (_, remarks) = checked(&world).await;
    assert!(has(&remarks, "note", "1 subscription"), "{remarks:?}");
    world.stop(worker).await;
}
