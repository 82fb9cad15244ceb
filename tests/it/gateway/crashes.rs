//! The gateway dies; then another one goes on, and the client asks again.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely_failpoint::STEPS;

use super::{PRINCIPAL, SHORT, Site, Upstream, post, reached, start, state};
use crate::support::World;

async fn killed_in_the_call(unknown: &str) -> (Site, testbed::Process, super::Client) {
    let mut site = Site::start(&format!("unknown = {unknown:?}\nwait = \"10s\"\n{SHORT}")).await;
    let (request, client) = (post("/do/hang,201", "k", "{}"), site.client);
    let asked = tokio::spawn(async move { client.send(&request).await });
    site.upstream.wait_for_calls(1).await;
    site.world.kill(&mut site.process);
    assert!(asked.await.unwrap().is_err());
    let (next, client) = site.another("next").await;
    (site, next, client)
}

#[tokio::test]
async fn a_gateway_that_is_killed_in_the_call_leaves_a_key_that_is_held() {
    let (mut site, next, client) = killed_in_the_call("hold").await;
    // As long as its lease runs nobody else does.
    for _ in 0..2 {
        let reply = client.ask(&post("/do/hang,201", "k", "{}")).await;
        assert_eq!(reply.said(), (409, "outcome-unknown".to_owned()), "{reply:?}");
    }
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("FAILED outcome_unknown"));
    assert_eq!(site.upstream.calls().len(), 1);
    site.world.stop(next).await;
}

#[tokio::test]
async fn a_gateway_that_is_killed_in_the_call_is_followed_by_one_with_the_same_key() {
    let (mut site, next, client) = killed_in_the_call("forward").await;
    let request = post("/do/hang,201", "k", "{}");
    let reply = client.ask(&request).await;
    assert_eq!((reply.status, reply.is_replayed()), (201, false), "{reply:?}");
    assert!(client.ask(&request).await.is_replayed());
    let calls = site.upstream.calls();
    let keys: Vec<_> = calls.iter().flat_map(|call| call.headers("idempotency-key")).collect();
    assert_eq!(keys, ["k", "k"]);
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("COMPLETED"));
    site.world.stop(next).await;
}

#[tokio::test]
async fn a_gateway_that_dies_at_any_step_calls_once_or_says_that_nobody_knows() {
    let mut world = World::new().await;
    world.configure(&format!("[gateway]\n{PRINCIPAL}wait = \"10s\"\n{SHORT}"));
    let upstream = Upstream::start().await;
    let survivor = start(&world, &upstream, "survivor", &[]);
    let client = reached(&survivor).await;
    let steps: Vec<&str> = STEPS.iter().copied().filter(|step| step.starts_with("leased.")).collect();
    assert!(steps.len() >= 6, "{steps:?}");
    for step in steps {
        let path = format!("/do/201?{step}");
        let request = post(&path, step, "{}");
        let mut dying = start(&world, &upstream, &format!("dying-{step}"), &[("FAILPOINT", step.to_owned())]);
        let torn = reached(&dying).await.send(&request).await;
        assert!(torn.is_err(), "{step}: {torn:?}");
        let status = dying.wait_for_end(Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.signal(), Some(6), "{step}: {}", dying.output());
        let reply = client.ask(&request).await;
        // The step's result is stored before the run ends: what the first one was answered is there.
        assert_eq!(reply.status, 201, "{step}: {reply:?}");
        let calls = upstream.calls().into_iter().filter(|call| call.target() == path).count();
        assert_eq!(calls, 1, "{step}");
        assert_eq!(client.ask(&request).await.body, reply.body, "{step}");
        assert_eq!(state(&mut world, step).await.as_deref(), Some("COMPLETED"), "{step}");
    }
    world.stop(survivor).await;
}
