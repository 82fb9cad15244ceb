//! `oncely`, as an operator uses it.

use serde_json::Value;

use crate::support::{World, message};

pub(crate) fn stdout(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn migrations() -> usize {
    oncely_postgres::MIGRATOR.iter().filter(|migration| migration.migration_type.is_up_migration()).count()
}

#[tokio::test]
async fn migrate_applies_and_shows_and_does_nothing_twice() {
    let mut world = World::new().await;
    let empty = testbed::Database::create(&world.urls.postgres).await.unwrap();
    world.database = empty;
    let info = world.oncely(&["migrate", "info"]).await;
    assert_eq!(info.status.code(), Some(1), "pending");
    assert!(stdout(&info).contains("pending"));
    let run = world.oncely(&["migrate"]).await;
    assert!(run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains(&format!("applied {} migrations", migrations())));
    let again = world.oncely(&["migrate", "run"]).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to do"));
    assert!(world.oncely(&["migrate", "info"]).await.status.success());
}

#[tokio::test]
async fn every_verb_says_what_to_run_on_a_database_without_the_migrations() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.database = testbed::Database::create(&world.urls.postgres).await.unwrap();
    for arguments in [&["status"][..], &["explain", "k"], &["gc", "run"]] {
        let output = world.oncely(arguments).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{arguments:?}: {text}");
        assert!(
            text.contains(&format!("{} migrations are not applied", migrations()))
                && text.contains("run `oncely migrate`"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn check_reports_configuration_and_servers_in_one_go() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[relay]\nbacth = 1");
    let output = world.oncely(&["check"]).await;
    assert_eq!(output.status.code(), Some(78));
    let text = stdout(&output);
    assert!(text.contains("✗ relay.bacth: unknown key; did you mean batch?"), "{text}");
    assert!(text.contains("✗ consumers.payments.queue: missing at"), "{text}");
    assert!(text.contains("✓ PostgreSQL"), "{text}");
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let output = world.oncely(&["check", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &object["schema"]), (Some(0), &Value::from("oncely.check/1")));
    assert_eq!(object["problems"], Value::Array(vec![]));
}

#[tokio::test]
async fn an_unreachable_server_exits_3_and_shows_no_password() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.urls.rabbitmq = "amqp://someone:tops3cret@127.0.0.1:1/%2f".to_owned();
    let output = world.oncely(&["check"]).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("! not reached: RabbitMQ at amqp://someone:***@127.0.0.1:1"), "{text}");
    assert!(!text.contains("tops3cret"), "{text}");
    let output = world.oncely(&["topology", "show"]).await;
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn topology_is_applied_twice_without_harm_and_a_foreign_queue_is_left_alone() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.apply_topology().await;
    assert!(world.oncely(&["topology", "show"]).await.status.success());
    let mut other = World::new().await;
    other.consumer("payments", "");
    other.broker.declare_queue(&other.queue("payments"), lapin::types::FieldTable::default()).await.unwrap();
    let output = other.oncely(&["topology", "apply"]).await;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("exists, and can't be declared as configured"), "{text}");
}

#[tokio::test]
async fn what_the_broker_refuses_to_declare_is_told_with_what_is_there() {
    let mut world = World::new().await;
    let exchange = world.queue("orders");
    world.consumer("payments", &format!("bindings = [{{ exchange = \"{exchange}\", routing_key = \"x\" }}]"));
    world.consumer("ledger", "queue_arguments = { x-max-priority = 1000 }");
    let output = world.oncely(&["topology", "apply"]).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("can't be made, because there is no exchange {exchange}")), "{told}");
    let queue = world.queue("ledger");
    assert!(told.contains(&format!("queue {queue} does not exist, and the broker does not take")), "{told}");
    assert!(!told.contains("exists, and can't") && !told.contains("delete it"), "{told}");
}

/// A world with a completed, a conflicting, a failed and a listed duplicate message.
pub(crate) async fn lived_in() -> World {
    let mut world = World::new().await;
    // The trail begins with its first partition: there is a span to be sealed, even on a Monday at midnight.
    sqlx::query("select oncely.make_audit_partition(now() - interval '1 week')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    world.with_redis(&world.urls.redis.clone(), "");
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "order-1"), r#"{"amount": 1}"#).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    // One after the other, so that they are always listed in this order.
    let others =
        [("acme", r#"{"amount": 1}"#), ("acme", r#"{"amount": 2}"#), ("globex", r#"{"do": "reject"}"#)];
    for (decided, (tenant, payload)) in (2..).zip(others) {
        world.publish("payments", message(tenant, "order-1"), payload).await;
        world.wait_for("select count(*) from oncely.audit", decided).await;
    }
    world.stop(worker).await;
    world.stop(relay).await;
    world
}

#[tokio::test]
async fn explain_tells_the_whole_story_of_a_key() {
    let world = lived_in().await;
    let output = world.oncely(&["explain", "order-1"]).await;
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "payments · tenant acme · key order-1",
        "COMPLETED: it took effect, once. 1 message came with this key and ANOTHER payload.",
        "protected until",
        "mirror     present, of this epoch",
        "duplicate, not run: mirror knew it",
        "dead_lettered, key_conflict",
        "payments · tenant globex · key order-1",
        "FAILED: given up after 1 attempt, reason handler_rejected",
        "no such account",
        r#"response   {"done":"order-1"}"#,
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let one = world.oncely(&["explain", "order-1", "--tenant", "globex", "--json"]).await;
    let object: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(object["schema"], "oncely.explain/1");
    assert_eq!(object["identities"].as_array().unwrap().len(), 1);
    assert_eq!(object["identities"][0]["key"]["status"], "FAILED");
    let unknown = world.oncely(&["explain", "never-seen"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stdout(&unknown).contains("nothing is known"), "{}", stdout(&unknown));
}

#[tokio::test]
async fn a_key_that_was_claimed_and_left_is_explained_with_and_without_its_tenant() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    // In autocommit: no decision, so nothing in the trail.
    sqlx::query("select oncely.claim('acme', 'invoices', 'left', null)::text")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let identities = async |arguments: &[&str]| {
        let output = world.oncely(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", stdout(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["identities"].clone()
    };
    let named = identities(&["explain", "left", "--tenant", "acme", "--json"]).await;
    assert_eq!(named[0]["key"]["reason"], "incomplete_claim");
    assert_eq!(identities(&["explain", "left", "--json"]).await, named);
}

#[tokio::test]
async fn explain_folds_what_is_equal_and_shows_traces_and_requeues() {
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "batch = 1\nlanes = 1");
    world.apply_topology().await;
    let worker = world.start("worker");
    let mut headers = message("acme", "k").headers().clone().unwrap();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    headers.insert("traceparent".into(), lapin::types::AMQPValue::LongString(parent.into()));
    world.publish("payments", message("acme", "k").with_headers(headers), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    sqlx::query("create or replace function app.handle(message oncely.message) returns jsonb language sql as 'select null::jsonb'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    let requeued = world.oncely(&["failed", "requeue", "--key", "k", "--yes"]).await;
    assert!(requeued.status.success(), "{}", String::from_utf8_lossy(&requeued.stderr));
    world.wait_for("select count(*) from oncely.audit where outcome = 'completed'", 1).await;
    for _ in 0..30 {
        world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    }
    world
        .wait_for("select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'postgres'", 30)
        .await;
    world.stop(worker).await;
    let text = stdout(&world.oncely(&["explain", "k"]).await);
    for part in [
        "30 × duplicate, not run: postgres knew it",
        "trace 0af7651916cd43dd8448eb211c80319c",
        "handler_rejected: requeued since",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(text.matches("duplicate, not run").count(), 1, "{text}");
}

#[tokio::test]
async fn audit_list_filters_by_everything() {
    let world = lived_in().await;
    let rows = async |arguments: &[&str]| -> Vec<Value> {
        let mut all = vec!["audit", "list", "--json"];
        all.extend(arguments);
        let output = world.oncely(&all).await;
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["schema"], "oncely.audit/1");
        object["rows"].as_array().unwrap().clone()
    };
    assert_eq!(rows(&[]).await.len(), 4);
    assert_eq!(rows(&["--tenant", "globex"]).await.len(), 1);
    assert_eq!(rows(&["--consumer", "payments", "--key", "order-1"]).await.len(), 4);
    assert_eq!(rows(&["--consumer", "nobody"]).await.len(), 0);
    assert_eq!(rows(&["--outcome", "dead_lettered"]).await.len(), 2);
    assert_eq!(rows(&["--reason", "key_conflict"]).await[0]["tenant"], "acme");
    assert_eq!(rows(&["--since", "1h"]).await.len(), 4);
    assert_eq!(rows(&["--until", "1h"]).await.len(), 0);
    assert_eq!(rows(&["--limit", "1"]).await.len(), 1);
    let table = stdout(&world.oncely(&["audit", "list", "--outcome", "completed", "--utc"]).await);
    assert!(table.contains("TENANT") && table.contains("order-1") && table.contains("Z "), "{table}");
}

#[tokio::test]
async fn status_shows_servers_queues_events_and_recent_outcomes() {
    let world = lived_in().await;
    let output = world.oncely(&["status"]).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(5), "nobody consumes the queue: {text}");
    for part in [
        "✓ PostgreSQL",
        "✓ RabbitMQ",
        "✓ Redis",
        "mirror queue empty",
        "1 given up",
        "key_conflict",
        "dead_lettered",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("guest:guest"));
    let object: Value = serde_json::from_slice(&world.oncely(&["status", "--json"]).await.stdout).unwrap();
    assert_eq!(object["schema"], "oncely.status/2");
    assert_eq!(object["queues"][0]["dead"], 2);
}

#[tokio::test]
async fn keys_with_control_characters_cannot_move_the_cursor() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "evil\u{1b}[2J"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    for arguments in [&["audit", "list"][..], &["explain", "evil\u{1b}[2J"]] {
        let text = stdout(&world.oncely(arguments).await);
        assert!(text.contains("evil\\u{1b}[2J") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[tokio::test]
async fn a_migration_is_taken_back_where_somebody_agrees() {
    let world = World::new().await;
    let refused = world.oncely(&["migrate", "revert"]).await;
    assert_eq!(refused.status.code(), Some(4), "nobody agreed");
    let last = oncely_postgres::MIGRATOR.iter().rfind(|m| m.migration_type.is_up_migration()).unwrap();
    let reverted = world.oncely(&["migrate", "revert", "--yes"]).await;
    assert!(reverted.status.success(), "{}", String::from_utf8_lossy(&reverted.stderr));
    let info = world.oncely(&["migrate", "info"]).await;
    let pending: Vec<String> =
        stdout(&info).lines().filter(|line| line.contains("pending")).map(str::to_owned).collect();
    assert!(pending.len() == 1 && pending[0].contains(&last.version.to_string()), "{pending:?}");
    assert!(world.oncely(&["migrate"]).await.status.success());
    assert!(world.oncely(&["migrate", "info"]).await.status.success());
}

#[tokio::test]
async fn check_asks_of_each_login_only_what_its_role_needs() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let login = |role: &str| format!("{role}_{}", uuid::Uuid::new_v4().simple());
    sqlx::raw_sql("revoke all on schema app from public").execute(&mut world.sql).await.unwrap();
    for role in ["relay", "operator", "auditor", "worker"] {
        let name = login(role);
        let create = format!("create role {name} login; grant oncely_{role} to {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut world.sql).await.unwrap();
        let mut url: url::Url = world.database.url().parse().unwrap();
        url.set_username(&name).unwrap();
        let environment = [("DATABASE_URL", url.as_str())];
        let checked = world.oncely_with(&["check"], &environment).await;
        let told = stdout(&checked);
        assert!(told.contains(&format!("checked as: {role}")), "{told}");
        // A worker's login must see the application's schema.
        let wanted = if role == "worker" { 78 } else { 0 };
        assert_eq!(checked.status.code(), Some(wanted), "{role}: {told}");
        let other = if role == "relay" { "operator" } else { "relay" };
        let more = world.oncely_with(&["check", "--as", other], &environment).await;
        let told = stdout(&more);
        assert_eq!(more.status.code(), Some(78), "{told}");
        assert!(told.contains(&format!("grant oncely_{other} to {name}")), "{told}");
        if role == "worker" {
            sqlx::raw_sql("grant usage on schema app to public; revoke execute on all functions in schema app from public")
                .execute(&mut world.sql)
                .await
                .unwrap();
            let told = stdout(&world.oncely_with(&["check"], &environment).await);
            assert!(told.contains("grant execute on function app.handle(oncely.message) to"), "{told}");
            sqlx::raw_sql("grant execute on all functions in schema app to public")
                .execute(&mut world.sql)
                .await
                .unwrap();
            let checked = world.oncely_with(&["check"], &environment).await;
            assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
        }
        let revoke = format!("revoke oncely_{role} from {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(revoke)).execute(&mut world.sql).await.unwrap();
        let none = world.oncely_with(&["check"], &environment).await;
        assert_eq!(none.status.code(), Some(78));
        assert!(stdout(&none).contains("may not enter the schema oncely"), "{}", stdout(&none));
        let drop = format!("drop role {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut world.sql).await.unwrap();
    }
}

#[tokio::test]
async fn one_program_is_worker_and_relay_too() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start_verb("oncely", &["worker"], "worker", &[]);
    let relay = world.start_verb("oncely", &["relay"], "relay", &[]);
    world.publish("payments", message("acme", "order-1"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for("select count(*) from oncely.processes where kind in ('worker', 'relay')", 2).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(*) from oncely.processes").await, 0, "both have said good-bye");
}
