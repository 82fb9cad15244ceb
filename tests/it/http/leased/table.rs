//! What is answered in which situation.

use std::time::Duration;

use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, OnLarge};

use super::{Ask, EFFECTS, changed, in_postgresql, of_each_store, pool, server};
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

#[tokio::test]
async fn a_request_again_gets_the_same_bytes_and_no_handler_runs() {
    let mut world = World::new().await;
    let (servers, _redis) = of_each_store(&world).await;
    for (store, server) in &servers {
        let first = server.client.ask(&Ask::pay(&format!("{store}-1"), "{}")).await;
        assert_eq!((first.status, first.is_replayed()), (201, false), "{store}: {first:?}");
        assert!(first.header("set-cookie").is_some() && first.header("x-internal").is_some());
        for key in [format!("{store}-1"), format!("\"{store}-1\"")] {
            let again = server.client.ask(&Ask::pay(&key, "{}")).await;
            assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body), "{store}");
            for name in ["content-type", "location", "link"] {
                assert_eq!(again.header(name), first.header(name), "{store}: {name}");
            }
            assert_eq!(again.header("link").as_deref(), Some("</a>; rel=\"a\" | </b>; rel=\"b\""));
            assert_eq!(
                (again.header("set-cookie"), again.header("x-internal").as_deref()),
                (None, Some("7"))
            );
        }
        // Bytes of no text, and none.
        for (what, status, length) in [("binary", 200, 256), ("empty", 204, 0)] {
            let ask = Ask::pay(&format!("{store}-{what}"), &format!("{{\"do\":{what:?}}}"));
            let (first, again) = (server.client.ask(&ask).await, server.client.ask(&ask).await);
            assert_eq!(
                (again.status, again.is_replayed(), again.body.len()),
                (status, true, length),
                "{store}"
            );
            assert_eq!(again.body, first.body, "{store}: {what}");
        }
        assert_eq!(server.calls.count(), 3, "{store}");
    }
    assert_eq!(world.count(EFFECTS).await, 9);
}

#[tokio::test]
async fn a_request_without_a_key_or_with_a_wrong_one_runs_nothing() {
    let mut world = World::new().await;
    let server = changed(&world, |settings| settings.max_request(1_000)).await;
    let reply = server.client.ask(&Ask::bare("{}")).await;
    assert_eq!((reply.status, reply.problem().as_str()), (400, "key-missing"));
    assert!(reply.header("link").unwrap().contains("describedby"));
    for key in ["", "a b", "a,b", &"k".repeat(256)] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "key-invalid"), "{key:?}");
    }
    let large = Ask::pay("large", &format!("\"{}\"", "x".repeat(999)));
    let reply = server.client.ask(&large).await;
    assert_eq!((reply.status, reply.problem().as_str()), (413, "too-large"));
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (0, 0));
}

#[tokio::test]
async fn a_key_may_be_optional_and_then_there_may_be_no_run() {
    let world = World::new().await;
    let server = changed(&world, |settings| settings.required(false)).await;
    let without = server.client.ask(&Ask::bare("{}").to("POST", "/free")).await;
    assert_eq!((without.status, without.body.as_slice()), (200, &b"without a key"[..]));
    let with = Ask::pay("a", "{}").to("POST", "/free");
    assert_eq!(server.client.ask(&with).await.body, b"with a key");
    assert!(server.client.ask(&with).await.is_replayed());
    // A handler that needs a run has none: its own mistake.
    assert_eq!(server.client.ask(&Ask::bare("{}")).await.status, 500);
}

#[tokio::test]
async fn the_same_key_with_another_request_is_told_nothing_of_the_first() {
    let mut world = World::new().await;
    let (servers, _redis) = of_each_store(&world).await;
    for (store, server) in &servers {
        let same = || Ask::pay(store, "{}").to("POST", "/pay/7?a=1");
        let first = server.client.ask(&same().header("X-User", "ann")).await;
        assert_eq!(first.status, 201, "{store}");
        for ask in [
            same().to("POST", "/pay/8?a=1").header("X-User", "ann"),
            same().to("POST", "/pay/7?a=2").header("X-User", "ann"),
            Ask { body: "{ }".to_owned(), ..same() }.header("X-User", "ann"),
            same().header("X-User", "bob"),
            same(),
        ] {
            let reply = server.client.ask(&ask).await;
            assert_eq!((reply.status, reply.problem().as_str()), (422, "key-reused"), "{store}: {ask:?}");
            assert_eq!((reply.is_replayed(), reply.header("location")), (false, None));
        }
        assert!(server.client.ask(&same().header("X-User", "ann")).await.is_replayed());
        assert_eq!(server.calls.count(), 1, "{store}");
    }
    assert_eq!(world.count(EFFECTS).await, 3);
}

#[tokio::test]
async fn a_copy_is_told_when_the_lease_ends_of_the_run_that_it_waits_for() {
    let mut world = World::new().await;
    let short = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.wait(Duration::from_millis(300)).lease(Duration::from_secs(20))
    };
    let (here, there) = (changed(&world, short).await, changed(&world, short).await);
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("slow", r#"{"do":"wait"}"#);
    let first = tokio::spawn({
        let (client, ask) = (here.client, ask.clone());
        async move { client.ask(&ask).await }
    });
    world.wait_for(WAITING, 1).await;
    // Another process asks the store; this one knows that it is at work.
    for (server, rest) in [(&there, 10..=20), (&here, 1..=1)] {
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.problem().as_str()), (409, "in-flight"));
        let said: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!(rest.contains(&said), "{said}");
    }
    gate.open().await;
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert_eq!((here.calls.count(), there.calls.count(), world.count(EFFECTS).await), (1, 0, 1));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_sent_whole_and_stored_without_its_body() {
    let mut world = World::new().await;
    let (servers, _redis) = of_each_store(&world).await;
    for (store, server) in &servers {
        // Over what a store takes, and over max_response; one that fits.
        for (bytes, is_kept) in [(40_000, true), (60_000, false), (300_000, false)] {
            let body = format!(r#"{{"do":"sized","bytes":{bytes}}}"#);
            let ask = Ask::pay(&format!("{store}-{bytes}"), &body);
            let (first, again) = (server.client.ask(&ask).await, server.client.ask(&ask).await);
            assert_eq!((first.status, first.is_replayed()), (201, false), "{store}: {bytes}");
            let sent = first.body.windows(1).filter(|byte| byte == b"x").count();
            assert_eq!(sent, bytes, "{store}");
            assert_eq!((again.status, again.is_replayed()), (201, true), "{store}: {bytes}");
            assert_eq!(again.header("location").as_deref(), Some("/receipts/1"));
            let omitted = again.header("oncely-body-omitted");
            let kept = (bytes, None);
            let (length, marked) = if is_kept { kept } else { (0, Some("true")) };
            assert_eq!((again.body.len(), omitted.as_deref()), (length, marked), "{store}: {bytes}");
        }
    }
    assert_eq!(world.count(EFFECTS).await, 9);
}

#[tokio::test]
async fn settings_that_cannot_be_are_told_all_at_once() {
    let world = World::new().await;
    let store = || async { in_postgresql(&world).await };
    let bad = IdempotencyLayer::leased(store().await)
        .handler_limit(Duration::from_millis(1))
        .lease(Duration::from_secs(60))
        .retry(vec![], 0, 1)
        .on_large(OnLarge::Fail)
        .consumer(Consumer::shared("q"))
        .fingerprint(FingerprintPolicy::CanonicalJson)
        .build()
        .unwrap_err()
        .to_string();
    for part in ["tenant is not set", "handler_limit:", "lease:", "retry:", "on_large:", "fingerprint:"] {
        assert!(bad.contains(part), "{part}: {bad}");
    }
    let transactional = IdempotencyLayer::transactional(pool(world.database.url(), 1).await);
    let bad = transactional.lease(Duration::from_secs(10)).build().unwrap_err().to_string();
    assert!(bad.contains("lease and retry"), "{bad}");
    // A lease is never longer than its handler may take.
    let quick = changed(&world, |settings| settings.handler_limit(Duration::from_secs(5))).await;
    assert_eq!(quick.client.ask(&Ask::pay("quick", "{}")).await.status, 201);
    drop(server(&world).await);
}
