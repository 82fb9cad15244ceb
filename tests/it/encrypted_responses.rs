//! What handlers return is encrypted with a key that the database never sees, where a consumer's configuration says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncely::handler::{Json, handler_fn};
use oncely::lease::{Finish, Lease, LeasedHandler, Repeat, Step, StepError};
use oncely::worker::Stopped;
use oncely::{Context, HandlerError, Message, Worker};
use serde_json::{Value, json};
use testbed::eventually;
use tokio_util::sync::CancellationToken;

use crate::support::{World, message};

const SECRET: &str = "DE02120300000000202051";
const COMPLETED: &str = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(3_600)));

/// Charges in the first run, which fails behind it; the next one has the result.
#[derive(Clone, Default)]
struct Charges {
    runs: Arc<AtomicU32>,
    calls: Arc<AtomicU32>,
}

impl LeasedHandler for Charges {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let receipt: Value = lease
            .step(&CHARGE, async |_call| {
                self.calls.fetch_add(1, Ordering::Relaxed);
                Ok::<_, StepError>(json!({ "iban": SECRET }))
            })
            .await?;
        if message.attempt() == 1 {
            return Err(HandlerError::transient("after the charge"));
        }
        Finish::response(receipt)
    }
}

/// Keys in a file, `first` the one that encrypts; each key is another digit's.
fn keys(world: &World, ids: &[&str]) -> String {
    let path = world.file().with_file_name("keys.toml");
    let key = |id: &&str| {
        format!("[[keys]]\nid = {id:?}\nkey = \"{}\"\n", format!("{:02x}", id.as_bytes()[0]).repeat(32))
    };
    std::fs::write(&path, ids.iter().map(key).collect::<String>()).unwrap();
    path.display().to_string()
}

async fn world() -> World {
    let mut world = World::new().await;
    let path = keys(&world, &["a"]);
    world.configure(&format!("[encryption]\nkeys = {path:?}"));
    for consumer in ["receipts", "charges"] {
        let text = format!(
            "[[consumers]]\nname = {consumer:?}\nqueue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\n\
             key = {{ property = \"message_id\" }}\nretry = {{ delays = [\"50ms\"], max_attempts = 3 }}\nencrypt_responses = true",
            world.queue(consumer)
        );
        world.configure(&text);
    }
    world.apply_topology().await;
    world
}

async fn explained(world: &World, key: &str) -> (Value, String) {
    let json = world.oncely(&["explain", key, "--json"]).await;
    let text = world.oncely(&["explain", key]).await;
    assert!(text.status.success(), "{text:?}");
    let stories: Value = serde_json::from_slice(&json.stdout).unwrap();
    (stories["identities"][0].clone(), String::from_utf8(text.stdout).unwrap())
}

#[tokio::test]
async fn the_database_holds_no_response_and_no_result_and_whoever_has_the_key_sees_them() {
    let mut world = world().await;
    let charges = Charges::default();
    let receipts = handler_fn(async |_context: Context<'_>, _message: Message<'_>| {
        Ok(Json(json!({ "iban": SECRET, "amount": 7.0 })))
    });
    let worker = Worker::builder(world.config())
        .handler("receipts", receipts)
        .leased_handler("charges", charges.clone())
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") });
    world.publish("receipts", message("acme", "r1"), "{}").await;
    world.publish("charges", message("acme", "c1"), "{}").await;
    world.wait_for(COMPLETED, 2).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), Stopped::Clean);
    // The second run read what the first one had stored.
    assert_eq!(charges.calls.load(Ordering::Relaxed), 1);

    let rows = world.text("select string_agg(k::text, ' ') from oncely.idempotency_keys as k").await.unwrap();
    assert_eq!(rows.matches("oncely_encrypted").count(), 3, "{rows}");
    assert!(!rows.contains(SECRET), "{rows}");
    let (story, text) = explained(&world, "r1").await;
    assert_eq!(story["key"]["response"], json!({ "iban": SECRET, "amount": 7.0 }), "{story}");
    assert!(text.contains(SECRET), "{text}");
    let (story, _) = explained(&world, "c1").await;
    assert_eq!(story["key"]["response"]["iban"], SECRET, "{story}");
    assert_eq!(story["key"]["steps"]["charge"]["result"]["iban"], SECRET, "{story}");
    let export = world.oncely(&["tenant", "export", "acme", "--reveal"]).await;
    let export = String::from_utf8(export.stdout).unwrap();
    assert_eq!(export.matches(SECRET).count(), 3, "{export}");

    // Another key encrypts now; the old one is still there, and then it is not.
    keys(&world, &["b", "a"]);
    let (story, _) = explained(&world, "c1").await;
    assert_eq!((&story["key"]["response"]["iban"], &story["unreadable"]), (&json!(SECRET), &Value::Null));
    keys(&world, &["b"]);
    let (story, text) = explained(&world, "c1").await;
    let why = "encrypted with key \"a\", which this process does not have ([encryption] keys)";
    assert_eq!(story["unreadable"], why, "{story}");
    assert!(text.contains("which this process does not have") && !text.contains(SECRET), "{text}");
    let export = world.oncely(&["tenant", "export", "acme", "--reveal"]).await;
    let export = String::from_utf8(export.stdout).unwrap();
    assert!(!export.contains(SECRET) && export.contains("does not have"), "{export}");

    // A row that was moved to another key does not open there.
    keys(&world, &["a"]);
    let moved =
        "update oncely.idempotency_keys as k set response = o.response from oncely.idempotency_keys as o
        where k.key = 'r1' and o.key = 'c1'";
    sqlx::query(moved).execute(&mut world.sql).await.unwrap();
    let (story, _) = explained(&world, "r1").await;
    assert!(story["unreadable"].as_str().unwrap().contains("does not open"), "{story}");
}

#[tokio::test]
async fn a_result_that_another_process_encrypted_is_waited_for_and_its_call_is_not_repeated() {
    let mut world = world().await;
    let charges = Charges::default();
    let start = |world: &World| {
        let worker = Worker::builder(world.config())
            .handler("receipts", handler_fn(async |_: Context<'_>, _: Message<'_>| Ok(())))
            .leased_handler("charges", charges.clone())
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        (stop, tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }))
    };
    // The result is there, under a key that the next process does not have.
    let (stop, running) = start(&world);
    world.publish("charges", message("acme", "c1"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), Stopped::Clean);
    let open = "update oncely.idempotency_keys
        set status = 'IN_PROGRESS', completed_at = null, response = null, attempts = 1 where key = 'c1'";
    sqlx::query(open).execute(&mut world.sql).await.unwrap();
    keys(&world, &["b"]);
    let (stop, running) = start(&world);
    world.publish("charges", message("acme", "c1"), "{}").await;
    let ran = charges.runs.load(Ordering::Relaxed);
    let again = async || charges.runs.load(Ordering::Relaxed).checked_sub(ran + 4).ok_or("too few runs");
    eventually("runs that can't read the result", again).await.unwrap();
    stop.cancel();
    assert_eq!(running.await.unwrap(), Stopped::Clean);
    assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    keys(&world, &["b", "a"]);
    let (stop, running) = start(&world);
    world.wait_for(COMPLETED, 1).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), Stopped::Clean);
    assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn where_the_database_has_to_read_a_response_encrypting_it_is_refused_and_so_it_is_without_keys() {
    let mut world = World::new().await;
    let path = keys(&world, &["a"]);
    world.configure(&format!("[encryption]\nkeys = {path:?}"));
    let text = |more: &str| {
        format!(
            "[[consumers]]\nname = \"rust\"\nqueue = \"q\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
             encrypt_responses = true\n{more}"
        )
    };
    let base = "[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n";
    let refused =
        |more: &str| oncely::Config::parse(&format!("{base}{}", text(more))).unwrap_err().to_string();
    let function = refused("handler = { function = \"app.f\" }");
    assert!(
        function.contains("encrypt_responses: a SQL function's response is made in the database"),
        "{function}"
    );
    let replies = refused("replies = true");
    assert!(replies.contains("encrypt_responses: replies are made in the database"), "{replies}");
    let config = oncely::Config::parse(&format!("{base}{}", text(""))).unwrap();
    let handler = handler_fn(async |_: Context<'_>, _: Message<'_>| Ok(()));
    let missing = Worker::builder(config).handler("rust", handler).build().unwrap_err().to_string();
    assert!(
        missing.contains("consumers.rust.encrypt_responses: there is nothing to encrypt with: name a file in [encryption] keys"),
        "{missing}"
    );
}
