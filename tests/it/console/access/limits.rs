//! Whoever takes much, or never ends, keeps nobody out.

use std::time::Duration;

use super::{VIEWER, by_token, with_tokens};
use crate::console::{Running, console};
use crate::support::World;

#[tokio::test]
async fn connections_that_read_nothing_keep_nobody_out() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let script = operator.page("/").await.between("src=\"/assets/htmx-", "\"").to_owned();
    let script = format!("/assets/htmx-{script}");
    let mut idle = Vec::new();
    for _ in 0..220 {
        let mut stream = tokio::net::TcpStream::connect(&operator.address).await.unwrap();
        let request = format!("GET {script} HTTP/1.1\r\nHost: {}\r\n\r\n", operator.host).repeat(300);
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await;
        idle.push(stream);
    }
    for _ in 0..5 {
        let answered = tokio::time::timeout(Duration::from_secs(20), operator.get("/doctor")).await;
        assert_eq!(answered.expect("an answer").status, 200);
    }
    drop((running, idle));
}

#[tokio::test]
async fn nobody_follows_the_trail_more_than_three_times_nor_longer_than_their_session() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let viewer = by_token(&running.stranger, VIEWER).await;
    let mut tails = Vec::new();
    for _ in 0..3 {
        let mut tail = viewer.open("GET", "/keys/tail", &[], None).await;
        let mut byte = [0];
        tokio::io::AsyncReadExt::read_exact(&mut tail, &mut byte).await.unwrap();
        tails.push(tail);
    }
    assert_eq!(viewer.get("/keys/tail").await.status, 429);
    assert_eq!(viewer.get("/doctor").await.status, 200);
    viewer.submit("/logout", &[]).await;
    for tail in &mut tails {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(
            Duration::from_secs(20),
            tokio::io::AsyncReadExt::read_to_end(tail, &mut rest),
        );
        assert!(ended.await.is_ok(), "it goes on after its session");
    }
}

#[tokio::test]
async fn what_is_too_large_or_never_comes_holds_nothing_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let large = "x".repeat(70_000);
    assert_eq!(operator.submit("/consumer/pause", &[("name", &large)]).await.status, 413);
    assert!([414, 431].contains(&operator.get(&format!("/keys?q={large}")).await.status));
    // Connections that say nothing: others are answered meanwhile.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(&operator.address).await.unwrap());
    }
    let answered = tokio::time::timeout(Duration::from_secs(10), operator.get("/doctor")).await;
    assert_eq!(answered.unwrap().status, 200);
    drop(running);
}
