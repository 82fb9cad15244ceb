//! Clients that send slowly, or nothing.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::read;
use super::health::health;
use super::{Client, Site, post};
use crate::support::http::wait_for;

/// A client that announces so many bytes, and sends these.
async fn announced(client: Client, bytes: usize, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(client.0).await.unwrap();
    let head = format!(
        "POST /do/201 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nIdempotency-Key: slow\r\nContent-Length: {bytes}\r\n\r\n{sent}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn clients_that_announce_much_and_send_nothing_keep_nobody_out() {
    let site = Site::start("metrics = \"127.0.0.1:0\"").await;
    let health = health(&site.process).await;
    let mut silent = Vec::new();
    // 128 of them would be all that may be at work.
    for _ in 0..200 {
        silent.push(announced(site.client, 1 << 20, "").await);
    }
    wait_for(&health, "/metrics", 200, "oncely_gateway_inflight_requests 200\n").await;
    let reply = site.ask(&post("/do/201", "k", "{}")).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    drop(silent);
    site.stop().await;
}

#[tokio::test]
async fn a_body_with_a_key_that_does_not_come_in_time_is_refused() {
    let site = Site::start("read_limit = \"300ms\"").await;
    let mut stream = announced(site.client, 100, "{").await;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(read(&answer).unwrap().said(), (408, "body-incomplete".to_owned()));
    assert!(site.upstream.calls().is_empty());
    // The key is free.
    assert_eq!(site.ask(&post("/do/201", "slow", "{}")).await.status, 201);
    site.stop().await;
}
