//! What texts must not carry: the content of messages, passwords, and what a terminal would obey.

use lapin::types::AMQPValue;
use serde_json::{Value, json};
use testbed::Broker;

use crate::support::{World, message, untried};

/// Fails as the message's payload says, on purpose or by what PostgreSQL finds.
const HANDLER: &str = r"
create table app.small (number integer constraint small_numbers check (number < 5));
create function app.cast(m oncely.message) returns jsonb language plpgsql as $$
begin
    case m.payload ->> 'do'
        when 'cast' then perform (m.payload ->> 'secret')::integer;
        when 'check' then insert into app.small values (length(m.payload ->> 'secret'));
        when 'raise' then raise exception 'the shop is closed';
        when 'reject' then perform oncely.reject('no such account');
        else null;
    end case;
    return null;
end $$";

async fn dead_headers(broker: &Broker, queue: &str, count: usize) -> String {
    let letters = broker.take_exactly(&format!("{queue}.dead"), count).await.unwrap();
    let headers = letters.iter().filter_map(|letter| letter.properties.headers().as_ref());
    headers
        .flat_map(|table| table.inner().values())
        .filter_map(|value| match value {
            AMQPValue::LongString(text) => Some(format!("{}\n", String::from_utf8_lossy(text.as_bytes()))),
            _ => None,
        })
        .collect()
}

async fn told(server_errors: bool) -> String {
    let mut world = World::new().await;
    sqlx::raw_sql(HANDLER).execute(&mut world.sql).await.unwrap();
    world.configure(&format!("[log]\nserver_errors = {server_errors}\nlevel = \"debug\""));
    world.consumer(
        "casts",
        "handler = { function = \"app.cast\" }\nretry = { delays = [], max_attempts = 1 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    for what in ["cast", "check", "raise", "reject"] {
        let body = format!(r#"{{"do": "{what}", "secret": "S3CR3T"}}"#);
        world.publish("casts", message("acme", what), &body).await;
    }
    world.wait_beside_good_ones("casts", "select count(*) from oncely.dead_letters", 4).await;
    let headers = dead_headers(&world.broker, &world.queue("casts"), 4).await;
    assert!(headers.contains("no such account"), "{headers}");
    let mut told = headers + &worker.output();
    for column in [
        "last_error from oncely.idempotency_keys",
        "detail from oncely.audit",
        "detail from oncely.dead_letters",
    ] {
        let query = format!("select string_agg(x.t, chr(10)) from (select {column}) as x (t)");
        told.push_str(&world.text(&query).await.unwrap_or_default());
    }
    world.stop(worker).await;
    told
}

#[tokio::test]
async fn an_error_tells_its_condition_and_not_what_the_message_held() {
    let text = told(false).await;
    assert!(!text.contains("S3CR3T"), "{text}");
    for said in [
        "invalid text representation (SQLSTATE 22P02)",
        "check violation: constraint small_numbers, table small (SQLSTATE 23514)",
        "the shop is closed",
        "no such account",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[tokio::test]
async fn who_asks_for_it_gets_the_servers_text() {
    let text = told(true).await;
    assert!(text.contains(r#"invalid input syntax for type integer: "S3CR3T""#), "{text}");
}

const TENANT: &str = "ac\u{1b}[2Jme\u{202e}";
const KEY: &str = "k\u{202e}\n\u{1b}]0;title\u{7}\u{200b}\u{2066}";

fn is_hidden(character: char) -> bool {
    character.is_control() && character != '\n'
        || ('\u{200b}'..='\u{200f}').contains(&character)
        || ('\u{202a}'..='\u{202e}').contains(&character)
        || ('\u{2066}'..='\u{2069}').contains(&character)
}

#[tokio::test]
async fn no_verb_lets_a_name_reach_the_terminal_as_it_is() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message(TENANT, KEY), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    world.stop(worker).await;
    for statement in [
        "select oncely.claim($1, $2, $3, null)",
        "select oncely.complete($1, $2, $3, '{}', queue => $2, worker => $1, trace_id => $2)",
        "select oncely.emit($2, $3, '{}'::jsonb, ordering_key => $1, tenant => $1)",
    ] {
        if statement.contains("claim") {
            sqlx::query("begin").execute(&mut world.sql).await.unwrap();
        }
        sqlx::query(statement)
            .bind(TENANT)
            .bind("c\u{1b}c\u{202e}")
            .bind(KEY)
            .execute(&mut world.sql)
            .await
            .unwrap();
        if statement.contains("complete") {
            sqlx::query("commit").execute(&mut world.sql).await.unwrap();
        }
    }
    let hold = "select oncely.claim_lease($1, $2, $3, null, $2 || ' run', '1 hour', '1 hour')";
    sqlx::query(hold).bind(TENANT).bind("c\u{202e}").bind(KEY).execute(&mut world.sql).await.unwrap();
    let id = world.text("select id::text from oncely.dead_letters").await.unwrap();
    let mut seen = 0;
    let line = json!({ "tenant": TENANT, "message_id": KEY, "payload": { "do": "reject" } }).to_string();
    let lines = world.file().with_file_name("lines.jsonl");
    std::fs::write(&lines, format!("{line}\n{line}\n")).unwrap();
    let keys = world.file().with_file_name("keys\u{202e}.jsonl");
    let seeds = [json!({ "tenant": TENANT, "key": KEY }), json!({ "tenant": TENANT, "k\u{202e}": KEY })];
    std::fs::write(&keys, format!("{}\n{}\n", seeds[0], seeds[1])).unwrap();
    let verbs = [
        vec!["audit", "list"],
        vec!["explain", KEY],
        vec!["explain", "not\u{1b}there\u{202e}"],
        vec!["failed", "groups"],
        vec!["failed", "list"],
        vec!["failed", "show", &id, "--body"],
        vec!["failed", "requeue", "--key", KEY, "--dry-run"],
        vec!["failed", "discard", "--key", KEY, "--dry-run"],
        vec!["outbox", "list"],
        vec!["outbox", "discard", "--all", "--dry-run"],
        vec!["status"],
        vec!["top", "--once"],
        vec!["gc", "run", "--dry-run"],
        vec!["topology", "show"],
        vec!["retention", "list"],
        vec!["secrets", "list"],
        vec!["keys", "list", "--tenant", TENANT],
        vec!["keys", "show", KEY, "--consumer", "payments"],
        vec!["keys", "seed", keys.to_str().unwrap(), "--consumer", "payments"],
        vec!["leases", "list"],
        vec!["leases", "release", KEY, "--dry-run"],
        vec!["adopt", "report", "--consumer", "c\u{202e}"],
        vec!["adopt", "check"],
        vec!["config", "show"],
        vec!["consumers", "pause", "payments", "--reason", "c\u{202e}"],
        vec!["consumers", "list"],
        vec!["grant", "--list"],
        vec!["handler", "test", lines.to_str().unwrap()],
        vec!["tenant", "limit", TENANT, "--letters", "1000", "--retention", "1s"],
        vec!["tenant", "usage"],
        vec!["tenant", "erase", TENANT, "--dry-run"],
        vec!["check"],
        vec!["doctor"],
    ];
    // worker, relay and gateway log, and print nothing; console: tests/it/console/looks.rs
    assert_eq!(
        untried(verbs.iter().map(|verb| verb[0])),
        [
            "worker",
            "relay",
            "migrate",
            "processes",
            "mirror",
            "console",
            "gateway",
            "publish",
            "completions",
            "man",
            "help"
        ],
        "a verb that prints what is stored goes into the list above"
    );
    for verb in verbs {
        let output = world.oncely(&verb).await;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains(is_hidden), "{verb:?}: {text:?}");
        // A line break in a key begins no line.
        assert!(!text.lines().any(|line| line.starts_with("\\u{1b}]0;")), "{verb:?}: {text}");
        seen += text.matches("\\u{202e}").count();
        let json: Vec<&str> =
            verb.iter().copied().filter(|word| *word != "--body").chain(["--json"]).collect();
        let output = world.oncely(&json).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains(is_hidden), "{json:?}: {text:?}");
        let object: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{json:?}: {error}: {text}"));
        if text.contains("\\u202e") && verb[0] != "explain" && verb[0] != "gc" {
            let values = object.to_string();
            assert!(
                values.contains(TENANT.trim_start_matches("ac\u{1b}")) || values.contains("c\u{202e}"),
                "{json:?}: {values}"
            );
        }
    }
    // It has no other form than lines of JSON.
    let output = world.oncely(&["tenant", "export", TENANT]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\\u202e") && !text.contains(is_hidden), "{text:?}");
    assert!(seen > 10, "the names were not there to be seen: {seen}");
}

#[tokio::test]
async fn no_log_holds_the_password_of_rabbitmq_however_fine_it_is() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let filter = "trace,lapin=trace,lapin::io_loop=trace,amq_protocol=trace,amq_protocol_tcp=trace";
    let worker = world.start_with("worker", "worker", &[("RUST_LOG", filter.to_owned())]);
    world.wait_for_line(&worker, "subscribed").await;
    let text = worker.output();
    world.stop(worker).await;
    // The frame of the handshake, as it is or as its bytes; and the URL.
    let bytes: Vec<String> = b"guest\0".iter().take(5).map(u8::to_string).collect();
    for secret in ["start-ok", "StartOk", "PLAIN", "guest:guest", "password", &bytes.join(", ")] {
        let line = text.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{secret}: {line:?}");
    }
    assert!(text.contains("TRACE"), "there was nothing to be seen");
}

#[tokio::test]
async fn a_password_with_signs_that_a_url_cannot_hold_is_refused_and_not_shown() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    for password in ["1/S3CR3T", "1#S3CR3T", "1?S3CR3T", "S3@CR3T"] {
        let url = format!("postgres://somebody:{password}@127.0.0.1:1/db");
        for verb in [vec!["migrate"], vec!["check"], vec!["status"], vec!["audit", "list"]] {
            let output = world.oncely_with(&verb, &[("DATABASE_URL", &url)]).await;
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(!text.contains("S3") && !text.contains("CR3T"), "{password}, {verb:?}: {text}");
            assert_eq!(output.status.code(), Some(78), "{password}, {verb:?}: {text}");
            assert!(text.contains("%2F"), "{password}, {verb:?}: {text}");
        }
    }
}
