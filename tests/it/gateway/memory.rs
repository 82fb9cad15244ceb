//! A gateway with the memory that the manifests give it, whatever clients send.

use std::time::Duration;

use super::{Site, post, with};
use crate::bounded_memory::LIMIT;
use crate::gateway::upstream::Upstream;
use crate::support::World;

/// As `gateway.max_request` allows by default.
const LARGEST: usize = 1 << 20;

/// Requests at the same time: together more than the limit.
const CLIENTS: usize = 300;

#[tokio::test]
async fn no_requests_end_a_gateway_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    // On a busy machine, so many take longer than a call may by default.
    let settings = "lease = \"60s\"\nmax_run = \"50s\"";
    let mut site = Site::of(world, Upstream::start().await, settings, &[]).await;
    let headers: String = (0..90).map(|number| format!("x-{number}: {}\r\n", "x".repeat(4_000))).collect();
    let clients = (0..CLIENTS).map(|number| {
        let client = site.client;
        let key = format!("Idempotency-Key: k{number}\r\n");
        let request = match number % 10 {
            0 => with("/do/201", &format!("{key}{headers}"), "{}"),
            // Without a key: refused.
            1 => with("/do/201", "", &"x".repeat(LARGEST)),
            2 => with("/do/201", &key, &"x".repeat(LARGEST * 4)),
            _ => with("/do/201", &key, &"x".repeat(LARGEST)),
        };
        tokio::spawn(async move { client.send(&request).await })
    });
    let clients: Vec<_> = clients.collect();
    let mut answered = 0;
    for client in clients {
        // One that is refused before its body was read may see the connection's end alone.
        if let Ok(reply) = client.await.unwrap() {
            assert!([201, 400, 413, 431, 503].contains(&reply.status), "{}", reply.status);
            answered += usize::from(reply.status == 201);
        }
    }
    assert!(site.process.is_running(), "{}", site.process.output());
    assert!(answered > 0, "nothing was passed on");
    // Places are free again.
    testbed::eventually_within(Duration::from_secs(60), "another request is served", || async {
        let reply =
            site.client.send(&post("/do/201", "last", "{}")).await.map_err(|error| error.to_string())?;
        if reply.status == 201 { Ok(()) } else { Err(reply.status.to_string()) }
    })
    .await
    .unwrap();
    site.stop().await;
}
