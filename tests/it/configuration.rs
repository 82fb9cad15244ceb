//! Bad configurations are refused with everything that is wrong, at once, without a secret.

use std::process::Command;

use oncely::config::{Config, DEFAULTS};

use crate::support::{World, message, program};

#[test]
fn the_shipped_defaults_are_valid_and_name_every_default() {
    let urls = "[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n";
    let shipped = DEFAULTS
        .replace("[postgres]\n", "[postgres]\nurl = \"postgres://u@localhost/d\"\n")
        .replace("[rabbitmq]\n", "[rabbitmq]\nurl = \"amqp://localhost\"\n")
        .replace("[redis]\n", "[redis]\nurl = \"redis://localhost\"\n");
    let consumer = "[[consumers]]\nname = \"payments\"\nqueue = \"payments\"\ntenant = { header = \"x-tenant-id\" }\n\
                    key = { property = \"message_id\" }\nhandler = { function = \"app.capture_payment\" }\n";
    let bare = format!("{urls}[redis]\nurl = \"redis://localhost\"\n{consumer}");
    let mut shipped = Config::parse(&shipped).unwrap();
    let mut bare = Config::parse(&bare).unwrap();
    // The one key whose absence is not its default: a consumer without it follows [mirror].
    shipped.consumers[0].precheck = None;
    for config in [&mut shipped, &mut bare] {
        config.worker.name = String::new();
    }
    // The schedule's debug text differs by how it was built; its expression says it all.
    let show = |config: &Config| {
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            config.cell,
            config.postgres,
            config.rabbitmq,
            config.mirror,
            config.worker,
            config.relay,
            config.gc.expression,
            config.gc.batch,
            config.gc.load,
            config.audit,
            config.dead_letters,
            config.events,
            config.consumers
        ) + &format!("{:?} {:?}", config.log, config.traces)
    };
    assert_eq!(show(&shipped), show(&bare));
}

const BAD: &str = r#"
colour = "red"

[postgres]
url = "postgres://user:tops3cret@"
lock_timeout = "1h"
statement_timeout = 30

[rabbitmq]
url = "http://guest:tops3cret@localhost/"
heartbeet = "10s"

[redis]
url = "tops3cret"

[mirror]
precheck = "sometimes"
key = "short"

[gc]
schedule = "0 0 31 2 *"

[[consumers]]
name = "payments"
queue = "q"
tenant = { heder = "x" }
key = { routing_key = 0 }
handler = { function = "capture; drop table x" }
retention = "1h"
batch = 0

[[consumers]]
name = "payments"
queue = "q"
tenant = "queue"
key = "body_hash"
retention = "1h"
retry = { delays = [], max_attempts = 3 }
"#;

#[tokio::test]
async fn everything_that_is_wrong_is_reported_at_once_without_secrets() {
    let mut world = World::new().await;
    world.configure(BAD);
    for name in ["worker", "relay"] {
        let output =
            Command::new(program(name)).env_clear().arg("--config").arg(world.file()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{name}: {text}");
        for place in [
            "colour: unknown key",
            "postgres.url:",
            "postgres.statement_timeout: must be a duration with its unit",
            "postgres.lock_timeout: must not be longer than statement_timeout",
            "rabbitmq.url:",
            "rabbitmq.heartbeet: unknown key; did you mean heartbeat?",
            "redis.url:",
            "mirror.precheck: must be one of",
            "mirror.key:",
            "gc.schedule:",
            "consumers[0].tenant.heder: unknown key; did you mean header?",
            "consumers[0].key.routing_key:",
            "consumers[0].handler.function:",
            "consumers[0].batch: must be a whole number from 1 to 4096",
            "consumers[1].retry.delays:",
            "consumers.payments.retention: 1h is shorter than the redelivery horizon 1day",
        ] {
            assert!(text.contains(place), "{name}: no {place:?} in {text}");
        }
        assert!(!text.contains("tops3cret"), "{text}");
    }
}

#[tokio::test]
async fn a_worker_refuses_what_the_servers_do_not_hold() {
    let mut world = World::new().await;
    world.consumer("payments", "handler = { function = \"app.nobody\" }");
    world.configure("[cell]\nname = \"eu-1\"");
    let mut worker = world.start("worker");
    let status = worker.wait_for_end(std::time::Duration::from_secs(30)).await.unwrap();
    let text = worker.output();
    assert_eq!(status.code(), Some(78), "{text}");
    assert!(text.contains("cell.name") && text.contains("\"main\", not \"eu-1\""), "{text}");
    assert!(!text.contains("guest:guest"), "{text}");
}

#[tokio::test]
async fn a_worker_waits_for_what_can_be_made_while_it_runs_and_names_it() {
    let mut world = World::new().await;
    world.consumer("payments", "handler = { function = \"app.nobody\" }");
    let worker = world.start("worker");
    world.wait_for_line(&worker, "there is no function app.nobody(oncely.message)").await;
    world.wait_for_line(&worker, &format!("queues {}", world.queue("payments"))).await;
    world.wait_for_line(&worker, &format!("exchanges {}.dlx", world.queue("payments"))).await;
    let text = worker.output();
    assert!(!text.contains("guest:guest"), "{text}");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_handler_of_another_form_or_result_is_refused_with_what_it_must_be() {
    for (handler, expected) in [
        (
            "{ function = \"app.mute\", batch = true }",
            "app.mute(oncely.message[]) returns void, and must return setof oncely.result",
        ),
        ("{ function = \"app.handle\", batch = true }", "but app.handle(oncely.message): set batch = false"),
        ("{ function = \"app.handle_batch\" }", "but app.handle_batch(oncely.message[]): set batch = true"),
    ] {
        let mut world = World::new().await;
        world.consumer("payments", &format!("handler = {handler}"));
        let output = world.oncely(&["check"]).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn a_missing_dead_letter_exchange_alone_is_waited_for() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let exchange = format!("{}.dlx", world.queue("payments"));
    world
        .broker
        .channel()
        .exchange_delete(exchange.as_str().into(), lapin::options::ExchangeDeleteOptions::default())
        .await
        .unwrap();
    let worker = world.start("worker");
    world.wait_for_line(&worker, &format!("exchanges {exchange}; run `oncely topology apply`")).await;
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_database_without_the_migrations_is_waited_for_with_the_command_to_run() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let empty = testbed::Database::create(&world.urls.postgres).await.unwrap();
    let worker = world.start_with("worker", "worker", &[("DATABASE_URL", empty.url().to_owned())]);
    world.wait_for_line(&worker, "run `oncely migrate`").await;
    world.stop(worker).await;
    empty.drop_now().await.unwrap();
}

#[test]
fn the_environment_overrides_the_file_and_is_checked_like_it() {
    let output = Command::new(program("worker"))
        .env_clear()
        .env("ONCELY_MIRROR__TTTL", "1h")
        .env("ONCELY_RELAY__BATCH", "0")
        .args(["--config", "/does/not/exist.toml"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("/does/not/exist.toml: cannot be read"), "{text}");
    let scratch = testbed::Scratch::new("config").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::write(&file, "[relay]\nbatch = 7\n").unwrap();
    let output = Command::new(program("worker"))
        .env_clear()
        .env("ONCELY_MIRROR__TTTL", "1h")
        .env("ONCELY_RELAY__BATCH", "0")
        .env("ONCELY_CONFIG", &file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("mirror.tttl: unknown key; did you mean ttl?"), "{text}");
    assert!(text.contains("relay.batch: must be a whole number from 1 to 10000"), "{text}");
}

#[test]
fn wrong_usage_exits_2() {
    for name in ["worker", "relay", "oncely"] {
        let output = Command::new(program(name)).arg("--nonsense").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
}

#[test]
fn a_toml_error_shows_its_place_and_not_the_line() {
    let scratch = testbed::Scratch::new("config").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::write(&file, "[postgres]\nurl = \"postgres://u:tops3cret@localhost/d\n").unwrap();
    let output = Command::new(program("worker")).env_clear().env("ONCELY_CONFIG", &file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("is not TOML") && text.contains("line 2"), "{text}");
    assert!(!text.contains("tops3cret"), "{text}");
}

fn parse(postgres: &str, consumer: &str) -> Result<Config, String> {
    let text = format!(
        "[postgres]\nurl = \"postgres://u@localhost/d\"\n{postgres}\n[rabbitmq]\nurl = \"amqp://localhost\"\n[[consumers]]\nname = \"payments\"\n\
         queue = \"payments\"\ntenant = \"user_id\"\nkey = \"body_hash\"\n{consumer}"
    );
    Config::parse(&text).map_err(|problems| problems.to_string())
}

#[test]
fn a_deadline_and_the_limit_of_a_statement_don_t_contradict_each_other() {
    let function = "handler = { function = \"app.f\" }";
    let limits = |postgres: &str, consumer: &str| {
        let config = parse(postgres, consumer).unwrap();
        let consumer = &config.consumers[0];
        (consumer.deadline.as_secs(), consumer.statement_timeout.as_secs())
    };
    assert_eq!(limits("", function), (30, 30));
    assert_eq!(limits("", &format!("deadline = \"2m\"\n{function}")), (120, 121));
    assert_eq!(limits("statement_timeout = \"3s\"\nlock_timeout = \"3s\"", function), (3, 3));
    // A handler in Rust is many statements.
    assert_eq!(limits("statement_timeout = \"20s\"", "deadline = \"40s\""), (40, 20));
    let refused =
        parse("statement_timeout = \"20s\"", &format!("deadline = \"40s\"\n{function}")).unwrap_err();
    assert!(refused.contains("40s is longer than postgres.statement_timeout = 20s"), "{refused}");
}

#[tokio::test]
async fn a_function_may_run_as_long_as_its_deadline_says() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create function app.limits(m oncely.message) returns jsonb language plpgsql as $$
         begin
             insert into app.effects (tenant, consumer, key)
             values (m.tenant, m.consumer, current_setting('statement_timeout'));
             return null;
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.limits\" }\ndeadline = \"10m\"");
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 1).await;
    world.stop(worker).await;
    assert_eq!(world.text("select key from app.effects").await.as_deref(), Some("601s"));
}

#[test]
fn arguments_that_lose_messages_are_refused_and_so_are_bindings_to_nothing() {
    let function = "handler = { function = \"app.f\" }";
    let wrong =
        "queue_arguments = { x-expires = 1000, x-max-priority = [] }\nbindings = [{ routing_key = \"a\" }]";
    let refused = parse("", &format!("{function}\n{wrong}")).unwrap_err();
    for what in [
        "queue_arguments.x-expires: is not allowed",
        "x-max-priority: must be",
        "bindings[0].exchange: must name",
    ] {
        assert!(refused.contains(what), "{what}: {refused}");
    }
    let refused =
        parse("", &format!("{function}\ndeclare = false\nqueue_arguments = {{ x-max-priority = 3 }}"));
    assert!(refused.unwrap_err().contains("has no effect with declare = false"));
}
