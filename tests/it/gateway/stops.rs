//! SIGTERM: nobody is let in any more, and whoever is in gets an answer.

use std::time::Duration;

use testbed::{Signal, eventually};

use super::{SHORT, Site, post, state, with};

#[tokio::test]
async fn a_gateway_that_stops_answers_what_it_has_begun() {
    let mut site = Site::start("required = false").await;
    let keyed = post("/do/hang", "k", "{}");
    let plain = with("/do/hang?plain", "", "{}");
    let asked: Vec<_> = [keyed, plain]
        .map(|request| {
            let client = site.client;
            tokio::spawn(async move { client.ask(&request).await })
        })
        .into();
    site.upstream.wait_for_calls(2).await;
    // A connection that rests, and, behind the two, a request whose client leaves.
    let resting = tokio::net::TcpStream::connect(site.client.0).await.unwrap();
    let (left, client) = (post("/do/hang?left", "left", "{}"), site.client);
    let leaving = tokio::spawn(async move { client.ask(&left).await });
    site.upstream.wait_for_calls(3).await;
    leaving.abort();
    site.process.signal(Signal::TERM).unwrap();
    let refuses = eventually("nobody is let in", || async {
        match tokio::net::TcpStream::connect(site.client.0).await {
            Ok(_) => Err("somebody was"),
            Err(_) => Ok(()),
        }
    });
    refuses.await.unwrap();
    assert!(site.process.is_running(), "it waits for its answers");
    for _ in 0..2 {
        site.upstream.go_on();
    }
    for reply in asked {
        assert_eq!(reply.await.unwrap().status, 201);
    }
    // Nobody waits for the third answer, and the gateway does.
    let ended = site.process.wait_for_end(Duration::from_secs(2)).await;
    assert!(ended.is_err(), "{ended:?}: {}", site.process.output());
    site.upstream.go_on();
    let status = site.process.wait_for_end(Duration::from_secs(30)).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", site.process.output());
    drop(resting);
    for key in ["k", "left"] {
        assert_eq!(state(&mut site.world, key).await.as_deref(), Some("COMPLETED"), "{key}");
    }
}

#[tokio::test]
async fn what_takes_longer_than_a_stop_may_is_broken_off_and_held() {
    let mut site = Site::start(&format!("{SHORT}\nwait = \"10s\"\n[worker]\nshutdown = \"1s\"")).await;
    let (request, client) = (post("/do/hang", "k", "{}"), site.client);
    let asked = tokio::spawn(async move { client.send(&request).await });
    site.upstream.wait_for_calls(1).await;
    site.process.signal(Signal::TERM).unwrap();
    let status = site.process.wait_for_end(Duration::from_secs(30)).await.unwrap();
    assert_eq!(status.code(), Some(70), "{}", site.process.output());
    assert!(asked.await.unwrap().is_err());
    let (next, client) = site.another("next").await;
    let reply = client.ask(&post("/do/hang", "k", "{}")).await;
    assert_eq!(reply.said(), (409, "outcome-unknown".to_owned()), "{reply:?}");
    assert_eq!(site.upstream.calls().len(), 1);
    site.world.stop(next).await;
}
