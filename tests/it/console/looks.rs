//! What pages are, whatever is in them: well-formed, labelled, without anything inline, and harmless.

use sqlx::AssertSqlSafe;

use super::{console, crawl, document, encoded, furnish};
use crate::command_line::lived_in;
use crate::support::World;

#[tokio::test]
async fn every_link_and_form_leads_somewhere_and_every_page_is_well_made() {
    let mut world = lived_in().await;
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    let pages = crawl(&operator, &["/"], 400).await;
    let paths: Vec<&str> = pages.iter().map(|(path, _)| path.as_str()).collect();
    for part in [
        "/keys?q=",
        "/keys/export.csv",
        "/keys/export.ndjson",
        "/key?",
        "/failed/letters?",
        "before=",
        "after=",
        "/failed/letter?",
        "/failed/plan?change=requeue",
        "/failed/plan?change=discard",
        "/consumer?name=payments",
        "range=7d",
        "as=table",
        "/outbox?state=parked",
        "/leases",
        "/lease?",
        "/doctor",
        "/assets/htmx-",
    ] {
        assert!(paths.iter().any(|path| path.contains(part)), "no {part} among\n{}", paths.join("\n"));
    }
    for (path, answer) in &pages {
        let is_page = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
        // A way without the console.
        assert!(!is_page || answer.body.contains("On the command line and in SQL"), "{path}");
    }
    drop(running);
}

/// Keys as nobody should make them.
const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "\" onmouseover=\"alert(1)",
    "../../etc/passwd",
    "a/b?c=d&e=f#g%00%0d%0a",
    "line\nbreak\r\ttab\u{1b}[2J",
    "\u{202e}gnirts\u{200b}\u{feff}",
    "'; drop table oncely.audit; --",
    "${7*7}{{7*7}}",
];

#[tokio::test]
async fn hostile_names_are_text_on_every_page() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7 days").await;
    let long = "ü".repeat(127);
    let names = || HOSTILE.into_iter().chain([long.as_str()]);
    for name in names() {
        world.register(name, "7 days").await;
        for statement in [
            "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, error_code, detail, worker, trace_id, login)
             values ($1, clock_timestamp(), 1, $1, $1, $1, 'completed', $1, $1, $1, $1, $1, $1)",
            "insert into oncely.idempotency_keys (created_at, completed_at, attempts, status, tenant, consumer, key, response, last_error)
             values (clock_timestamp(), clock_timestamp(), 1, 'COMPLETED', $1, $1, $1, to_jsonb($1::text), $1)",
            "insert into oncely.idempotency_keys (created_at, attempts, status, tenant, consumer, key, last_error)
             values (clock_timestamp(), 1, 'IN_PROGRESS', 'other', $1, $1, $1)",
            "insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, state,
                 generation, times, failure_group, exchange, routing_key, properties, headers, body, body_size, updated_at, trace_id)
             values ($1, gen_random_uuid(), $1, $1, clock_timestamp(), $1, $1, $1, 6, $1, $1, 'waiting', 1, 1, $1, $1, $1, jsonb_build_object($1, $1),
                 jsonb_build_object($1, $1), convert_to($1, 'utf8'), 50, clock_timestamp(), $1)",
            "insert into oncely.events (tenant, id, created_at, available_at, attempts, state, exchange, routing_key, payload, reason, last_error)
             values ($1, gen_random_uuid(), clock_timestamp(), clock_timestamp(), 12, 'parked', $1, $1, '{}', $1, $1)",
            "insert into oncely.stats values (date_bin('10 seconds', clock_timestamp() - interval '1 minute', 'epoch'), $1, gen_random_uuid(), 1, 1, 0, 0, 0, 0, 0, 0, 0,
                 array_fill(1::bigint, array[20]))",
            "insert into oncely.idempotency_keys (created_at, attempts, status, tenant, consumer, key, owner, fencing_token, not_before, run_ends_at, steps)
             values (clock_timestamp(), 0, 'IN_PROGRESS', 'held', $1, $1, $1, 1, clock_timestamp(), clock_timestamp(),
                 jsonb_build_object($1, jsonb_build_object('state', $1, 'repeat', $1)))",
            "select oncely.record_action($1, 'park', jsonb_build_object('key', $1), 1, $1, left($1, 100))",
            "select oncely.beat(gen_random_uuid(), 'worker', $1, '1', $1, 1, 'd', 'unready', $1, jsonb_build_array(jsonb_build_object('consumer', 'payments',
                 'stalled', jsonb_build_object('since', now(), 'code', $1::text, 'text', $1::text, 'tenant', $1::text, 'key', $1::text))))",
        ] {
            sqlx::query(AssertSqlSafe(statement)).bind(name).execute(&mut world.sql).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        sqlx::query("select oncely.pause_consumer($1, null, $1, left($1, 100))")
            .bind(name)
            .execute(&mut world.sql)
            .await
            .unwrap();
    }
    let (running, operator) = console(&world).await;
    let mut from = vec!["/".to_owned(), "/failed?since=90d".to_owned()];
    for name in names().chain(["%00", "\0"]) {
        let name = encoded(name);
        from.extend(
            ["/keys?q=", "/key?key=", "/failed?key=", "/failed/letters?group=", "/outbox?exchange="]
                .map(|path| format!("{path}{name}")),
        );
        from.push(format!("/key?tenant={name}&consumer={name}&key={name}"));
        from.push(format!("/key?tenant=held&consumer={name}&key={name}"));
        from.push(format!("/lease?tenant=held&consumer={name}&key={name}"));
    }
    let from: Vec<&str> = from.iter().map(String::as_str).collect();
    let pages = crawl(&operator, &from, 600).await;
    assert!(pages.len() > 100);
    let mut shown = 0;
    for (path, answer) in &pages {
        // A file is data, byte for byte.
        if answer.header("content-type").is_none_or(|kind| !kind.starts_with("text/html")) {
            continue;
        }
        for part in ["<script>alert", "onmouseover=\"alert"] {
            assert!(!answer.body.contains(part), "{path} has {part:?}");
        }
        // A field holds what it is to send; what is read has nothing hidden in it.
        let said = document::said(&answer.body);
        for part in ['\u{202e}', '\u{200b}', '\u{1b}', '\r', '\u{feff}'] {
            assert!(!said.contains(part), "{path} says {part:?}");
        }
        shown += answer.body.matches("&lt;script&gt;alert").count();
    }
    assert!(shown > 50, "{shown}");
    // As data: in a query that makes no sense, and in a form.
    for path in [
        "/keys?q=since:%3Cscript%3E",
        "/keys?q=outcome:%22%3Cscript%3E",
        "/failed?since=%3Cb%3E",
        "/outbox?state=%3Cb%3E",
        "/failed/letters?state=%27",
    ] {
        let answer = operator.get(path).await;
        assert!(
            answer.status == 400 && !answer.body.contains("<b>\"") && !answer.body.contains("<script>"),
            "{path}: {}",
            answer.body
        );
        document::check(path, &answer.body);
    }
    drop(running);
}

#[tokio::test]
async fn a_page_that_has_not_changed_is_not_sent_again() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let page = operator.page("/keys").await;
    let tag = page.header("etag").unwrap().to_owned();
    let again = operator.send("GET", "/keys", &[("If-None-Match", &tag), ("HX-Request", "true")], None).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let other = operator.send("GET", "/keys", &[("If-None-Match", "\"another\"")], None).await;
    assert_eq!(other.status, 200);
    // What asks again, and what is put in its place.
    let live =
        document::elements(&page.body).into_iter().find(|element| element.get("id") == Some("live")).unwrap();
    assert_eq!((live.get("hx-get"), live.get("hx-select")), (Some("/keys"), Some("#live")));
    drop(running);
}

#[tokio::test]
async fn the_statements_that_pages_show_can_be_asked() {
    let mut world = lived_in().await;
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    let mut asked = 0;
    for (path, answer) in
        crawl(&operator, &["/", "/keys?q=tenant%3Aacme+reason%3A%22it%27s%22", "/key?key=it%27s"], 400).await
    {
        let parts = answer.body.split("<pre id=\"sql-").skip(1);
        for part in parts {
            let statement = part.split_once("<code>").unwrap().1.split_once("</code>").unwrap().0;
            let statement = format!("explain {}", document::plain(statement));
            let explained = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut world.sql).await;
            explained.unwrap_or_else(|error| panic!("{path}: {error}\n{statement}"));
            asked += 1;
        }
    }
    assert!(asked > 30, "{asked}");
    drop(running);
}
