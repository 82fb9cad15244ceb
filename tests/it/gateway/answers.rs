//! Each answer is counted by what it was.

use testbed::proxy::Mode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::health::health;
use super::{Site, Upstream, get, post, with};
use crate::support::World;
use crate::support::http::wait_for;

/// Answers of these names are told, so many each; and none of an unknown name.
async fn counted(health: &str, keyed: &str, answers: &[(&str, usize)]) {
    for (answer, count) in answers.iter().chain([&("_other", 0)]) {
        let sample =
            format!("oncely_gateway_requests_total{{keyed=\"{keyed}\",answer=\"{answer}\"}} {count}\n");
        wait_for(health, "/metrics", 200, &sample).await;
    }
}

#[tokio::test]
async fn each_answer_is_counted_by_what_it_was() {
    let mut world = World::new().await;
    world.configure("[postgres]\nconnect_timeout = \"1s\"");
    let (proxy, environment) = world.proxied_postgres().await;
    let settings = "metrics = \"127.0.0.1:0\"\nwait = \"100ms\"\nmax_request = 67108864";
    let site = Site::of(world, Upstream::start().await, settings, &environment).await;
    let health = health(&site.process).await;
    wait_for(&health, "/readyz", 200, "ready").await;
    let first = post("/do/201", "k", "{}");
    let (hanging, client) = (post("/do/hang", "slow", "{}"), site.client);
    let slow = tokio::spawn({
        let hanging = hanging.clone();
        async move { client.ask(&hanging).await }
    });
    site.upstream.wait_for_calls(1).await;
    for (request, said) in [
        (hanging, (409, "in-flight")),
        (first.clone(), (201, "")),
        (first.clone(), (201, "")),
        (post("/do/201", "k", "{ }"), (422, "key-reused")),
        (post("/do/429", "later", "{}"), (429, "")),
        (post("/do/torn", "torn", "{}"), (409, "outcome-unknown")),
        (post("/do/torn", "torn", "{}"), (409, "outcome-unknown")),
        (with("/do/201", "", "{}"), (400, "key-missing")),
        (post("/do/201", "", "{}"), (400, "key-invalid")),
        (
            post("/do/201", "k", "{}").replace("Content-Length: 2", "Content-Length: 67108865"),
            (413, "too-large"),
        ),
        (with("/do/201", "Idempotency-Key: k\r\nUpgrade: x\r\n", "{}"), (501, "unsupported")),
    ] {
        assert_eq!(site.ask(&request).await.said(), (said.0, said.1.to_owned()), "{request}");
    }
    // Two of them fit, and wait for their end.
    let mut large = Vec::new();
    for number in 0..3 {
        let mut stream = TcpStream::connect(site.client.0).await.unwrap();
        let head = format!(
            "POST /do/201 HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: large-{number}\r\nContent-Length: 67108864\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // One that is refused is not read to its end.
        let _ = stream.write_all(&vec![b'x'; 60_000_000]).await;
        large.push(stream);
    }
    wait_for(&health, "/metrics", 200, "{keyed=\"yes\",answer=\"busy\"} 1\n").await;
    drop(large);
    site.upstream.go_on();
    assert_eq!(slow.await.unwrap().status, 201);
    wait_for(&health, "/metrics", 200, "oncely_gateway_inflight_requests 0\n").await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    assert_eq!(site.ask(&first).await.said(), (503, "unavailable".to_owned()));
    assert_eq!(site.ask(&get("/do/200", "")).await.status, 200);
    proxy.set(Mode::Pass);
    let keyed = [
        ("upstream", 3),
        ("replayed", 1),
        ("key-reused", 1),
        ("in-flight", 1),
        ("outcome-unknown", 2),
        ("key-missing", 1),
        ("key-invalid", 1),
        ("too-large", 1),
        ("unsupported", 1),
        ("busy", 1),
        ("unavailable", 1),
        ("upstream-away", 0),
    ];
    counted(&health, "yes", &keyed).await;
    counted(&health, "no", &[("upstream", 1)]).await;
    site.stop().await;
}

#[tokio::test]
async fn a_service_that_gave_no_answer_is_not_counted_as_if_it_had() {
    let settings = "metrics = \"127.0.0.1:0\"\nmax_run = \"1s\"\nunknown = \"forward\"";
    let mut site = Site::start(settings).await;
    let health = health(&site.process).await;
    wait_for(&health, "/readyz", 200, "ready").await;
    for (path, said) in [("/do/torn", (502, "upstream-broken")), ("/do/hang", (504, "upstream-late"))] {
        assert_eq!(site.ask(&post(path, path, "{}")).await.said(), (said.0, said.1.to_owned()), "{path}");
        assert!(site.client.send(&get(path, "")).await.is_ok() == (path == "/do/hang"), "{path}");
    }
    site.upstream.end().await;
    for request in [post("/do/201", "away", "{}"), get("/do/201", "")] {
        assert_eq!(site.ask(&request).await.said(), (503, "upstream-away".to_owned()), "{request}");
    }
    let none = [("upstream-broken", 1), ("upstream-late", 1), ("upstream-away", 1), ("upstream", 0)];
    counted(&health, "yes", &none).await;
    // Half an answer without a key has gone by.
    counted(&health, "no", &[("upstream", 1), ("upstream-late", 1), ("upstream-away", 1)]).await;
    site.stop().await;
}

#[tokio::test]
async fn a_body_that_its_client_breaks_off_is_not_counted_as_the_services_fault() {
    let site = Site::start("metrics = \"127.0.0.1:0\"\nrequired = false").await;
    let health = health(&site.process).await;
    wait_for(&health, "/readyz", 200, "ready").await;
    let malformed =
        "POST /do/200 HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nnot a size\r\n";
    assert_eq!(site.ask(malformed).await.said(), (400, "body-incomplete".to_owned()));
    counted(&health, "no", &[("body-incomplete", 1), ("upstream-broken", 0), ("upstream", 0)]).await;
    for (result, count) in [("cut", 1), ("unknown", 0)] {
        let sample = format!("oncely_gateway_calls_total{{keyed=\"no\",result=\"{result}\"}} {count}\n");
        wait_for(&health, "/metrics", 200, &sample).await;
    }
    let log = site.stop().await;
    assert!(!log.contains("WARN oncely::gateway"), "{log}");
}
