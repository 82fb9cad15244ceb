//! What a gateway must not tell, and which rights it needs.

use super::{Site, Upstream, get, post, with};
use crate::support::{Login, World};

#[tokio::test]
async fn neither_secrets_nor_bodies_are_logged_or_stored() {
    let mut site = Site::start("principal = [\"authorization\", \"cookie\"]\nunknown = \"forward\"").await;
    let headers =
        "Idempotency-Key: k\r\nAuthorization: Bearer S3CR3T-token\r\nCookie: session=S3CR3T-cookie\r\n";
    for path in ["/do/201?token=S3CR3T-query", "/do/torn?token=S3CR3T-query", "/do/500?S3CR3T-query"] {
        let headers = headers.replace("k\r\n", &format!("{}\r\n", path.len()));
        site.ask(&with(path, &headers, "{\"card\": \"S3CR3T-card\"}")).await;
    }
    let torn =
        site.client.send(&get("/do/torn?S3CR3T-query", "Authorization: Bearer S3CR3T-token\r\n")).await;
    assert!(torn.is_err(), "as it came: {torn:?}");
    site.ask(&with(
        "/do/201",
        &headers.replace("Cookie", "Connection: upgrade\r\nUpgrade: S3CR3T\r\nCookie"),
        "S3CR3T",
    ))
    .await;
    assert_eq!(site.upstream.calls().len(), 4, "the service gets all of it");
    let rows =
        site.world.text("select string_agg(k::text, ' ') from oncely.idempotency_keys as k").await.unwrap();
    let trail =
        site.world.text("select string_agg(a::text, ' ') from oncely.audit as a").await.unwrap_or_default();
    let log = site.stop().await;
    assert!(log.contains("DEBUG") && rows.contains("COMPLETED"), "there was nothing to be seen");
    for text in [log, rows, trail] {
        assert!(!text.contains("S3CR3T"), "{text}");
    }
}

#[tokio::test]
async fn a_gateway_needs_the_workers_role_and_no_more() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let environment = login.environment();
    let site = Site::of(world, Upstream::start().await, "", &environment).await;
    let request = post("/do/201", "k", "{}");
    assert_eq!(site.ask(&request).await.status, 201);
    assert!(site.ask(&request).await.is_replayed());
    site.stop().await;
}
