//! What a gateway does not pass on.

use super::{Site, get, post, with};
use crate::support::World;

#[tokio::test]
async fn what_can_not_be_kept_is_refused() {
    let site = Site::start("max_request = 1000").await;
    let key = "Idempotency-Key: k\r\n";
    for (request, status, problem) in [
        (with("/do/201", "", "{}"), 400, "key-missing"),
        (with("/do/201", "Connection: idempotency-key\r\nIdempotency-Key: k\r\n", "{}"), 400, "key-missing"),
        (with("/do/201", "Idempotency-Key: a\r\nIdempotency-Key: b\r\n", "{}"), 400, "key-invalid"),
        (post("/do/201", "", "{}"), 400, "key-invalid"),
        (post("/do/201", "k", &"x".repeat(1_001)), 413, "too-large"),
        (
            format!(
                "POST /do/201 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n{key}Transfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n0\r\n\r\n",
                "x".repeat(1_001)
            ),
            413,
            "too-large",
        ),
        (with("/do/201", &format!("{key}Transfer-Encoding: gzip, chunked\r\n"), ""), 501, "unsupported"),
        (get("/do/200", "Connection: upgrade\r\nUpgrade: websocket\r\n"), 501, "unsupported"),
        (
            with("/do/201", &format!("{key}Connection: upgrade\r\nUpgrade: websocket\r\n"), "{}"),
            501,
            "unsupported",
        ),
        (
            "CONNECT shop:443 HTTP/1.1\r\nHost: shop:443\r\nConnection: close\r\n\r\n".to_owned(),
            501,
            "unsupported",
        ),
        ("OPTIONS * HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n".to_owned(), 400, "malformed"),
        ("GET /do/200 HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 400, "malformed"),
        (get("/do/200", "Host: other\r\n"), 400, "malformed"),
    ] {
        let reply = site.ask(&request).await;
        assert_eq!(reply.said(), (status, problem.to_owned()), "{request}: {reply:?}");
    }
    assert!(site.upstream.calls().is_empty(), "{:?}", site.upstream.calls());
    // The service can't change the protocol either.
    assert_eq!(site.ask(&get("/do/switch", "")).await.said(), (502, "upstream-broken".to_owned()));
    assert_eq!(site.ask(&get("/do/nothing", "")).await.said(), (502, "upstream-broken".to_owned()));
    // Just as much is taken.
    assert_eq!(site.ask(&post("/do/201", "k", &"x".repeat(1_000))).await.status, 201);
    site.stop().await;
}

#[tokio::test]
async fn a_configuration_is_refused_with_all_that_is_wrong_with_it() {
    let mut world = World::new().await;
    world.configure("[gateway]\nlisten = \"0.0.0.0:0\"\nupstream = \"http://u:S3CR3T@shop.example.com\"\nunknown = \"guess\"\n[gatway]\nx = 1");
    let refused = world.oncely(&["gateway"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(78), "{told}");
    for part in [
        "gateway.listen: 0.0.0.0:0 is reached from other machines",
        "gateway.upstream: must hold no user",
        "in plaintext",
        "gateway.unknown: must be one of \"hold\", \"forward\"",
        "gatway: unknown key; did you mean gateway?",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("S3CR3T"), "{told}");
    let world = World::new().await;
    std::fs::write(world.file(), "").unwrap();
    let refused = world.oncely(&["gateway"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("gateway.principal: is missing"), "{told}");
    assert!(told.contains("gateway.upstream: is missing") && refused.status.code() == Some(78), "{told}");
    // Another cell's database.
    std::fs::write(world.file(), "[cell]\nname = \"other\"\n[gateway]\nprincipal = []").unwrap();
    let refused =
        world.oncely(&["gateway", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]).await;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        told.contains("is the cell \"main\", not \"other\"") && refused.status.code() == Some(78),
        "{told}"
    );
}
