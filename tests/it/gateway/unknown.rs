//! Where nobody knows whether a request took effect.

use testbed::eventually;
use testbed::proxy::Mode;
use tokio::net::TcpListener;

use super::health::health;
use super::{SHORT, Site, Upstream, get, post, reached, start, state};
use crate::support::World;
use crate::support::http::wait_for;

/// Named after what happens first.
fn key(path: &str) -> String {
    path.trim_start_matches("/do/").split(',').next().unwrap().to_owned()
}

const UNKNOWN: (u16, &str) = (409, "outcome-unknown");

#[tokio::test]
async fn what_may_have_happened_is_held_until_somebody_has_looked() {
    let mut site = Site::start(&format!("wait = \"5s\"\n{SHORT}")).await;
    for (path, first) in [
        ("/do/torn,201", UNKNOWN),
        ("/do/unsized,201", UNKNOWN),
        ("/do/nothing,201", UNKNOWN),
        ("/do/events,201", UNKNOWN),
        ("/do/hang,201", UNKNOWN),
        // The service's own words go on; what they mean for the key is the same.
        ("/do/500,201", (500, "")),
        ("/do/503,201", (503, "")),
        ("/do/408,201", (408, "")),
    ] {
        let key = key(path);
        let request = post(path, &key, "{}");
        let reply = site.ask(&request).await;
        assert_eq!(reply.said(), (first.0, first.1.to_owned()), "{path}: {reply:?}");
        for _ in 0..2 {
            let again = site.ask(&request).await;
            assert_eq!(again.said(), (UNKNOWN.0, UNKNOWN.1.to_owned()), "{path}: {again:?}");
            assert_eq!(again.header("retry-after"), None, "{path}: no retry helps");
        }
        assert_eq!(site.upstream.calls_of(path).len(), 1, "{path}");
        let state = state(&mut site.world, &key).await;
        assert_eq!(state.as_deref(), Some("FAILED outcome_unknown"), "{path}");
    }
    // Somebody has looked, but at another run.
    let settle = "select count(*) from (select oncely.settle_claim(tenant, consumer, key, false, null, null, attempts, fencing_token - 1)
        as settled from oncely.idempotency_keys where key = 'torn') as s where settled";
    assert_eq!(site.world.count(settle).await, 0);
    // Somebody has looked: it did not happen.
    let settle = "select oncely.settle_claim('main', 'gateway', 'torn', false)::integer::bigint";
    assert_eq!(site.world.count(settle).await, 1);
    let again = site.ask(&post("/do/torn,201", "torn", "{}")).await;
    assert_eq!((again.status, again.is_replayed()), (201, false), "{again:?}");
    // It did happen, and nobody knows with which answer.
    let settle = "select oncely.settle_claim('main', 'gateway', '500', true, 'found it')::integer::bigint";
    assert_eq!(site.world.count(settle).await, 1);
    let again = site.ask(&post("/do/500,201", "500", "{}")).await;
    assert_eq!((again.status, again.is_replayed()), (204, true), "{again:?}");
    site.stop().await;
}

#[tokio::test]
async fn what_may_have_happened_is_sent_again_with_the_same_key_where_that_is_said() {
    let site = Site::start(&format!("unknown = \"forward\"\nwait = \"10s\"\n{SHORT}")).await;
    for (path, first) in [
        ("/do/torn,201", (502, "upstream-broken")),
        ("/do/nothing,201", (502, "upstream-broken")),
        ("/do/events,201", (502, "upstream-broken")),
        ("/do/hang,201", (504, "upstream-late")),
        ("/do/500,201", (500, "")),
        ("/do/503,201", (503, "")),
    ] {
        let key = key(path);
        let request = post(path, &key, "{}");
        let reply = site.ask(&request).await;
        assert_eq!(reply.said(), (first.0, first.1.to_owned()), "{path}: {reply:?}");
        let again = site.ask(&request).await;
        assert_eq!((again.status, again.is_replayed()), (201, false), "{path}: {again:?}");
        assert!(site.ask(&request).await.is_replayed(), "{path}");
        let calls = site.upstream.calls_of(path);
        let keys: Vec<_> = calls.iter().flat_map(|call| call.headers("idempotency-key")).collect();
        assert_eq!(keys, [&key, &key], "the same key");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_no_of_the_service_is_no_effect_and_a_retry_is_sent_on() {
    let site = Site::start("wait = \"5s\"\nnot_done = [503]").await;
    for status in [401, 403, 404, 409, 412, 415, 423, 425, 429, 501, 503] {
        let path = format!("/do/{status},201");
        let request = post(&path, &key(&path), "{}");
        assert_eq!(site.ask(&request).await.said(), (status, String::new()), "{path}");
        let again = site.ask(&request).await;
        assert_eq!((again.status, again.is_replayed()), (201, false), "{path}: {again:?}");
        assert_eq!(site.upstream.calls_of(&path).len(), 2, "{path}");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_service_that_can_not_be_reached_costs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = Upstream::on(listener);
    let address = upstream.address;
    let mut site = Site::before(upstream, "").await;
    site.upstream.end().await;
    let request = post("/do/201", "k", "{}");
    for _ in 0..3 {
        let refused = site.ask(&request).await;
        assert_eq!(refused.said(), (503, "upstream-away".to_owned()));
        assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
    }
    let attempts = "select coalesce(max(attempts), 0)::bigint from oncely.idempotency_keys";
    assert_eq!(site.world.count(attempts).await, 0, "nothing is counted");
    site.upstream = Upstream::on(TcpListener::bind(address).await.unwrap());
    let done = site.ask(&request).await;
    assert_eq!((done.status, done.is_replayed()), (201, false), "{done:?}");
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn an_answer_that_comes_while_postgresql_is_away_is_kept() {
    let mut world = World::new().await;
    world.configure("[postgres]\nconnect_timeout = \"1s\"");
    let (proxy, environment) = world.proxied_postgres().await;
    let mut site = Site::of(world, Upstream::start().await, SHORT, &environment).await;
    let request = post("/do/hang", "k", "{}");
    let (client, ask) = (site.client, request.clone());
    let first = tokio::spawn(async move { client.ask(&ask).await });
    site.upstream.wait_for_calls(1).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    site.upstream.go_on();
    assert_eq!(first.await.unwrap().status, 503);
    proxy.set(Mode::Pass);
    let again = eventually("the answer is found", || async {
        let again = site.ask(&request).await;
        if again.status == 201 { Ok(again) } else { Err(again) }
    });
    assert!(again.await.unwrap().is_replayed());
    assert_eq!(site.upstream.calls().len(), 1);
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("COMPLETED"));
    site.stop().await;
}

#[tokio::test]
async fn without_postgresql_nothing_with_a_key_is_sent_and_all_else_streams_through() {
    let mut world = World::new().await;
    world.configure("[postgres]\nconnect_timeout = \"1s\"");
    let (proxy, environment) = world.proxied_postgres().await;
    let mut site = Site::of(world, Upstream::start().await, "metrics = \"127.0.0.1:0\"", &environment).await;
    let health = health(&site.process).await;
    wait_for(&health, "/readyz", 200, "ready").await;
    assert_eq!(site.ask(&post("/do/201", "before", "{}")).await.status, 201);
    proxy.set(Mode::Refuse);
    proxy.cut();
    let request = post("/do/201", "k", "{}");
    let refused = site.ask(&request).await;
    assert_eq!(refused.said(), (503, "unavailable".to_owned()), "{refused:?}");
    assert_eq!(site.ask(&get("/do/200", "")).await.status, 200);
    assert_eq!(site.upstream.calls().len(), 2);
    wait_for(&health, "/readyz", 503, "PostgreSQL").await;
    wait_for(&health, "/livez", 200, "alive").await;
    proxy.set(Mode::Pass);
    wait_for(&health, "/readyz", 200, "ready").await;
    assert_eq!(site.ask(&request).await.status, 201);
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("COMPLETED"));
    site.stop().await;
}

#[tokio::test]
async fn after_an_outage_that_outlasts_leases_a_second_gateway_waits_for_the_first_ones_answer() {
    let mut world = World::new().await;
    world.configure("[postgres]\nconnect_timeout = \"1s\"");
    let (proxy, environment) = world.proxied_postgres().await;
    // So long the first one has to come back, on a busy machine, too.
    let settings = "lease = \"6s\"\nmax_run = \"50s\"";
    let mut site = Site::of(world, Upstream::start().await, settings, &environment).await;
    let second = start(&site.world, &site.upstream, "second", &environment);
    let client = reached(&second).await;
    assert_eq!(client.ask(&post("/do/201", "before", "{}")).await.status, 201);
    let request = post("/do/hang", "k", "{}");
    let (first, ask) = (site.client, request.clone());
    let asked = tokio::spawn(async move { first.ask(&ask).await });
    site.upstream.wait_for_calls(2).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    let over =
        "select count(*) from oncely.idempotency_keys where key = 'k' and not_before < clock_timestamp()";
    site.world.wait_for(over, 1).await;
    proxy.set(Mode::Pass);
    // Its call is alive.
    let again = eventually("the key is claimed again", || async {
        let again = client.ask(&request).await;
        if again.status == 503 { Err(again) } else { Ok(again) }
    });
    assert_eq!(again.await.unwrap().said(), (409, "in-flight".to_owned()));
    site.upstream.go_on();
    asked.await.unwrap();
    let again = eventually("the answer is found", || async {
        let again = client.ask(&request).await;
        if again.status == 201 { Ok(again) } else { Err(again) }
    });
    assert!(again.await.unwrap().is_replayed());
    assert_eq!(site.upstream.calls().len(), 2);
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("COMPLETED"));
    site.world.stop(second).await;
    site.stop().await;
}
