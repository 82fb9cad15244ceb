//! Who has a place where there are few.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::client::read;
use super::health::health;
use super::{Client, Reply, Site, get, post};
use crate::support::http::wait_for;

/// A connection from another address of this machine.
async fn from(address: &str, client: Client) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    socket.connect(client.0).await.unwrap()
}

async fn ask(mut stream: TcpStream, request: &str) -> anyhow::Result<Reply> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    read(&answer)
}

#[tokio::test]
async fn whoever_comes_when_all_places_are_at_work_is_told_so() {
    let site = Site::start("connections = 2").await;
    let holding: Vec<_> = (0..2)
        .map(|number| {
            let (request, client) = (post("/do/hang", &format!("holding-{number}"), "{}"), site.client);
            tokio::spawn(async move { client.ask(&request).await })
        })
        .collect();
    site.upstream.wait_for_calls(2).await;
    let full = site.ask(&get("/do/200", "")).await;
    assert_eq!((full.status, full.header("retry-after").as_deref()), (503, Some("1")), "{full:?}");
    site.upstream.go_on();
    site.upstream.go_on();
    for one in holding {
        assert_eq!(one.await.unwrap().status, 201, "no whole request is broken off");
    }
    testbed::eventually("a place", || async {
        let reply = site.client.send(&get("/do/200", "")).await?;
        if reply.status == 200 { Ok(()) } else { Err(anyhow::anyhow!("{reply:?}")) }
    })
    .await
    .unwrap();
    site.stop().await;
}

#[tokio::test]
async fn the_oldest_idle_connection_makes_room() {
    let site = Site::start("connections = 2").await;
    let mut idle = from("127.0.0.1", site.client).await;
    // Between two requests.
    idle.write_all(get("/do/200", "").replace("Connection: close\r\n", "").as_bytes()).await.unwrap();
    let mut some = [0; 12];
    idle.read_exact(&mut some).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..5 {
        assert_eq!(site.ask(&get("/do/200", "")).await.status, 200);
        silent.push(from("127.0.0.1", site.client).await);
    }
    // It is closed.
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    site.stop().await;
}

#[tokio::test]
async fn an_address_with_many_slow_bodies_keeps_no_other_one_out() {
    let site = Site::start("connections = 10\nrequired = false\nmetrics = \"127.0.0.1:0\"").await;
    let health = health(&site.process).await;
    let slow = "POST /do/200 HTTP/1.1\r\nHost: shop\r\nContent-Length: 1000\r\n\r\nx";
    let mut greedy = Vec::new();
    for _ in 0..9 {
        let mut stream = from("127.0.0.1", site.client).await;
        stream.write_all(slow.as_bytes()).await.unwrap();
        greedy.push(stream);
    }
    wait_for(&health, "/metrics", 200, "oncely_gateway_inflight_requests 9\n").await;
    let refused = ask(from("127.0.0.1", site.client).await, &get("/do/200", "")).await.unwrap();
    assert_eq!(refused.status, 503, "nine tenths are one address's");
    let mut others = Vec::new();
    for number in 0..3 {
        let (request, stream) =
            (post("/do/hang", &format!("other-{number}"), "{}"), from("127.0.0.2", site.client).await);
        others.push(tokio::spawn(async move { ask(stream, &request).await }));
    }
    testbed::eventually("all are at work", || async {
        let calls = site.upstream.calls_of("/do/hang").len();
        if calls == 3 { Ok(()) } else { Err(calls) }
    })
    .await
    .unwrap();
    (0..3).for_each(|_| site.upstream.go_on());
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().status, 201);
    }
    drop(greedy);
    site.stop().await;
}
