//! Headers of a stored answer.

use super::{Ask, Server};
use crate::support::World;

#[tokio::test]
async fn of_a_stored_answer_no_header_is_sent_that_is_not_kept() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let ask = Ask::pay("k", "{}");
    let first = server.client.ask(&ask).await;
    assert_eq!(first.status, 201);
    // By another program, or an older release.
    let written = r#"update oncely.idempotency_keys set http_headers = '[["set-cookie", "session=evil"],
        ["content-length", "3"], ["transfer-encoding", "chunked"], ["connection", "upgrade"], ["upgrade", "h2c"],
        ["x-internal", "7"], ["access-control-allow-origin", "*"], ["location", "/receipts/1"]]'"#;
    sqlx::query(written).execute(&mut world.sql).await.unwrap();
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
    assert_eq!(again.header("location").as_deref(), Some("/receipts/1"));
    for name in ["set-cookie", "transfer-encoding", "upgrade", "x-internal", "access-control-allow-origin"] {
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
