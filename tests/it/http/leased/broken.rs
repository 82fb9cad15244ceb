//! Clients that leave.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Ask, EFFECTS, server};
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

const COMPLETED: &str = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";

#[tokio::test]
async fn a_client_that_leaves_at_any_byte_takes_one_effect_or_none() {
    let mut world = World::new().await;
    let server = server(&world).await;
    let ask = |key: &str| Ask::pay(key, r#"{"amount":7}"#);
    let length = ask("left-000").bytes().len();
    for sent in 0..=length {
        let bytes = ask(&format!("left-{sent:03}")).bytes();
        let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
        stream.write_all(&bytes[..sent]).await.unwrap();
        // Reset, as by a process that dies.
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
    for sent in 0..=length {
        let reply = server.client.ask(&ask(&format!("left-{sent:03}"))).await;
        assert_eq!(reply.status, 201);
        assert!(sent == length || !reply.is_replayed(), "{sent} bytes of {length} are no request");
    }
    let keys = i64::try_from(length).unwrap() + 1;
    assert_eq!((world.count(EFFECTS).await, world.count(COMPLETED).await), (keys, keys));
    assert_eq!(i64::from(server.calls.count()), keys);
}

#[tokio::test]
async fn a_client_that_leaves_does_not_interrupt_its_handler() {
    let mut world = World::new().await;
    let server = server(&world).await;
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("left", r#"{"do":"wait"}"#);
    let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
    stream.write_all(&ask.bytes()).await.unwrap();
    world.wait_for(WAITING, 1).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    gate.open().await;
    server.layer.drain().await;
    assert_eq!((world.count(EFFECTS).await, world.count(COMPLETED).await), (1, 1));
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), server.calls.count()), (201, true, 1));
}

#[tokio::test]
async fn a_client_that_leaves_in_an_endless_answer_finds_it_without_its_body() {
    let mut world = World::new().await;
    let server = server(&world).await;
    let ask = Ask::pay("endless", r#"{"do":"endless"}"#);
    let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
    stream.write_all(&ask.bytes()).await.unwrap();
    let mut read = vec![0; 1_048_576];
    stream.read_exact(&mut read).await.unwrap();
    assert!(read.starts_with(b"HTTP/1.1 200"));
    drop(stream);
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), again.body.len()), (200, true, 0));
    assert_eq!(again.header("oncely-body-omitted").as_deref(), Some("true"));
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 1));
}
