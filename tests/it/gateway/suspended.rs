//! The gateway is stopped for a while, as a machine that is suspended or has no CPU to give.

use std::time::Duration;

use futures::future::join_all;
use testbed::Signal;

use super::{Site, post};

const CLIENTS: usize = 16;

#[tokio::test]
async fn an_answer_that_came_while_a_gateway_was_suspended_is_passed_on() {
    let site = Site::start("lease = \"1m\"\nmax_run = \"3s\"").await;
    let client = site.client;
    let asked: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let request = post("/do/hang", &format!("k{n}"), "{}");
            tokio::spawn(async move { client.ask(&request).await })
        })
        .collect();
    site.upstream.wait_for_calls(CLIENTS).await;
    site.process.signal(Signal::STOP).unwrap();
    site.upstream.go_on_by(CLIENTS);
    // Until the time of all calls is over, by the clock: that is the fault.
    tokio::time::sleep(Duration::from_secs(4)).await;
    site.process.signal(Signal::CONT).unwrap();
    for reply in join_all(asked).await {
        let reply = reply.unwrap();
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    site.stop().await;
}
