//! The forms in which verbs show rows, and the page of the book that says what is in them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::command_line::{lived_in, stdout};
use crate::support::World;

/// A verb that lists rows, and the field of its JSON object that holds them.
const LISTS: [(&[&str], &str); 16] = [
    (&["audit", "list"], "rows"),
    (&["failed", "list"], "letters"),
    (&["failed", "groups"], "groups"),
    (&["outbox", "list"], "events"),
    (&["retention", "list"], "consumers"),
    (&["consumers", "list"], "consumers"),
    (&["keys", "list", "--consumer", "payments", "--status", "failed"], "keys"),
    (&["leases", "list"], "leases"),
    (&["secrets", "list"], "secrets"),
    (&["adopt", "report", "--consumer", "ledger"], "results"),
    (&["adopt", "check"], "remarks"),
    (&["grant", "--list"], "rights"),
    (&["tenant", "usage"], "tenants"),
    (&["migrate", "info"], "migrations"),
    (&["config", "show"], "values"),
    (&["config", "docs"], "settings"),
];

/// Other verbs that print one object, and its schema.
const OBJECTS: [(&[&str], &str); 1] = [(&["top", "--once"], "oncely.top/1")];

/// What `lived_in` has, and a row of everything else that is listed.
async fn full() -> World {
    let mut world = lived_in().await;
    let more = "select oncely.grant_right(current_user::text, 'emit', 'orders', '*');
        select oncely.emit('orders', 'new', '{}', ordering_key => E'a,\"b\"\\x1b\\n', type => 'order');
        select oncely.claim_lease('acme', 'charges', E'held \\x1b', null, 'run', '1 hour', '1 hour');
        insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, worker)
        select 'acme', now(), 0, 'ledger.observe', 'k', 'q', 'observed', reason, 'w' from unnest(array[null, 'duplicate']) as reason";
    sqlx::raw_sql(more).execute(&mut world.sql).await.unwrap();
    world
}

async fn run(world: &World, verb: &[&str], more: &[&str]) -> (i32, String) {
    let arguments: Vec<&str> = verb.iter().chain(more).copied().collect();
    let output = world.oncely(&arguments).await;
    (output.status.code().unwrap(), stdout(&output))
}

/// A value as CSV has it.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => {
            let hidden =
                |c: char| if c.is_control() { c.escape_unicode().to_string() } else { c.to_string() };
            text.chars().map(hidden).collect()
        }
        other => other.to_string(),
    }
}

#[tokio::test]
async fn every_form_of_a_list_holds_the_same_rows() {
    let world = full().await;
    for (verb, field) in LISTS.into_iter().chain([(&["topology", "show"][..], "queues")]) {
        // What changes with the time must not do so in between: asked again until it is the same before and after.
        let (text, lines, table) = testbed::eventually(&format!("{verb:?} stays the same"), || async {
            let (code, text) = run(&world, verb, &["--output", "json"]).await;
            assert_eq!(code, 0, "{verb:?}: {text}");
            let (_, lines) = run(&world, verb, &["-o", "ndjson"]).await;
            let (_, table) = run(&world, verb, &["-o", "csv"]).await;
            let again = run(&world, verb, &["--json"]).await.1;
            if again == text { Ok((text, lines, table)) } else { Err((text, again)) }
        })
        .await
        .unwrap();
        let object: Value = serde_json::from_str(&text).unwrap();
        let rows = object[field].as_array().unwrap_or_else(|| panic!("{verb:?}: {text}"));
        assert!(!rows.is_empty(), "{verb:?}");

        let mut lines: Vec<Map<String, Value>> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut lines {
            let schema = line.remove("schema").unwrap();
            assert_ne!(schema, object["schema"], "another shape has another name");
        }
        assert_eq!(&Value::from(lines), &object[field], "{verb:?}");

        assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{verb:?}: {table:?}");
        assert_eq!(table.lines().count(), rows.len() + 1, "{verb:?}: a line each: {table}");
        let mut table = csv::Reader::from_reader(table.as_bytes());
        let names: Vec<String> = table.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(
            names.iter().collect::<BTreeSet<_>>(),
            rows[0].as_object().unwrap().keys().collect::<BTreeSet<_>>(),
            "{verb:?}"
        );
        for (record, row) in table.into_records().zip(rows) {
            for (name, found) in names.iter().zip(record.unwrap().iter()) {
                assert_eq!(found, cell(&row[name]), "{verb:?}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn an_empty_list_is_empty_in_every_form() {
    let world = World::new().await;
    let arguments = ["audit", "list", "--key", "nobody"];
    for (form, wanted) in [
        ("table", ""),
        ("ndjson", ""),
        ("json", "{\n  \"rows\": [],\n  \"schema\": \"oncely.audit/1\"\n}\n"),
        (
            "csv",
            "tenant,consumer,key,occurred_at,queue,outcome,reason,error_code,detail,attempt,duration_us,worker,login,trace_id\n",
        ),
    ] {
        let output = world.oncely(&[&arguments[..], &["-o", form]].concat()).await;
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), wanted), "{form}");
        let told = String::from_utf8_lossy(&output.stderr).contains("no decision matches");
        assert_eq!(told, form != "json", "{form}");
    }
    let both = world.oncely(&[&arguments[..], &["-o", "csv", "--json"]].concat()).await;
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

/// By schema: each field with what the page says it may be.
fn documented() -> BTreeMap<String, BTreeMap<String, String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/reference/output.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut schema = String::new();
    for line in page.lines() {
        let words: Vec<&str> = line.split('`').collect();
        if line.starts_with("Schema `") {
            schema = words[1].to_owned();
        } else if line.starts_with("| `") && !schema.is_empty() {
            let kind = line.split('|').nth(2).unwrap().trim().to_owned();
            let before = found.entry(schema.clone()).or_default().insert(words[1].to_owned(), kind);
            assert_eq!(before, None, "{schema}: {line}");
        }
    }
    found
}

/// Whether a value is what the page says.
fn is_of(value: &Value, kind: &str) -> bool {
    let kinds: Vec<&str> = kind.split(" or ").collect();
    let is = |wanted: &[&str]| wanted.iter().any(|wanted| kinds.contains(wanted));
    match value {
        Value::Null => is(&["null"]),
        Value::Bool(_) => is(&["boolean"]),
        Value::Number(_) => is(&["number"]),
        Value::String(text) if text.parse::<chrono::DateTime<chrono::Utc>>().is_ok() => {
            text.ends_with('Z') && is(&["time"])
        }
        Value::String(_) => is(&["text"]),
        Value::Array(_) => is(&["list"]),
        Value::Object(_) => is(&["object"]),
    }
}

#[tokio::test]
async fn the_book_says_what_is_in_every_row() {
    let world = full().await;
    let mut pages = documented();
    for (verb, schema) in OBJECTS {
        let (_, text) = run(&world, verb, &["--json"]).await;
        let mut object: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(object.remove("schema"), Some(Value::from(schema)), "{verb:?}");
        let page = pages.remove(schema).unwrap_or_else(|| panic!("the page has no {schema}"));
        assert_eq!(object.keys().collect::<Vec<_>>(), page.keys().collect::<Vec<_>>(), "{schema}");
        for (name, value) in &object {
            assert!(is_of(value, &page[name]), "{schema}: {name} is {value}, and not {}", page[name]);
        }
    }
    let more = [(&["topology", "show"][..], "queues"), (&["migrate", "plan"], "locks")];
    for (verb, field) in LISTS.into_iter().chain(more) {
        if verb == ["migrate", "plan"] {
            // Where something is pending there is a plan; last, since then nothing else is done.
            run(&world, &["migrate", "revert", "--yes"], &[]).await;
        }
        let (_, text) = run(&world, verb, &["--json"]).await;
        let object: Value = serde_json::from_str(&text).unwrap();
        let (_, lines) = run(&world, verb, &["-o", "ndjson"]).await;
        let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        let schema = line["schema"].as_str().unwrap();
        let page = pages.remove(schema).unwrap_or_else(|| panic!("the page has no {schema}"));
        let rows = object[field].as_array().unwrap();
        for row in rows {
            let row = row.as_object().unwrap();
            assert_eq!(row.keys().collect::<Vec<_>>(), page.keys().collect::<Vec<_>>(), "{schema}");
            for (name, value) in row {
                assert!(is_of(value, &page[name]), "{schema}: {name} is {value}, and not {}", page[name]);
            }
        }
    }
    assert_eq!(pages.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "the page has what nobody prints");
}
