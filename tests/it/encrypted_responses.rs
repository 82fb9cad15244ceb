//! What handlers return is encrypted with a key that the database never sees, where a consumer's configuration says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use oncely::encryption::{Cipher, CipherError, EncryptedValue, KeyRing, Place};
use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::handler::{Json, handler_fn};
use oncely::lease::{Repeat, Step, StepError};
use oncely::worker::StopOutcome;
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
        let is_witness = message.key().starts_with("witness");
        self.runs.fetch_add(u32::from(!is_witness), Ordering::Relaxed);
        let result = match message.key().split_once('-') {
            // With quotes and blanks: so many bytes as PostgreSQL writes it.
            Some(("large", size)) => json!("x".repeat(size.parse::<usize>().unwrap() - 2)),
            Some(("looks", _)) => json!({ "oncely_encrypted": { "key": "a", "value": "aaaa" } }),
            Some(("nul", _)) => json!("a\0b"),
            _ => json!({ "iban": SECRET }),
        };
        let receipt: Value = lease
            .step(&CHARGE, async |_call| {
                self.calls.fetch_add(u32::from(!is_witness), Ordering::Relaxed);
                Ok::<_, StepError>(result)
            })
            .await?;
        if message.attempt() == 1 && !is_witness {
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
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
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
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
    let open = "update oncely.idempotency_keys
        set status = 'IN_PROGRESS', completed_at = null, response = null, attempts = 1 where key = 'c1'";
    sqlx::query(open).execute(&mut world.sql).await.unwrap();
    keys(&world, &["b"]);
    let (stop, running) = start(&world);
    world.publish("charges", message("acme", "c1"), "{}").await;
    // Others succeed all the time, and are no witnesses against it.
    let others = tokio::spawn({
        let (queue, broker) =
            (world.queue("charges"), testbed::Broker::connect(&world.urls.rabbitmq).await.unwrap());
        async move {
            for number in 0.. {
                let witness = message("acme", &format!("witness-{number}"));
                broker.publish("", &queue, witness, b"{}").await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    let ran = charges.runs.load(Ordering::Relaxed);
    let again = async || charges.runs.load(Ordering::Relaxed).checked_sub(ran + 4).ok_or("too few runs");
    eventually("runs that can't read the result", again).await.unwrap();
    others.abort();
    let witnesses = "select (count(*) > 3)::integer::bigint from oncely.idempotency_keys where key like 'witness%' and status = 'COMPLETED'";
    assert_eq!(world.count(witnesses).await, 1);
    let spent = "select count(*) from oncely.audit where key = 'c1' and outcome = 'retried' and attempt > 1";
    assert_eq!(world.count(spent).await, 0);
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
    assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    keys(&world, &["b", "a"]);
    let (stop, running) = start(&world);
    world
        .wait_for("select count(*) from oncely.idempotency_keys where key = 'c1' and status = 'COMPLETED'", 1)
        .await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
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
        function.contains("encrypt_responses: the database makes a SQL function's response"),
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

/// A consumer of [`Charges`] alone.
async fn charging(encrypts: bool) -> World {
    let mut world = World::new().await;
    let path = keys(&world, &["a"]);
    world.configure(&format!("[encryption]\nkeys = {path:?}\n[[consumers]]\nname = \"charges\""));
    let text = format!(
        "queue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
         retry = {{ delays = [\"50ms\"], max_attempts = 3 }}\nencrypt_responses = {encrypts}",
        world.queue("charges")
    );
    world.configure(&text);
    world.apply_topology().await;
    world
}

async fn charge(world: &mut World, charges: &Charges, key: &'static str, then: &str) {
    let worker = Worker::builder(world.config()).leased_handler("charges", charges.clone()).build().unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") });
    world.publish("charges", message("acme", key), "{}").await;
    world.wait_for(then, 1).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
}

const LETTERS: &str = "select count(*) from oncely.dead_letters";

#[tokio::test]
async fn what_fits_is_stored_whether_or_not_it_is_encrypted() {
    for encrypts in [true, false] {
        for key in ["large-60000", "large-65536"] {
            let mut world = charging(encrypts).await;
            let charges = Charges::default();
            charge(&mut world, &charges, key, COMPLETED).await;
            assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
            assert_eq!(world.count(LETTERS).await, 0);
            let (story, _) = explained(&world, key).await;
            let size = key.split_once('-').unwrap().1.parse::<usize>().unwrap();
            assert_eq!(story["key"]["response"].as_str().unwrap().len(), size - 2, "{encrypts}");
        }
    }
}

#[tokio::test]
async fn what_a_call_brought_and_can_not_be_stored_is_given_up_as_unknown() {
    for (encrypts, key) in [(true, "large-65537"), (false, "large-65537"), (false, "nul-1")] {
        let mut world = charging(encrypts).await;
        let charges = Charges::default();
        charge(&mut world, &charges, key, LETTERS).await;
        assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
        let told = world.text("select reason || ' ' || detail from oncely.dead_letters").await.unwrap();
        assert!(told.starts_with("outcome_unknown the step charge has happened"), "{encrypts} {key}: {told}");
    }
    // What PostgreSQL can't hold, it need not see.
    let mut world = charging(true).await;
    charge(&mut world, &Charges::default(), "nul-1", COMPLETED).await;
}

#[tokio::test]
async fn a_result_that_looks_encrypted_comes_back_as_it_was() {
    for encrypts in [true, false] {
        let mut world = charging(encrypts).await;
        let charges = Charges::default();
        // The second run reads what the first one has stored.
        charge(&mut world, &charges, "looks-1", COMPLETED).await;
        assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
        let (story, _) = explained(&world, "looks-1").await;
        let returned = json!({ "oncely_encrypted": { "key": "a", "value": "aaaa" } });
        assert_eq!(story["key"]["response"], returned, "{encrypts}: {story}");
        assert_eq!(story["key"]["steps"]["charge"]["result"], returned, "{encrypts}: {story}");
    }
}

#[tokio::test]
async fn no_reply_carries_what_was_encrypted_before_and_what_looks_so_is_told_as_it_is() {
    let mut world = World::new().await;
    let path = keys(&world, &["a"]);
    world.configure(&format!(
        "[relay]\npoll = \"20ms\"\n[encryption]\nkeys = {path:?}\n[[consumers]]\nname = \"receipts\""
    ));
    let text = format!(
        "queue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
         encrypt_responses = true",
        world.queue("receipts")
    );
    world.configure(&text);
    world.apply_topology().await;
    let replies = world.queue("replies");
    world.broker.declare_queue(&replies, lapin::types::FieldTable::default()).await.unwrap();
    let looks = json!({ "oncely_encrypted": { "key": "a", "value": "aaaa" } });
    let start = |world: &World| {
        let looks = looks.clone();
        let receipts = handler_fn(move |_: Context<'_>, message: Message<'_>| {
            let answer = if message.key() == "looks" { looks.clone() } else { json!({ "iban": SECRET }) };
            async move { Ok(Json(answer)) }
        });
        let worker = Worker::builder(world.config()).handler("receipts", receipts).build().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        (stop, tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }))
    };
    let (stop, running) = start(&world);
    world.publish("receipts", message("acme", "r1"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
    world.reconfigure("encrypt_responses = true", "replies = true");
    let (stop, running) = start(&world);
    let relay = world.start("relay");
    let ask = |key: &str| message("acme", key).with_reply_to(replies.as_str().into());
    let answer = async |key: &str| {
        world.publish("receipts", ask(key), "{}").await;
        let reply = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
        serde_json::from_slice::<Value>(&reply.data).unwrap()
    };
    assert_eq!(answer("r1").await, Value::Null, "a duplicate of what was encrypted");
    assert_eq!(answer("looks").await, looks);
    assert_eq!(answer("looks").await, looks, "a duplicate");
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
    world.stop(relay).await;
}

/// Has its key at hand, or not.
struct Fickle {
    ring: KeyRing,
    is_able: Arc<AtomicBool>,
}

impl Cipher for Fickle {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<EncryptedValue, CipherError> {
        match self.is_able.load(Ordering::SeqCst) {
            true => self.ring.seal(place, plain),
            false => Err(CipherError::Other("the key is not at hand".to_owned())),
        }
    }

    fn open(&self, place: &Place<'_>, sealed: &EncryptedValue) -> Result<Vec<u8>, CipherError> {
        self.ring.open(place, sealed)
    }
}

#[tokio::test]
async fn nothing_is_called_whose_result_could_not_be_encrypted() {
    let mut world = charging(true).await;
    let charges = Charges::default();
    let is_able = Arc::new(AtomicBool::new(false));
    let ring = KeyRing::parse(&format!("[[keys]]\nid = \"a\"\nkey = \"{}\"", "5e".repeat(32))).unwrap();
    let cipher = Fickle { ring, is_able: Arc::clone(&is_able) };
    let worker = Worker::builder(world.config())
        .cipher(cipher)
        .leased_handler("charges", charges.clone())
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") });
    world.publish("charges", message("acme", "c1"), "{}").await;
    let again = async || charges.runs.load(Ordering::Relaxed).checked_sub(3).ok_or("too few runs");
    eventually("runs that can't encrypt", again).await.unwrap();
    assert_eq!(charges.calls.load(Ordering::Relaxed), 0);
    is_able.store(true, Ordering::SeqCst);
    world.wait_for(COMPLETED, 1).await;
    stop.cancel();
    assert_eq!(running.await.unwrap(), StopOutcome::Clean);
    assert_eq!(charges.calls.load(Ordering::Relaxed), 1);
    assert_eq!(world.count("select attempts::bigint from oncely.idempotency_keys").await, 2);
}
