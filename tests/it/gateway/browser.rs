//! What a script in a browser gets of answers that come again, and of the gateway's own.

use super::{Site, get, post, with};

const ORIGIN: &str = "Origin: https://app.example\r\n";
const ALLOWED: &str = "access-control-allow-origin";

#[tokio::test]
async fn an_answer_that_comes_again_has_the_headers_that_a_browser_needs() {
    let site = Site::start("").await;
    let request = post("/do/headers", "k", "{}");
    let first = site.ask(&request).await;
    let again = site.ask(&request).await;
    assert!(!first.is_replayed() && again.is_replayed(), "{again:?}");
    for name in [
        ALLOWED,
        "access-control-expose-headers",
        "vary",
        "content-disposition",
        "content-security-policy",
        "x-content-type-options",
        "x-count",
    ] {
        assert!(first.header(name).is_some(), "{name}: {first:?}");
        assert_eq!(again.header(name), first.header(name), "{name}: {again:?}");
    }
    for name in ["set-cookie", "www-authenticate", "age"] {
        assert!(first.header(name).is_some(), "{name}: {first:?}");
        assert_eq!(again.header(name), None, "{name}: {again:?}");
    }
    assert_ne!(again.header("date").as_deref(), Some("Thu, 01 Jan 2026 00:00:00 GMT"), "it is said anew");
    site.stop().await;
}

#[tokio::test]
async fn a_script_that_sent_a_key_can_read_the_gateways_own_answers() {
    let site = Site::start("").await;
    let keyed =
        |path: &str, key: &str, body: &str| with(path, &format!("{ORIGIN}Idempotency-Key: {key}\r\n"), body);
    site.ask(&keyed("/do/201", "k", "{}")).await;
    for (request, problem) in [
        (keyed("/do/torn", "torn", "{}"), "outcome-unknown"),
        (keyed("/do/201", "k", "{ }"), "key-reused"),
        (keyed("/do/201", "\"", "{}"), "key-invalid"),
        (keyed("/do/201", "t\r\nUpgrade: x", "{}"), "unsupported"),
    ] {
        let reply = site.ask(&request).await;
        assert_eq!(reply.problem(), problem, "{reply:?}");
        assert_eq!(reply.header(ALLOWED).as_deref(), Some("https://app.example"), "{reply:?}");
        assert_eq!(reply.header("access-control-allow-credentials").as_deref(), Some("true"), "{reply:?}");
        assert_eq!(reply.header("vary").as_deref(), Some("origin"), "{reply:?}");
        assert!(reply.header("access-control-expose-headers").unwrap().contains("retry-after"), "{reply:?}");
    }
    // The service's answers say themselves who may read them, replays too; and who sends no key has not asked the service whether it may.
    for request in [
        keyed("/do/201", "k", "{}"),
        keyed("/do/410", "gone", "{}"),
        keyed("/do/410", "gone", "{}"),
        with("/do/201", ORIGIN, "{}"),
        get("/do/nothing", ORIGIN),
        post("/do/torn", "torn", "{}"),
    ] {
        assert_eq!(site.ask(&request).await.header(ALLOWED), None, "{request}");
    }
    site.stop().await;
}
