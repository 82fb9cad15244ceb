//! More than there is room for.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use testbed::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Ask, EFFECTS, KEYS, Server};
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

/// Whose sessions are waited for as long as a test takes.
fn patient(world: &World, most: u32) -> PgPool {
    let options = PgPoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(120));
    options.connect_lazy(world.database.url()).unwrap()
}

async fn leave(server: &Server, ask: &Ask) {
    let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
    stream.write_all(&ask.bytes()).await.unwrap();
}

#[tokio::test]
async fn clients_that_hang_up_leave_only_so_much_at_work() {
    let mut world = World::new().await;
    let few = |settings: oncely::http::IdempotencyLayerBuilder| settings.max_at_work(100);
    let server = Server::start(patient(&world, 1), few).await;
    let gate = Gate::shut(&world).await;
    leave(&server, &Ask::pay("first", r#"{"do":"wait"}"#)).await;
    world.wait_for(WAITING, 1).await;
    for number in 0..1_000 {
        leave(&server, &Ask::pay(&format!("left-{number}"), "{}")).await;
    }
    // One that finds room waits for the session: it is given up, and another one asks.
    let (mut number, client) = (0, server.client);
    let began = Instant::now();
    let told = loop {
        number += 1;
        let ask = Ask::pay(&format!("late-{number}"), "{}");
        match tokio::time::timeout(Duration::from_secs(1), client.ask(&ask)).await {
            Ok(reply) => break reply,
            Err(_) => assert!(began.elapsed() < Duration::from_secs(20), "nobody is refused"),
        }
    };
    assert_eq!((told.status, told.problem().as_str()), (503, "busy"));
    assert_eq!(told.header("retry-after").as_deref(), Some("1"));
    gate.open().await;
    server.layer.drain().await;
    let done = world.count(KEYS).await;
    assert!((1..=100).contains(&done), "{done}");
    assert_eq!((world.count(EFFECTS).await, i64::from(server.calls.count())), (done, done));
    assert_eq!(server.client.ask(&Ask::pay("after", "{}")).await.status, 201, "there is room again");
}

#[tokio::test]
async fn bodies_share_a_budget_of_bytes() {
    let mut world = World::new().await;
    let small = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.max_request(1_000).max_bytes_at_work(1_500)
    };
    let server = Server::start(patient(&world, 4), small).await;
    let gate = Gate::shut(&world).await;
    let body = |bytes: usize| format!("{{\"do\":\"wait\",\"x\":\"{}\"}}", "x".repeat(bytes - 20));
    assert_eq!(body(900).len(), 900);
    leave(&server, &Ask::pay("first", &body(900))).await;
    world.wait_for(WAITING, 1).await;
    let large = Ask::pay("large", &format!("\"{}\"", "x".repeat(798)));
    assert_eq!(server.client.ask(&large).await.problem(), "busy");
    // One that does not say how long it is counts as what comes of it.
    let head = format!(
        "POST /pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nX-Tenant: acme\r\nIdempotency-Key: chunks\r\n\
        Transfer-Encoding: chunked\r\n\r\n190\r\n\"{0}\r\n190\r\n{0}\"\r\n0\r\n\r\n",
        "x".repeat(399)
    );
    assert_eq!(server.client.send(head.as_bytes()).await.unwrap().problem(), "busy");
    // And one that announces much, and sends nothing, as nothing.
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
        let announced = large.bytes();
        stream.write_all(&announced[..announced.len() - 800]).await.unwrap();
        silent.push(stream);
    }
    assert_eq!(server.client.ask(&Ask::pay("small", "{}")).await.status, 201, "there is room for it");
    gate.open().await;
    eventually("there is room again", || async {
        let reply = server.client.send(head.as_bytes()).await?;
        anyhow::ensure!(reply.status == 201, "{reply:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(server.client.ask(&large).await.status, 201);
    assert_eq!(world.count(EFFECTS).await, 4);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let mut world = World::new().await;
    let short = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.read_limit(Duration::from_millis(300)).max_at_work(1)
    };
    let server = Server::start(patient(&world, 2), short).await;
    let bytes = Ask::pay("slow", r#"{"amount":7}"#).bytes();
    let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
    stream.write_all(&bytes[..bytes.len() - 3]).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    read.await.expect("it is answered").unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body-incomplete"), "{answer}");
    // Its room is free again.
    assert_eq!(server.client.ask(&Ask::pay("next", "{}")).await.status, 201);
    assert_eq!((server.calls.count(), world.count(KEYS).await), (1, 1));
}

#[tokio::test]
async fn a_body_that_is_announced_and_not_sent_takes_nobodys_place() {
    let mut world = World::new().await;
    let one = |settings: oncely::http::IdempotencyLayerBuilder| settings.max_at_work(1);
    let server = Server::start(patient(&world, 2), one).await;
    let mut silent = Vec::new();
    for number in 0..3 {
        let bytes = Ask::pay(&format!("silent-{number}"), r#"{"amount":7}"#).bytes();
        let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
        stream.write_all(&bytes[..bytes.len() - 3]).await.unwrap();
        silent.push((stream, bytes[bytes.len() - 3..].to_vec()));
    }
    assert_eq!(server.client.ask(&Ask::pay("whole", "{}")).await.status, 201);
    // Each of them has its turn when it is whole.
    for (mut stream, rest) in silent {
        stream.write_all(&rest).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 201 "), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(world.count(KEYS).await, 4);
}
