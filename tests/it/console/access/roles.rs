//! What each role may do, and what it is offered.

use super::{OPERATOR, VIEWER, by_token, with_tokens};
use crate::console::{Running, crawl, document, furnish};
use crate::support::{Login, World};

/// Pages that stand for themselves.
const PAGES: [&str; 10] = [
    "/",
    "/keys",
    "/keys?q=order-1",
    "/failed",
    "/failed/letters",
    "/outbox",
    "/consumers",
    "/consumer?name=payments",
    "/leases",
    "/doctor",
];
/// What is done by forms.
const FORMS: [&str; 9] = [
    "/consumer/pause",
    "/consumer/resume",
    "/failed/operate",
    "/failed/stop",
    "/failed/reveal",
    "/key/reveal",
    "/outbox/change",
    "/lease/release",
    "/settle/say",
];

#[tokio::test]
async fn each_role_gets_what_it_may_and_nothing_else() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let stranger = &running.stranger;
    let (viewer, operator) = (by_token(stranger, VIEWER).await, by_token(stranger, OPERATOR).await);
    for page in PAGES {
        assert_eq!(stranger.get(page).await.status, 401, "{page}");
        for known in [&viewer, &operator] {
            assert_eq!(known.get(page).await.status, 200, "{page}");
            for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
                assert_eq!(known.send(method, page, &[], None).await.status, 405, "{method} {page}");
            }
        }
        let posted = operator.submit(page, &[]).await;
        assert_eq!(posted.status, 405, "POST {page}");
    }
    for form in FORMS {
        assert_eq!(stranger.post(form, &[]).await.status, 401, "{form}");
        assert_eq!(viewer.submit(form, &[]).await.status, 403, "{form}");
        assert_eq!(viewer.get(form).await.status, 405, "{form}");
        let asked = operator.submit(form, &[]).await.status;
        assert!([400, 404].contains(&asked), "{form}: {asked}: it misses what it needs, and nobody's role");
    }
    assert_eq!(operator.get("/nowhere").await.status, 404);
    assert_eq!(
        stranger.get("/nowhere").await.status,
        401,
        "whoever is outside learns nothing of what is inside"
    );
    assert_eq!(stranger.get("/assets/nothing.js").await.status, 404);
    // Nothing of the pages is told to whoever has not come in.
    assert!(!stranger.get("/").await.body.contains("payments"));
}

#[tokio::test]
async fn a_viewer_sees_no_button_that_does_something() {
    let mut world = with_tokens().await;
    furnish(&mut world).await;
    let running = Running::start(&world, &[], &[]).await;
    let viewer = by_token(&running.stranger, VIEWER).await;
    let pages = crawl(&viewer, &["/"], 150).await;
    assert!(pages.len() > 30, "{}", pages.len());
    for (path, answer) in pages {
        if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            for form in document::elements(&answer.body).iter().filter(|element| element.name == "form") {
                let is_harmless = form.get("method").is_none() || form.get("action") == Some("/logout");
                assert!(is_harmless, "{path}: {form:?}");
            }
            assert!(!answer.body.contains("/failed/plan"), "{path}");
        }
    }
}

#[tokio::test]
async fn what_the_postgresql_role_forbids_is_neither_offered_nor_done() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let running = Running::start(&world, &[], &auditor.environment()).await;
    let operator = running.operator().await;
    let pages = crawl(&operator, &["/"], 150).await;
    assert!(pages.len() > 30);
    for (path, answer) in &pages {
        assert!(!answer.body.contains("/failed/plan") && !answer.body.contains("/failed/operate"), "{path}");
        assert!(
            !answer.body.contains("geheim") && !answer.body.contains("action=\"/consumer/pause\""),
            "{path}"
        );
        assert!(!answer.body.contains("/reveal\""), "{path}");
    }
    let id =
        world.text("select id::text from oncely.dead_letters where state = 'waiting' limit 1").await.unwrap();
    for (path, fields) in [
        ("/consumer/pause", vec![("name", "payments"), ("reason", "why")]),
        ("/consumer/resume", vec![("name", "payments")]),
        ("/failed/operate", vec![("change", "discard"), ("id", &id), ("note", "why"), ("typed", "1")]),
        ("/failed/reveal", vec![("id", &id)]),
        ("/key/reveal", vec![("key", "key-1")]),
        (
            "/outbox/change",
            vec![("change", "discard"), ("note", "why"), ("typed", "3"), ("before", "9000000000000000")],
        ),
    ] {
        let answer = operator.submit(path, &fields).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert!(answer.body.contains(&auditor.name), "{path} names the login: {}", answer.body);
    }
    assert_eq!(operator.get(&format!("/failed/plan?change=requeue&id={id}")).await.status, 403);
    let untouched = "select (select count(*) from oncely.controls) + (select count(*) from oncely.operator_actions) + (select count(*) from oncely.events)";
    assert_eq!(world.count(untouched).await, 4);
    drop(running);
    auditor.drop_now(&mut world).await;
}
