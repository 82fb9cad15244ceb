//! The trail: found, turned page by page, fetched as a file, and followed.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::AssertSqlSafe;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::{Answer, console, document, encoded};
use crate::support::World;

/// So many decisions, `together` at a time, a second apart.
async fn decided(world: &mut World, count: u32, together: u32) {
    let insert = format!(
        "insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
         select case n % 3 when 0 then 'globex' else 'acme' end, date_trunc('second', clock_timestamp()) - n / {together} * interval '1 second', 1, 3100, 'payments',
             'key-' || n, 'payments', case n % 100 when 7 then 'retried' else 'completed' end, 'worker-1'
         from generate_series(0, {count} - 1) as n"
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut world.sql).await.unwrap();
}

async fn world() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world
}

/// The ids and keys of the rows of a page, in order.
fn rows(answer: &Answer) -> Vec<(String, String)> {
    let rows = document::elements(&answer.body)
        .into_iter()
        .filter_map(|element| element.get("id").map(str::to_owned));
    let ids: Vec<String> = rows.filter(|id| id.starts_with("row-") && !id.ends_with("-key")).collect();
    ids.into_iter()
        .map(|id| {
            let row = answer.between(&format!("<tr id=\"{id}\">"), "</tr>");
            let key = row.split_once("<code><bdi>").map_or("", |(_, rest)| rest.split('<').next().unwrap());
            (id, key.to_owned())
        })
        .collect()
}

/// The link with an id.
fn link(answer: &Answer, id: &str) -> Option<String> {
    let all = document::elements(&answer.body);
    all.iter().find(|element| element.get("id") == Some(id)).and_then(|a| a.get("href")).map(str::to_owned)
}

#[tokio::test]
async fn pages_hold_each_row_once_though_many_have_one_time() {
    let mut world = world().await;
    // Batches of 120: pages of 50 end in the middle of them.
    decided(&mut world, 1_000, 120).await;
    let (running, operator) = console(&world).await;
    let mut seen = BTreeSet::new();
    let mut path = Some("/keys".to_owned());
    let mut pages = 0;
    while let Some(next) = path {
        let answer = operator.page(&next).await;
        document::check(&next, &answer.body);
        for (id, key) in rows(&answer) {
            assert!(seen.insert(key.clone()), "{key} twice ({id})");
        }
        pages += 1;
        assert!(pages < 100);
        path = link(&answer, "older");
    }
    assert_eq!(seen.len(), 1_000);
    drop(running);
}

#[tokio::test]
async fn a_search_finds_what_it_says_and_says_how_far_it_looked() {
    let mut world = world().await;
    decided(&mut world, 300, 10).await;
    let (running, operator) = console(&world).await;
    let found = async |query: &str| {
        let answer = operator.page(&format!("/keys?q={}", encoded(query))).await;
        let keys: Vec<String> = rows(&answer).into_iter().map(|(_, key)| key).collect();
        (keys, answer)
    };
    assert_eq!(found("key-17").await.0, ["key-17"]);
    assert_eq!(found("outcome:retried").await.0, ["key-7", "key-107", "key-207"]);
    assert_eq!(found("outcome:retried tenant:globex since:2h").await.0, ["key-207"]);
    assert_eq!(found("tenant:acme key:key-18").await.0, Vec::<String>::new());
    let (none, answer) = found("tenant:nobody since:2h").await;
    assert!(none.is_empty() && answer.body.contains("Nothing in 2h."), "{}", answer.body);
    assert!(answer.body.contains("Search 24h"), "the next longer time");
    let (_, answer) = found("key-17").await;
    assert!(answer.body.contains("oncely audit list --key key-17"), "{}", answer.body);
    // Facets keep what was asked.
    let (_, answer) = found("tenant:acme since:2h").await;
    let facet = link(&answer, "facet-outcome-3").unwrap();
    assert!(
        facet.contains("tenant%3Aacme")
            && facet.contains("outcome%3Aretried")
            && facet.contains("since%3A2h"),
        "{facet}"
    );
    drop(running);
}

#[tokio::test]
async fn a_burst_after_a_long_silence_is_walked_through_in_parts() {
    let mut world = world().await;
    // Sixty thousand within three seconds, an hour ago: a step of an hour would hold all of them.
    sqlx::raw_sql(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select case n when 59999 then 'globex' else 'acme' end, date_trunc('second', now()) - interval '1 hour' - n / 200 * interval '10 milliseconds',
             1, 'payments', 'key-' || n, 'payments', 'completed', 'worker-1'
         from generate_series(0, 59999) as n",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let (running, operator) = console(&world).await;
    let looked = async |query: &str, wanted: usize| {
        let mut path = Some(format!("/keys?q={}", encoded(query)));
        let (mut keys, mut steps) = (Vec::new(), 0);
        while let Some(next) = path.take_if(|_| keys.len() < wanted) {
            let answer = operator.page(&next).await;
            keys.extend(rows(&answer).into_iter().map(|(_, key)| key));
            path = link(&answer, "older");
            steps += 1;
            assert!(steps < 100);
        }
        keys
    };
    let newest = looked("", 50).await;
    let newest_batch: BTreeSet<String> = (0..200).map(|n| format!("key-{n}")).collect();
    assert!(newest.len() == 50 && newest.iter().all(|key| newest_batch.contains(key)), "{newest:?}");
    // The last one of all is found, in however many steps.
    assert_eq!(looked("tenant:globex", usize::MAX).await, ["key-59999"]);
    let listed = world.oncely(&["audit", "list", "--tenant", "globex", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["rows"][0]["key"], "key-59999", "a list looks at everything");
    drop(running);
}

#[tokio::test]
async fn old_rows_are_reached_step_by_step() {
    let mut world = world().await;
    for age in ["40 days", "100 days", "300 days"] {
        sqlx::raw_sql(AssertSqlSafe(format!(
            "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
             values ('acme', clock_timestamp() - interval '{age}', 1, 'payments', 'old-{}', 'payments', 'completed', 'worker-1')",
            age.replace(' ', "-")
        )))
        .execute(&mut world.sql)
        .await
        .unwrap();
    }
    let (running, operator) = console(&world).await;
    let mut path = Some("/keys?q=since%3A365d".to_owned());
    let (mut keys, mut steps) = (Vec::new(), 0);
    while let Some(next) = path {
        let answer = operator.page(&next).await;
        keys.extend(rows(&answer).into_iter().map(|(_, key)| key));
        path = link(&answer, "older");
        steps += 1;
        assert!(steps < 20);
    }
    assert_eq!(keys, ["old-40-days", "old-100-days", "old-300-days"]);
    assert_eq!(operator.get("/keys?after=nonsense").await.status, 400);
    drop(running);
}

#[tokio::test]
async fn a_file_holds_all_that_a_search_finds() {
    let mut world = world().await;
    decided(&mut world, 2_500, 400).await;
    sqlx::raw_sql(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker)
         values ('acme', clock_timestamp(), 1, 'payments', '=cmd()', 'payments', 'completed', 'a, \"b\"', 'worker-1')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let (running, operator) = console(&world).await;
    let csv = operator.page("/keys/export.csv?q=since%3A2h").await;
    assert!(csv.header("content-disposition").unwrap().contains("oncely-trail.csv"));
    let lines: Vec<&str> = csv.body.lines().collect();
    assert_eq!(lines.len(), 2_502);
    assert!(lines[0].starts_with("occurred_at,outcome,tenant,consumer,key,"));
    assert!(lines[1].contains("\"'=cmd()\"") && lines[1].contains("\"a, \"\"b\"\"\""), "{}", lines[1]);
    let ndjson = operator.page("/keys/export.ndjson?q=tenant%3Aglobex").await;
    let objects: Vec<serde_json::Value> =
        ndjson.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let keys: BTreeSet<&str> = objects.iter().map(|object| object["key"].as_str().unwrap()).collect();
    assert_eq!((objects.len(), keys.len()), (834, 834));
    assert!(objects.iter().all(|object| object["tenant"] == "globex"));
    assert_eq!(operator.get("/keys/export.csv?q=since%3Asoon").await.status, 400);
    drop(running);
}

/// Reads on until the text holds a part.
async fn read_until(stream: &mut TcpStream, text: &mut String, wanted: &str) {
    let read = async {
        let mut buffer = [0; 4_096];
        while !text.contains(wanted) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it ended: {text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("in time");
}

/// One more decision.
async fn comes(world: &mut World, tenant: &str, key: &str) {
    sqlx::query(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         values ($1, clock_timestamp(), 1, 'payments', $2, 'payments', 'completed', 'worker-1')",
    )
    .bind(tenant)
    .bind(key)
    .execute(&mut world.sql)
    .await
    .unwrap();
}

#[tokio::test]
async fn whoever_follows_gets_what_comes_and_goes_on_behind_the_last_row() {
    let mut world = world().await;
    let (running, operator) = console(&world).await;
    comes(&mut world, "acme", "before").await;
    let path = "/keys/tail?q=tenant%3Aacme";
    let mut text = String::new();
    let mut stream = operator.open("GET", path, &[], None).await;
    read_until(&mut stream, &mut text, "retry: 3000").await;
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    comes(&mut world, "globex", "somebody-elses").await;
    comes(&mut world, "acme", "first").await;
    read_until(&mut stream, &mut text, ">first<").await;
    // The looks behind the first new row find nothing.
    let mut later = String::new();
    read_until(&mut stream, &mut later, "nothing new").await;
    text.push_str(&later);
    assert!(!text.contains(">before<") && !text.contains("somebody-elses"), "{text}");
    let id = text.split("id: ").nth(1).unwrap().lines().next().unwrap().to_owned();
    drop(stream);
    comes(&mut world, "acme", "second").await;
    let mut text = String::new();
    let mut stream = operator.open("GET", path, &[("Last-Event-ID", &id)], None).await;
    read_until(&mut stream, &mut text, ">second<").await;
    assert!(!text.contains(">first<"), "{text}");
    assert_eq!(operator.get("/keys/tail?q=since%3Asoon").await.status, 400);
    drop(running);
}

#[tokio::test]
async fn whoever_followed_a_primary_whose_clock_was_ahead_is_told_what_comes() {
    let mut world = world().await;
    let (running, operator) = console(&world).await;
    let ahead = (chrono::Utc::now() + chrono::Duration::hours(1)).timestamp_micros();
    let mut text = String::new();
    let last = format!("{ahead}.1.0.1");
    let mut stream = operator.open("GET", "/keys/tail", &[("Last-Event-ID", &last)], None).await;
    read_until(&mut stream, &mut text, "retry: 3000").await;
    comes(&mut world, "acme", "after-the-failover").await;
    read_until(&mut stream, &mut text, ">after-the-failover<").await;
    drop(running);
}

#[tokio::test]
async fn a_console_that_ends_ends_the_streams_that_somebody_follows() {
    let world = world().await;
    let (running, operator) = console(&world).await;
    let mut stream = operator.open("GET", "/keys/tail", &[], None).await;
    let mut buffer = [0; 1_024];
    assert!(stream.read(&mut buffer).await.unwrap() > 0);
    let mut process = running.process;
    let ended = process.terminate(Duration::from_secs(20)).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", process.output());
}

#[tokio::test]
async fn a_key_shows_its_story_and_leads_to_what_was_decided_with_it() {
    let world = crate::command_line::lived_in().await;
    let (running, operator) = console(&world).await;
    let both = operator.page("/key?key=order-1").await;
    let one = operator.page("/key?key=order-1&tenant=acme&consumer=payments").await;
    for part in [
        "COMPLETED: it took effect, once.",
        "1 message came with this key and ANOTHER payload.",
        "not run: mirror knew it",
        "key_conflict",
        "has it, of this epoch",
    ] {
        assert!(document::said(&one.body).contains(part), "no {part:?} in\n{}", one.body);
    }
    assert!(both.body.contains("globex") && both.body.contains("FAILED: given up after 1 attempt"));
    assert!(both.body.contains("A dead letter waits") && both.body.contains("Requeue…"));
    assert!(one.body.contains("oncely explain order-1 --tenant acme --consumer payments"));
    assert!(
        one.body.contains("••• text of 7") && !one.body.contains("&quot;order-1&quot;"),
        "the response is outlined"
    );
    let batch = document::elements(&one.body)
        .into_iter()
        .find_map(|element| element.get("href").filter(|href| href.contains("since%3A")).map(str::to_owned))
        .unwrap();
    assert_eq!(rows(&operator.page(&batch).await).first().map(|(_, key)| key.as_str()), Some("order-1"));
    let revealed = operator
        .submit("/key/reveal", &[("key", "order-1"), ("tenant", "acme"), ("consumer", "payments")])
        .await;
    assert!(document::plain(&revealed.body).contains("\"done\": \"order-1\""), "{}", revealed.body);
    assert!(operator.page("/key?key=never-seen").await.body.contains("Nothing is known of this key."));
    drop(running);
}

/// A trail of many rows, keys and letters: what is asked goes by indexes. (The planner decides as it always does.)
#[tokio::test]
async fn no_page_reads_a_large_table_from_end_to_end() {
    let mut world = world().await;
    world.register("payments", "7 days").await;
    sqlx::raw_sql(
        "insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
         select 'tenant-' || n % 50, clock_timestamp() - n * interval '20 milliseconds', 1, 3100, 'payments', 'key-' || n, 'payments', 'completed', 'worker-1'
         from generate_series(200000, 0, -1) as n;
         insert into oncely.idempotency_keys (created_at, completed_at, attempts, status, tenant, consumer, key)
         select clock_timestamp(), clock_timestamp(), 1, 'COMPLETED', 'tenant-' || n % 50, 'payments', 'key-' || n from generate_series(0, 100000) as n;
         insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, detail, attempt, queue, worker, state, generation, times,
             failure_group, exchange, routing_key, properties, headers, body, body_size, updated_at)
         select 'tenant-' || n % 50, gen_random_uuid(), 'payments', 'dead-' || n, clock_timestamp() - n * interval '5 seconds', 'attempts_exhausted', 'boom', 6,
             'payments', 'worker-1', case n % 10 when 0 then 'waiting' else 'requeued' end, 1, 1, 'attempts_exhausted/-/' || n % 5, '', 'payments', '{}', '{}',
             convert_to(repeat('x', 300), 'utf8'), 300, clock_timestamp() from generate_series(20000, 0, -1) as n;
         analyze oncely.audit, oncely.idempotency_keys, oncely.dead_letters;
         -- What autosummarize does as the trail grows.
         select brin_summarize_new_values(c.oid) from pg_class as c join pg_am as a on a.oid = c.relam where a.amname = 'brin' and c.relkind = 'i';",
    )
    .execute(&mut world.sql)
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    // What this session has counted is told, and what the console counts when its sessions end.
    sqlx::raw_sql("select pg_stat_force_next_flush()").execute(&mut world.sql).await.unwrap();
    let before = read_from_end_to_end(&mut world).await;
    let (running, operator) = console(&world).await;
    for path in [
        "/keys",
        "/keys?q=key-1234",
        "/keys?q=tenant%3Atenant-7",
        "/keys?q=tenant%3Anobody",
        "/key?key=key-777",
        "/key?tenant=tenant-27&consumer=payments&key=key-777",
        "/failed?since=2h",
        "/failed/letters?since=2h",
        "/failed/letters?state=any&since=24h",
        "/consumers",
        "/doctor",
        "/",
    ] {
        operator.page(path).await;
    }
    let mut process = running.process;
    process.terminate(Duration::from_secs(20)).await.unwrap();
    world.wait_for("select count(*) from pg_stat_activity where datname = current_database() and application_name like 'oncely%'", 0).await;
    let read = read_from_end_to_end(&mut world).await - before;
    assert!(read < 15_000, "{read} rows of {before} were read from end to end");
}

/// How many rows of the large tables were read without an index.
async fn read_from_end_to_end(world: &mut World) -> i64 {
    sqlx::raw_sql("select pg_stat_clear_snapshot()").execute(&mut world.sql).await.unwrap();
    world
        .count(
            "select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_user_tables where schemaname = 'oncely'
             and (relname like 'audit%' or relname in ('idempotency_keys', 'dead_letters'))",
        )
        .await
}
