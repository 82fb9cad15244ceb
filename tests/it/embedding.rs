//! `examples/embedding`, a crate outside this workspace: three handlers, configured in Rust, and what a hostile publisher sends them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testbed::{Process, RawConnection, RawProperties, RawValue, Scratch, Signal};

use crate::support::{World, message, program};

/// Builds it as its owner would. Beside the workspace's own programs: most of what it is made of is compiled there already.
fn build() -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--manifest-path"])
        .arg(root.join("examples/embedding/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_BUILD_BUILD_DIR")
        // As the workspace compiles other people's crates: those with the same features are there already.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug/embedding")
}

fn properties(message_id: &[u8], headers: Vec<(Vec<u8>, RawValue)>) -> RawProperties {
    let tenant = (b"x-tenant-id".to_vec(), RawValue::text(b"acme"));
    RawProperties {
        message_id: Some(message_id.to_vec()),
        headers: Some([vec![tenant], headers].concat()),
        ..RawProperties::default()
    }
}

#[tokio::test]
async fn a_program_of_one_s_own_does_its_work_and_survives_what_a_publisher_sends() {
    let program = tokio::task::spawn_blocking(build).await.unwrap();
    let mut world = World::new().await;
    for name in ["closure", "state", "batch"] {
        world.consumer(name, "");
    }
    world.apply_topology().await;
    sqlx::query("create table notes (tenant text collate \"C\", key text, via text)")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let logs = Scratch::new("embedding").unwrap();
    // It is built without TLS, and says so instead of coming in plaintext.
    let refused = Command::new(&program)
        .arg(world.queue(""))
        .env("DATABASE_URL", world.database.url())
        .env("AMQP_URL", "amqps://u:topsecret@localhost")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("amqps:// needs TLS, and this program is built without the feature `tls`"),
        "{said}"
    );
    assert!(!said.contains("topsecret"), "{said}");
    let environment = [("DATABASE_URL", world.database.url()), ("AMQP_URL", world.urls.rabbitmq.as_str())];
    let prefix = world.queue("");
    let mut embedding =
        Process::start(&program, &[&prefix], &environment, &logs.path().join("embedding.log")).unwrap();

    // Fifteen thousand tables in each other, and text that is not UTF-8.
    let nested = (0..15_000)
        .fold(RawValue::Plain(b'V', Vec::new()), |inner, _| RawValue::Table(vec![(b"t".to_vec(), inner)]));
    let hostile = [
        properties(b"deep", vec![(b"deep".to_vec(), nested)]),
        properties(b"caf\xe9", Vec::new()),
        properties(b"\x00\x01\xfe\xff", Vec::new()),
    ];
    let (url, queue) = (world.urls.rabbitmq.clone(), world.queue("closure"));
    tokio::task::spawn_blocking(move || {
        let mut raw = RawConnection::open(&url).unwrap();
        for one in hostile {
            raw.publish("", queue.as_bytes(), &one.encode(), b"{}").unwrap();
        }
        raw.wait_for_confirms().unwrap();
    })
    .await
    .unwrap();
    for name in ["closure", "state", "batch"] {
        for number in 0..20 {
            world.publish(name, message("acme", &format!("k{number}")), "{}").await;
        }
    }
    let via = "select string_agg(via || ' ' || n, ', ' order by via) from (select via, count(*) as n from notes group by via) as v";
    world.wait_for("select count(*) from notes", 61).await;
    assert_eq!(world.text(via).await.as_deref(), Some("batch 20, closure 21, state 20"));
    world.wait_for_ready(&format!("{}.dead", world.queue("closure")), 2).await;
    let refused =
        "select count(*) from oncely.audit where outcome = 'dead_lettered' and reason = 'key_invalid'";
    assert_eq!(world.count(refused).await, 2, "{}", embedding.output());
    let responses = "select count(*) from oncely.idempotency_keys where response ->> 'noted' = key";
    assert_eq!(world.count(responses).await, 20);
    embedding.signal(Signal::INT).unwrap();
    let status = embedding.wait_for_end(Duration::from_secs(40)).await.unwrap();
    assert!(status.success(), "{status}: {}", embedding.output());
}
