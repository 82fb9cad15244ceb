//! `oncely doctor --bundle`: an archive that may be shown to strangers.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;
use testbed::Scratch;

use crate::support::{World, message};

/// Whatever holds one of these must not be in the archive.
const PLANTED: [&str; 12] = [
    "S3CR3T",
    "planted-tenant",
    "planted-key",
    "planted-detail",
    "planted-payload",
    "planted-queue",
    "planted-fixed",
    "planted-host",
    "planted-worker",
    "planted-process",
    "planted-route",
    "planted-reason",
];

fn unpack(path: &Path) -> BTreeMap<String, String> {
    let archive = std::fs::File::open(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name, text);
    }
    files
}

#[tokio::test]
async fn nothing_that_was_planted_is_in_the_archive() {
    let mut world = World::new().await;
    world.configure(
        "[cell]\nsigning_key = \"S3CR3T-signing-key\"\nknown_keys = [\"S3CR3T-known-key-1\"]\n\
         [rabbitmq]\nmanagement = \"http://watcher:S3CR3T@127.0.0.1:1\"\n\
         [redis]\nurl = \"redis://:S3CR3T@127.0.0.1:1/\"\n[mirror]\nkey = \"S3CR3T-mirror-key-1\"",
    );
    sqlx::raw_sql(
        "create function app.planted(m oncely.message) returns jsonb language plpgsql as $$
         begin
             if m.payload ->> 'do' = 'reject' then perform oncely.reject('planted-detail', 'planted-detail'); end if;
             return app.handle(m);
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("payments", "handler = { function = \"app.planted\" }");
    world.consumer("fixed", "tenant = { fixed = \"planted-fixed\" }");
    let tenants = format!("{}-planted-queue", world.queue("x"));
    world.configure(&format!(
        "[[consumers]]\nname = \"shops\"\nqueue = {tenants:?}\ntenant = \"queue\"\nkey = {{ property = \"message_id\" }}\n\
         handler = {{ function = \"app.handle\" }}\nqueue_type = \"classic\""
    ));
    world.consumer(
        "routes",
        "tenant = { routing_key = 2 }\nbindings = [{ exchange = \"amq.topic\", routing_key = \"order.planted-route.#\" }]",
    );
    world.apply_topology().await;
    world.register("fixed", "7d").await;
    let pause = ["consumers", "pause", "fixed", "--reason", "planted-reason"];
    assert!(world.oncely(&pause).await.status.success());
    let worker = world.start_with("worker", "planted-worker", &[("HOSTNAME", "planted-host".to_owned())]);
    let body = r#"{"do": "reject", "what": "planted-payload"}"#;
    world.publish("payments", message("planted-tenant", "planted-key"), body).await;
    world.publish("payments", message("planted-tenant", "planted-key-2"), r#"{"do": "missing_table"}"#).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    // The heartbeat has the key that stands still.
    world
        .wait_for("select count(*) from oncely.processes where consumers::text like '%planted-key-2%'", 1)
        .await;
    sqlx::query(
        "insert into oncely.stats (at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered,
             fallbacks, outages, durations)
         values (now(), 'payments', gen_random_uuid(), 4711, 60, 0, 40, 0, 0, 0, 0, 0, array_fill(0, array[20]))",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    // The tests' server asks nobody for a password.
    let with_password = world.database.url().replacen("postgres@", "postgres:S3CR3T@", 1);
    assert!(with_password.contains("S3CR3T"), "{with_password}");
    let scratch = Scratch::new("bundle").unwrap();
    let path = scratch.path().join("bundle.tar.gz");
    let bundle = ["doctor", "--bundle", path.to_str().unwrap()];
    let output = world
        .oncely_with(&bundle, &[("DATABASE_URL", &with_password), ("ONCELY_WORKER__NAME", "planted-process")])
        .await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("check it before you send it"), "{told}");
    let mut worker = worker;
    world.kill(&mut worker);

    let files = unpack(&path);
    let names: Vec<&str> = files.keys().map(|name| name.trim_start_matches("oncely-doctor/")).collect();
    let expected = [
        "README.txt",
        "configuration.json",
        "dead_letter_groups.json",
        "doctor.json",
        "migrations.json",
        "processes.json",
        "stats.json",
        "versions.json",
    ];
    assert_eq!(names, expected);
    for (name, text) in &files {
        for planted in PLANTED {
            assert!(!text.contains(planted), "{planted} is in {name}: {text}");
        }
        assert!(!text.contains(world.database.name()), "the database's URL is in {name}: {text}");
    }
    let read = |name: &str| -> Value {
        serde_json::from_str(&files[&format!("oncely-doctor/{name}.json")]).unwrap()
    };
    // What helps is there.
    assert_eq!(read("dead_letter_groups")[0]["reason"], "handler_rejected");
    assert_eq!(read("processes")[0]["consumers"][0]["stalled"]["code"], "42P01");
    let spans = read("stats")["consumers"].as_array().unwrap().clone();
    assert!(spans.iter().any(|span| span["delivered"].as_i64() >= Some(4711)), "{spans:?}");
    assert_eq!(read("configuration")["consumers"][0]["name"], "payments");
    assert_eq!(read("configuration")["consumers"][1]["tenant"]["fixed"], "(masked)");
    assert_eq!(read("migrations")["pending"], Value::Array(Vec::new()));
    assert!(read("versions")["oncely"].is_string());
    let stalled = read("doctor")["checks"]
        .as_array()
        .unwrap()
        .iter()
        .any(|check| check["id"] == "live.stalled" && check["verdict"] == "error");
    assert!(stalled, "{}", files["oncely-doctor/doctor.json"]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Nothing is written over.
    let again = world.oncely(&bundle).await;
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("cannot write"), "{again:?}");
}

/// A file that is refused, as it is sent with a question why: with secrets where nobody expects them.
const REFUSED: &str = r#"
[cell]
signing_kay = "planted-unknown"
[postgres]
password = "planted-unknown"
[traces]
endpoint = "http://user:planted-password@127.0.0.1:4318"
[secrets]
db_password = "planted-unknown"
[console]
trace_url = "https://user:planted-password@tempo.example.com/{trace_id}"
proxy = { header = "x-forwarded-user", from = ["10.1.2.0/24"], operators = ["planted-operator"], secret = "planted-unknown" }
[log]
level = "https://user:planted-password@example.com"
[[consumers]]
name = "planted-name-is-said"
queue = "q"
signing_key = "planted-unknown"
queue_arguments = { x-secret = "planted-argument", x-max-priority = 10 }
handler = { function = "app.handle", password = "planted-unknown" }
tenant = { fixed = "planted-fixed", secret = "planted-unknown" }
key = { property = "message_id" }
deadline = "7s"
"#;

#[tokio::test]
async fn a_file_that_is_refused_is_told_without_what_nobody_knows() {
    let scratch = Scratch::new("bundle").unwrap();
    let (config, path) = (scratch.path().join("oncely.toml"), scratch.path().join("bundle.tar.gz"));
    std::fs::write(&config, REFUSED).unwrap();
    let world = World::new().await;
    let bundle = ["doctor", "--bundle", path.to_str().unwrap()];
    let output = world.oncely_with(&bundle, &[("ONCELY_CONFIG", config.to_str().unwrap())]).await;
    let files = unpack(&path);
    let configuration = &files["oncely-doctor/configuration.json"];
    let read: Value = serde_json::from_str(configuration).unwrap();
    for planted in ["unknown", "password@", "operator", "argument", "fixed"] {
        let planted = format!("planted-{planted}");
        for (name, text) in &files {
            assert!(!text.contains(&planted), "{planted} is in {name}: {text}");
        }
    }
    // What helps is there: names, also of what nobody knows, and known values.
    let consumer = &read["consumers"][0];
    assert_eq!(consumer["name"], "planted-name-is-said", "{output:?}");
    assert_eq!(
        (&consumer["deadline"], &consumer["handler"]["function"]),
        (&"7s".into(), &"app.handle".into())
    );
    assert_eq!(consumer["key"]["property"], "message_id");
    for masked in [
        &read["cell"]["signing_kay"],
        &read["secrets"],
        &consumer["signing_key"],
        &consumer["handler"]["password"],
        &consumer["queue_arguments"],
        &read["console"]["proxy"]["operators"],
    ] {
        assert_eq!(masked, "(masked)", "{configuration}");
    }
}
