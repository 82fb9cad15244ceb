//! The connections to a service, and what is judged of its answers.

use super::{Site, Upstream, get, post, state};
use crate::support::World;
use crate::support::rude::Rude;

/// A gateway before a service that reads no bodies.
async fn before(rude: &Rude, settings: &str) -> Site {
    let mut upstream = Upstream::start().await;
    upstream.address = rude.address;
    Site::of(World::new().await, upstream, settings, &[]).await
}

#[tokio::test]
async fn a_body_that_a_service_leaves_unread_is_never_the_beginning_of_anothers_request() {
    let rude = Rude::deaf();
    let site = before(&rude, "required = false").await;
    let smuggled = "POST /transfer HTTP/1.1\r\nx-rest: ";
    for (number, method) in ["GET", "HEAD", "OPTIONS", "POST", "PUT"].into_iter().enumerate() {
        for framing in [
            format!("Content-Length: {}\r\n\r\n{smuggled}", smuggled.len()),
            format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len()),
        ] {
            let attack = format!("{method} /prices HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n{framing}");
            assert_eq!(site.ask(&attack).await.status, 200, "{attack}");
            let path = format!("/balance/{number}");
            let reply = site.ask(&get(&path, "Authorization: Bearer other\r\n")).await;
            assert_eq!(String::from_utf8_lossy(&reply.body), path, "{attack}");
        }
    }
    let heads: Vec<_> = rude.heads().into_iter().filter(|head| head.contains("Bearer other")).collect();
    assert_eq!(heads.len(), 10);
    // One without a body leaves nothing behind: its connection is used again.
    let is_own = |head: &String| head.starts_with("GET /balance/") && !head.contains("connection: close");
    assert!(heads.iter().all(is_own), "{heads:?}");
    site.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_read_is_judged() {
    let rude = Rude::early();
    let mut site = before(&rude, "max_request = 8388608").await;
    for number in 0..40 {
        let body = "x".repeat(if number < 20 { 900_000 } else { 6_000_000 });
        let status = [413, 401, 422, 201][number % 4];
        let (path, key) = (format!("/{status}/{number}"), format!("early-{number}"));
        let reply = site.ask(&post(&path, &key, &body)).await;
        assert_eq!(reply.said(), (status, String::new()), "{path}: {reply:?}");
        assert_eq!(String::from_utf8_lossy(&reply.body), path);
        let expected = if [422, 201].contains(&status) { Some("COMPLETED") } else { None };
        let state = state(&mut site.world, &key).await;
        assert!(expected.is_none() || state.as_deref() == expected, "{path}: {state:?}");
        assert_ne!(state.as_deref(), Some("FAILED outcome_unknown"), "{path}");
    }
    site.stop().await;
}

#[tokio::test]
async fn an_answer_of_many_headers_or_folded_ones_is_judged() {
    let site = Site::start("").await;
    for path in ["/do/many", "/do/folded"] {
        let request = post(path, path, "{}");
        let first = site.ask(&request).await;
        assert_eq!(first.said(), (201, String::new()), "{path}: {first:?}");
        let again = site.ask(&request).await;
        assert!(again.is_replayed() && again.status == 201, "{path}: {again:?}");
        match path {
            "/do/many" => assert_eq!(again.header("x-many-299").as_deref(), Some("299")),
            _ => assert_eq!(again.header("x-folded").as_deref(), Some("one two")),
        }
        assert_eq!(site.ask(&get(path, "")).await.status, 201, "{path}");
    }
    site.stop().await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_looks_broken_to_each_client() {
    let site = Site::start("").await;
    for version in ["1.0", "1.1"] {
        for path in ["/do/large-torn", "/do/large-chunked-torn"] {
            for (kind, request) in
                [("keyed", post(path, &format!("{path}-{version}"), "{}")), ("streamed", get(path, ""))]
            {
                let request = request.replace("HTTP/1.1", &format!("HTTP/{version}"));
                let torn = site.client.send(&request).await;
                assert!(torn.is_err(), "{kind} {version} {path}: looks whole: {}", torn.unwrap().body.len());
            }
        }
    }
    // One that is whole keeps its length.
    let old = post("/do/large", "whole", "{}").replace("HTTP/1.1", "HTTP/1.0");
    let whole = site.ask(&old).await;
    assert_eq!((whole.status, whole.body.len()), (201, 300_000));
    assert_eq!(whole.header("content-length").as_deref(), Some("300000"), "{:?}", whole.headers);
    let old = get("/do/large-chunked", "").replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(site.ask(&old).await.body.len(), 600_000);
    site.stop().await;
}
