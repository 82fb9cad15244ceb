//! Headers of a stored answer.

use super::{Ask, Server, pool};
use crate::support::World;

#[tokio::test]
async fn a_stored_answer_keeps_its_headers_but_those_that_are_nobody_elses() {
    let mut world = World::new().await;
    let omitted = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.omit_headers([axum::http::HeaderName::from_static("x-internal")])
    };
    let server = Server::start(pool(world.database.url(), 2).await, omitted).await;
    let ask = Ask::pay("k", "{}");
    let first = server.client.ask(&ask).await;
    assert_eq!(first.status, 201);
    assert!(
        !world
            .text("select http_headers::text from oncely.idempotency_keys")
            .await
            .unwrap()
            .contains("x-internal")
    );
    // By another program, or an older release.
    let written = r#"update oncely.idempotency_keys set http_headers = '[["set-cookie", "session=evil"],
        ["content-length", "3"], ["transfer-encoding", "chunked"], ["connection", "upgrade"], ["upgrade", "h2c"],
        ["x-internal", "7"], ["access-control-allow-origin", "*"], ["authorization", "Bearer s3cr3t"],
        ["content-disposition", "attachment"], ["x-content-type-options", "nosniff"], ["location", "/receipts/1"]]'"#;
    sqlx::query(written).execute(&mut world.sql).await.unwrap();
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
    assert_eq!(again.header("location").as_deref(), Some("/receipts/1"));
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(again.header(name).as_deref(), Some(value), "{name}");
    }
    for name in ["set-cookie", "authorization", "transfer-encoding", "upgrade", "x-internal"] {
        assert_eq!(again.header(name), None, "{name}");
    }
    assert_eq!(again.header("content-length"), Some(first.body.len().to_string()));
    assert_eq!(again.header("connection").as_deref(), Some("close"), "the server's own");
}

#[tokio::test]
async fn bytes_that_are_encoded_stay_said_to_be_so() {
    let world = World::new().await;
    let server = Server::of(&world).await;
    let ask = Ask::pay("k", r#"{"do":"encoded"}"#);
    let (first, again) = (server.client.ask(&ask).await, server.client.ask(&ask).await);
    assert!(!first.is_replayed() && again.is_replayed());
    for reply in [&first, &again] {
        assert_eq!(reply.header("content-encoding").as_deref(), Some("gzip"));
    }
    assert_eq!(first.body, again.body);
}
