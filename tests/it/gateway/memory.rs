//! A gateway with the memory that the manifests give it, whatever clients send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Site, post, with};
use crate::bounded_memory::{Chance, LIMIT};
use crate::gateway::upstream::Upstream;
use crate::support::World;

/// As `gateway.max_request` allows by default.
const LARGEST: usize = 1 << 20;

/// Clients whose answers come at the same time: together and copied, these are more than the limit.
const MANY: usize = 600;

/// Requests at the same time: together more than the limit.
const CLIENTS: usize = 300;

#[tokio::test]
async fn no_answers_end_a_gateway_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    let settings = "lease = \"600s\"\nmax_run = \"500s\"\nconnections = 700";
    let mut site = Site::of(world, Upstream::start().await, settings, &[]).await;
    let all_heard = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..MANY)
        .map(|number| {
            let (client, all_heard) = (site.client, Arc::clone(&all_heard));
            let request = post("/do/full", &format!("k{number}"), "{}");
            tokio::spawn(async move {
                loop {
                    let reply = client.send(&request).await;
                    let refused = reply.as_ref().is_ok_and(|reply| reply.status == 503);
                    // One that was told to come again does so until the service has heard it.
                    if !refused || all_heard.load(Ordering::Relaxed) {
                        return reply;
                    }
                }
            })
        })
        .collect();
    site.upstream.wait_for_calls(MANY).await;
    all_heard.store(true, Ordering::Relaxed);
    // All at once.
    site.upstream.go_on_by(MANY);
    let mut answered = 0;
    for client in clients {
        let reply = client.await.unwrap();
        let reply = reply.unwrap_or_else(|error| panic!("{error}: {}", site.process.output()));
        assert!([201, 409, 503].contains(&reply.status), "{}", reply.status);
        assert_eq!(reply.body.len() == 1 << 18, reply.status == 201);
        answered += usize::from(reply.status == 201);
    }
    assert!(answered > 0, "none of {MANY}");
    assert!(site.process.is_running(), "{}", site.process.output());
    // What is small is held, and given again.
    let small = post("/do/201", "small", "{}");
    assert!(!site.ask(&small).await.is_replayed());
    let again = site.ask(&small).await;
    assert!(again.is_replayed() && again.header("oncely-body-omitted").is_none(), "{again:?}");
    site.stop().await;
}

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

#[tokio::test]
async fn no_request_whatever_it_holds_ends_a_gateway_in_256_mib() {
    let mut chance = Chance::new();
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    let settings = "lease = \"60s\"\nmax_run = \"50s\"\nrequired = false";
    let mut site = Site::of(world, Upstream::start().await, settings, &[]).await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = site.client;
        let path = ["200", "201", "400", "large", "large-chunked", "many"][chance.below(6)];
        let key =
            if chance.below(5) == 0 { String::new() } else { format!("Idempotency-Key: k{number}\r\n") };
        let (count, length) = (chance.size(200), chance.size(10_000));
        let headers: String =
            (0..count).map(|number| format!("x-{number}: {}\r\n", "x".repeat(length))).collect();
        let size = chance.size(LARGEST * 2);
        let request = with(&format!("/do/{path}"), &format!("{key}{headers}"), &chance.body(size));
        clients.push(tokio::spawn(async move { client.send(&request).await }));
    }
    for client in clients {
        // One that is refused before its body was read may see the connection's end alone.
        let _ = client.await.unwrap();
    }
    assert!(site.process.is_running(), "{}", site.process.output());
    assert_eq!(site.ask(&post("/do/201", "last", "{}")).await.status, 201);
    site.stop().await;
}
