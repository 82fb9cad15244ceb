//! Servers that are away, and questions that are too wide.

use std::time::Duration;

use testbed::proxy::Mode;
use testbed::{Postgres, Urls, eventually};

use super::{Client, Running, console, furnish};
use crate::support::{World, servers};

/// A page that must be there soon, whatever it says.
async fn soon(client: &Client, path: &str) -> (u16, String) {
    let answer = tokio::time::timeout(SOON, client.get(path)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{path} did not come within {SOON:?}"));
    (answer.status, answer.body)
}

/// What was known a moment ago may be told once more; then the page says it.
async fn says_that_it_is_away(client: &Client, path: &str) {
    eventually(path, || async {
        let (status, body) = soon(client, path).await;
        let is_said = status == 503 && body.contains("PostgreSQL does not answer");
        if is_said { Ok(()) } else { Err(format!("{status}: {body}")) }
    })
    .await
    .unwrap();
}

const PAGES: [&str; 6] = ["/", "/keys", "/failed", "/outbox", "/consumers", "/doctor"];

/// A page takes three seconds at most; and the machine that the tests run on is busy.
const SOON: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_postgresql_that_is_gone_is_said_on_every_page_and_one_that_is_back_is_used() {
    let mut postgres = Postgres::start(&[]).await.unwrap();
    let urls = Urls { postgres: postgres.url(), ..servers().await.urls().clone() };
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    for page in PAGES {
        operator.page(page).await;
    }
    postgres.kill().unwrap();
    for page in PAGES {
        says_that_it_is_away(&operator, page).await;
    }
    postgres.restart().await.unwrap();
    eventually("it is used again", || async {
        match operator.get("/").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await
    .unwrap();
    drop(running);
}

#[tokio::test]
async fn a_postgresql_that_says_nothing_holds_no_page_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (proxy, environment) = world.proxied_postgres().await;
    let running = Running::start(&world, &[], &environment).await;
    let operator = running.operator().await;
    operator.page("/keys").await;
    proxy.set(Mode::BlackHole);
    for page in PAGES {
        says_that_it_is_away(&operator, page).await;
    }
    proxy.set(Mode::Pass);
    eventually("it is used again", || async {
        match operator.get("/keys").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_console_starts_while_postgresql_is_away() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let running =
        Running::start(&world, &[], &[("DATABASE_URL", "postgres://x:tops3cret@127.0.0.1:1/x".to_owned())])
            .await;
    let operator = running.operator().await;
    let (status, body) = soon(&operator, "/failed").await;
    assert!(
        status == 503 && body.contains("PostgreSQL does not answer") && !body.contains("tops3cret"),
        "{body}"
    );
    assert!(!running.process.output().contains("tops3cret"));
}

#[tokio::test]
async fn a_broker_or_a_mirror_that_is_away_is_a_sentence() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.with_redis("redis://127.0.0.1:1", "");
    furnish(&mut world).await;
    world.urls.rabbitmq = "amqp://someone:tops3cret@127.0.0.1:1/%2f".to_owned();
    let (running, operator) = console(&world).await;
    for page in PAGES.into_iter().chain(["/consumer?name=payments"]) {
        let (status, body) = soon(&operator, page).await;
        assert_eq!(status, 200, "{page}: {body}");
        assert!(!body.contains("tops3cret"), "{page}");
    }
    assert!(operator.page("/").await.body.contains("RabbitMQ does not answer"));
    assert!(operator.page("/outbox").await.body.contains("PostgreSQL decides alone, only slower"));
    drop(running);
}

#[tokio::test]
async fn a_question_that_takes_too_long_is_too_wide_and_the_other_pages_stay_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    operator.page("/keys").await;
    // Somebody holds the table: whoever asks it waits until statement_timeout.
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table oncely.audit").execute(&mut holder).await.unwrap();
    let (status, body) = soon(&operator, "/keys").await;
    assert!(status == 503 && body.contains("Too wide: narrow the time"), "{status}: {body}");
    for page in ["/failed", "/outbox", "/consumers", "/"] {
        assert_eq!(operator.get(page).await.status, 200, "{page}");
    }
    sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    assert_eq!(operator.get("/keys").await.status, 200);
    // As many as there are sessions, and more: none waits for ever.
    sqlx::raw_sql("begin; lock table oncely.audit").execute(&mut holder).await.unwrap();
    let slow: Vec<_> = (0..12).map(|_| operator.get("/keys")).collect();
    let answers = futures::future::join_all(slow).await;
    assert!(answers.iter().all(|answer| answer.status == 503));
    sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    eventually("all sessions are free", || async {
        match operator.get("/keys").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await
    .unwrap();
    drop(running);
}

#[tokio::test]
async fn a_question_that_fails_is_no_outage() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    // Data that PostgreSQL can't take apart: each look at the processes fails with 22012.
    sqlx::raw_sql(
        "create or replace function oncely.bounded(at timestamptz) returns timestamptz
         language sql stable set search_path = pg_catalog, pg_temp
         as $$ select at + interval '1 s' / (select count(*) - count(*) from pg_class) $$;
         select oncely.beat(gen_random_uuid(), 'worker', 'w', '1', 'h', 1, 'd', 'ready', null, '[]')",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    for page in ["/", "/consumers", "/doctor"] {
        eventually(page, || async {
            let (status, body) = soon(&operator, page).await;
            match status == 500 && body.contains("22012") && !body.contains("does not answer") {
                true => Ok(()),
                false => Err(format!("{status}: {body}")),
            }
        })
        .await
        .unwrap();
    }
    let status = world.oncely(&["status"]).await;
    // Of its queues, which are not there.
    assert_eq!(status.status.code(), Some(5), "{}", String::from_utf8_lossy(&status.stdout));
    let top = world.oncely(&["top", "--once"]).await;
    assert_eq!(top.status.code(), Some(1), "{}", String::from_utf8_lossy(&top.stdout));
    drop(running);
}
