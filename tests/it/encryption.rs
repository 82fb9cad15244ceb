//! Bodies of dead letters are encrypted with a key that the database never sees.

use std::path::PathBuf;

use oncely::Worker;
use oncely::encryption::{Cipher, CipherError, EncryptedValue, Place};
use oncely::handler::handler_fn;
use oncely::testing::{Harness, IncomingMessage};
use serde_json::{Value, json};

use crate::support::{World, message};

const SECRET: &str = "{\"do\": \"reject\", \"iban\": \"DE02120300000000202051\"}";
const LETTERS: &str = "select count(*) from oncely.dead_letters";
const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";

/// The file of keys, with these ids; each key is another digit's.
fn keys(world: &World, ids: &[&str]) -> PathBuf {
    let path = world.file().with_file_name("keys.toml");
    let key = |id: &str| {
        format!("[[keys]]\nid = {id:?}\nkey = \"{}\"\n", format!("{:02x}", id.as_bytes()[0]).repeat(32))
    };
    std::fs::write(&path, ids.iter().map(|id| key(id)).collect::<String>()).unwrap();
    path
}

/// A world in which bodies are encrypted with the key `a`.
async fn encrypted() -> World {
    let mut world = World::new().await;
    let path = keys(&world, &["a"]);
    world.configure(&format!("[encryption]\nkeys = {:?}", path.display().to_string()));
    world.consumer("payments", "retry = { max_attempts = 1 }");
    world.apply_topology().await;
    world
}

/// Dead-letters a message of each of these keys.
async fn dead_letters(world: &mut World, names: &[&str]) {
    let before = world.count(LETTERS).await;
    let worker = world.start("worker");
    for name in names {
        world.publish("payments", message("acme", name), SECRET).await;
    }
    world.wait_for(LETTERS, before + i64::try_from(names.len()).unwrap()).await;
    world.stop(worker).await;
}

async fn show(world: &mut World, key: &str) -> (Value, String) {
    let id =
        world.text(&format!("select id::text from oncely.dead_letters where key = '{key}'")).await.unwrap();
    let output = world.oncely(&["failed", "show", &id, "--body", "--json"]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let raw = world.oncely(&["failed", "show", &id, "--raw"]).await;
    let raw = match raw.status.code() {
        Some(0) => String::from_utf8(raw.stdout).unwrap(),
        code => format!("{code:?} {}", String::from_utf8_lossy(&raw.stderr)),
    };
    (shown["letter"].clone(), raw)
}

/// All that the tables hold, as text and as hexadecimal digits.
async fn everything(world: &mut World) -> String {
    let all = "select concat(
        (select string_agg(d::text, ' ') from oncely.dead_letters as d), (select string_agg(k::text, ' ') from oncely.idempotency_keys as k),
        (select string_agg(a::text, ' ') from oncely.audit as a), (select string_agg(e::text, ' ') from oncely.events as e),
        (select string_agg(p::text, ' ') from oncely.processes as p))";
    world.text(all).await.unwrap()
}

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn the_database_holds_nothing_of_a_body_and_whoever_has_the_key_shows_exports_and_requeues_it() {
    let mut world = encrypted().await;
    dead_letters(&mut world, &["k"]).await;
    let held = everything(&mut world).await;
    let part = "DE02120300000000202051";
    assert!(!held.contains(part) && !held.contains(&hexadecimal(part)), "{held}");
    assert!(!held.contains(&"61".repeat(8)), "the key is nowhere: {held}");
    assert_eq!(
        world.count("select body_size from oncely.dead_letters").await,
        i64::try_from(SECRET.len()).unwrap()
    );
    let (letter, raw) = show(&mut world, "k").await;
    assert_eq!(
        (&letter["encrypted_by"], &letter["body"], &letter["unreadable"]),
        (&json!("a"), &json!(SECRET), &Value::Null)
    );
    assert_eq!(raw, SECRET);
    let export = world.oncely(&["tenant", "export", "acme", "--reveal"]).await;
    let export = String::from_utf8(export.stdout).unwrap();
    assert!(export.contains(part) && export.contains("\"encrypted_by\":\"a\""), "{export}");
    // It is published from its row: its dead-letter queue is empty.
    let dead = format!("{}.dead", world.queue("payments"));
    world.broker.purge(&dead).await.unwrap();
    let worker = world.start("worker");
    let done = world.oncely(&["failed", "requeue", "--all", "--yes", "--json"]).await;
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&done["done"], &done["failed"]), (&json!(1), &json!(0)), "{done}");
    world
        .wait_for("select count(*) from oncely.dead_letters where state = 'waiting' and generation = 2", 1)
        .await;
    world.stop(worker).await;
    let (letter, _) = show(&mut world, "k").await;
    assert_eq!(letter["body"], json!(SECRET), "the same came back");
}

#[tokio::test]
async fn a_key_is_replaced_and_where_it_is_missing_a_letter_is_named_and_comes_from_its_queue() {
    let mut world = encrypted().await;
    dead_letters(&mut world, &["old"]).await;
    keys(&world, &["b", "a"]);
    dead_letters(&mut world, &["new"]).await;
    let ids =
        "select string_agg(concat_ws(' ', key, encrypted_by), ', ' order by key) from oncely.dead_letters";
    assert_eq!(world.text(ids).await.as_deref(), Some("new b, old a"));
    assert_eq!(show(&mut world, "old").await.1, SECRET);
    assert_eq!(show(&mut world, "new").await.1, SECRET);
    let doctor = world.oncely(&["doctor", "--only", "letters.keys"]).await;
    assert_eq!(doctor.status.code(), Some(0), "{doctor:?}");

    keys(&world, &["b"]);
    let (letter, raw) = show(&mut world, "old").await;
    let told = "encrypted with key \"a\", which this process does not have ([encryption] keys)";
    assert_eq!((&letter["body"], &letter["unreadable"]), (&Value::Null, &json!(told)));
    assert!(raw.starts_with(&format!("Some(1) the body is {told}")), "{raw}");
    let export = world.oncely(&["tenant", "export", "acme", "--reveal"]).await;
    let export = String::from_utf8(export.stdout).unwrap();
    assert!(export.contains("which this process does not have"), "{export}");
    let doctor = world.oncely(&["doctor", "--only", "letters.keys", "--json"]).await;
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        doctor.contains(
            "the bodies of 1 dead letters are encrypted with key a, which this process does not have"
        ),
        "{doctor}"
    );
    // Nothing is lost: the queue has the message.
    let worker = world.start("worker");
    let done = world.oncely(&["failed", "requeue", "--all", "--yes", "--json"]).await;
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{text}");
    assert!(
        text.contains("! 1 published from the dead-letter queue, not from the row: the body is encrypted with key \"a\", which this process does not have"),
        "{text}"
    );
    world
        .wait_for("select count(*) from oncely.dead_letters where state = 'waiting' and generation = 2", 2)
        .await;
    world.stop(worker).await;
    assert_eq!(world.text(ids).await.as_deref(), Some("new b, old b"));
    assert_eq!(show(&mut world, "old").await.1, SECRET);
}

#[tokio::test]
async fn what_was_moved_or_changed_does_not_open_and_what_is_plain_stays_readable() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { max_attempts = 1 }");
    world.apply_topology().await;
    dead_letters(&mut world, &["plain"]).await;
    let path = keys(&world, &["a"]);
    world.configure(&format!("[encryption]\nkeys = {:?}", path.display().to_string()));
    dead_letters(&mut world, &["one", "two"]).await;
    assert_eq!(show(&mut world, "plain").await.1, SECRET);
    sqlx::raw_sql(
        "update oncely.dead_letters as d set body = o.body from oncely.dead_letters as o where d.key = 'one' and o.key = 'two';
         update oncely.dead_letters set body = set_byte(body, 40, get_byte(body, 40) # 1) where key = 'two'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    for name in ["one", "two"] {
        let (letter, raw) = show(&mut world, name).await;
        let told = letter["unreadable"].as_str().unwrap();
        assert!(told.starts_with("encrypted with key \"a\", and does not open"), "{told}");
        assert!(raw.starts_with("Some(1) "), "{raw}");
    }
    // A program that knows nothing of encryption writes one anew.
    sqlx::query("update oncely.dead_letters set body = $1 where key = 'one'")
        .bind(SECRET.as_bytes())
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(show(&mut world, "one").await.1, SECRET);
    assert_eq!(world.count(WAITING).await, 3);
}

#[tokio::test]
async fn a_file_of_keys_that_is_wrong_or_everybodys_is_told_and_no_key_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut world = World::new().await;
    let path = world.file().with_file_name("keys.toml");
    world.configure(&format!("[encryption]\nkeys = {:?}", path.display().to_string()));
    world.consumer("payments", "");
    let refused = async |world: &World| {
        let output = world.oncely(&["check"]).await;
        assert!(!output.status.success(), "{output:?}");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let told = refused(&world).await;
    assert!(told.contains("encryption.keys: ") && told.contains("keys.toml can't be read"), "{told}");
    std::fs::write(&path, format!("[[keys]]\nid = \"a\"\nkey = \"{}\"", "5e".repeat(31))).unwrap();
    let told = refused(&world).await;
    assert!(
        told.contains("keys[0].key (a) must be 64 hexadecimal digits") && !told.contains("5e5e"),
        "{told}"
    );
    std::fs::write(&path, format!("[[keys]]\nid = \"a\"\nkey = \"{}\"", "5e".repeat(32))).unwrap();
    // Not the folder around it, which is the system's: other users have files there.
    let folder = path.parent().unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let doctor = world.oncely(&["doctor", "--only", "config.files", "--json"]).await;
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("encryption.keys") && doctor.contains("keys.toml"), "{doctor}");
    assert!(!format!("{:?}", world.config()).contains("5e5e"));
}

/// A cipher of a program's own, whose service is away where it is told so.
struct Rented {
    is_away: bool,
}

impl Cipher for Rented {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<EncryptedValue, CipherError> {
        if self.is_away {
            return Err(CipherError::Other("the service is away".to_owned()));
        }
        assert!(String::from_utf8_lossy(&place.to_bytes()).contains("acme"));
        Ok(EncryptedValue { key: "rented".to_owned(), bytes: plain.iter().rev().copied().collect() })
    }

    fn open(&self, _: &Place<'_>, sealed: &EncryptedValue) -> Result<Vec<u8>, CipherError> {
        Ok(sealed.bytes.iter().rev().copied().collect())
    }
}

#[tokio::test]
async fn a_programs_own_cipher_encrypts_and_what_it_cannot_is_not_stored_as_it_is() {
    let mut world = World::new().await;
    world.consumer("rust", "handler = { function = \"app.handle\" }\nretry = { max_attempts = 1 }");
    world.reconfigure("handler = { function = \"app.handle\" }\n", "");
    // Nobody listens there.
    world.urls.rabbitmq = "amqp://127.0.0.1:1".to_owned();
    for is_away in [false, true] {
        let handler = handler_fn(async |_: oncely::Context<'_>, _: oncely::Message<'_>| {
            Err::<(), _>(oncely::HandlerError::permanent("no such account"))
        });
        let worker = Worker::builder(world.config())
            .cipher(Rented { is_away })
            .handler("rust", handler)
            .build()
            .unwrap();
        let mut test = Harness::connect(worker).await.unwrap();
        let incoming = IncomingMessage::json(&json!({ "iban": "DE02" }))
            .message_id(format!("away {is_away}"))
            .header("x-tenant-id", "acme");
        test.deliver("rust", &incoming).await.unwrap();
    }
    let stored = "select string_agg(concat_ws(' ', key, encrypted_by, omitted, whole, body_size), ', ' order by key) from oncely.dead_letters";
    assert_eq!(world.text(stored).await.as_deref(), Some("away false rented t 15, away true cipher f 15"));
    assert!(!everything(&mut world).await.contains(&hexadecimal("DE02")));
    let (letter, _) = show(&mut world, "away false").await;
    assert!(letter["unreadable"].as_str().unwrap().contains("encrypted with key \"rented\""), "{letter}");
}
