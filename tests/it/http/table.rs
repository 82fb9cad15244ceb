//! What is answered in which situation.

use std::time::Duration;

use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer};

use super::{Ask, EFFECTS, KEYS, Server, pool, shop};
use crate::support::World;

#[tokio::test]
async fn a_request_without_a_key_or_with_a_wrong_one_runs_nothing() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let reply = server.client.ask(&Ask::bare("{}")).await;
    assert_eq!((reply.status, reply.problem().as_str()), (400, "key-missing"));
    let link = reply.header("link");
    assert_eq!(link.as_deref(), Some("<https://shop.example/keys>; rel=\"describedby\""));
    for key in ["", "\"\"", "a b", "a,b", "\"a", &"k".repeat(256)] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "key-invalid"), "{key:?}");
    }
    let twice = Ask::pay("a", "{}").header("Idempotency-Key", "a");
    assert_eq!(server.client.ask(&twice).await.problem(), "key-invalid");
    assert_eq!((server.calls.count(), world.count(EFFECTS).await, world.count(KEYS).await), (0, 0, 0));
}

#[tokio::test]
async fn other_methods_pass_and_a_key_may_be_optional() {
    let world = World::new().await;
    let optional = |settings: oncely::http::IdempotencyLayerBuilder| settings.required(false);
    let server = Server::start(pool(world.database.url(), 2).await, optional).await;
    let look = server.client.ask(&Ask::bare("").to("GET", "/look").header("Idempotency-Key", "x, y")).await;
    assert_eq!((look.status, look.body.as_slice()), (200, &b"looked"[..]));
    let without = server.client.ask(&Ask::bare("{}").to("POST", "/free")).await;
    assert_eq!((without.status, without.body.as_slice()), (200, &b"without a key"[..]));
    let with = Ask::pay("a", "{}").to("POST", "/free");
    assert_eq!(server.client.ask(&with).await.body, b"with a key");
    assert!(server.client.ask(&with).await.is_replayed());
    // A handler that needs a transaction has none: its own mistake.
    assert_eq!(server.client.ask(&Ask::bare("{}")).await.status, 500);
}

#[tokio::test]
async fn a_request_again_gets_the_same_bytes_and_no_handler_runs() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let first = server.client.ask(&Ask::pay("order-1", "{}")).await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert!(first.header("set-cookie").is_some() && first.header("x-internal").is_some());
    // Quoted or bare, it is the same key; and a process that has just started knows it.
    for (server, key) in
        [(&server, "order-1"), (&server, "\"order-1\""), (&Server::of(&world).await, "order-1")]
    {
        let again = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((again.status, again.is_replayed(), &again.body), (201, true, &first.body));
        for name in ["content-type", "location", "link"] {
            assert_eq!(again.header(name), first.header(name), "{name}");
        }
        assert_eq!(again.header("link").as_deref(), Some("</a>; rel=\"a\" | </b>; rel=\"b\""));
        assert_eq!((again.header("set-cookie"), again.header("x-internal").as_deref()), (None, Some("7")));
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 1));
    let row = "select concat_ws(' ', tenant, consumer, key, status, http_status, attempts, response)
        from oncely.idempotency_keys";
    assert_eq!(world.text(row).await.as_deref(), Some("acme POST /pay order-1 COMPLETED 201 1"));
    let trail = "select string_agg(concat_ws(' ', outcome, attempt, worker, detail), ', ') from oncely.audit";
    let noted = "completed 1 http answered over HTTP with status 201";
    assert_eq!(world.text(trail).await.as_deref(), Some(noted));
    assert_eq!(
        world.count("select count(*) from oncely.consumers where fingerprint = 'http_request'").await,
        1
    );
    world.configure("");
    let told = world.oncely(&["explain", "order-1"]).await;
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("HTTP       answered with 201"), "{told}");
}

#[tokio::test]
async fn a_key_is_one_tenants_and_one_routes() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    for ask in [
        Ask::pay("k", "{}"),
        Ask { headers: Vec::new(), ..Ask::bare("{}") }
            .header("X-Tenant", "other")
            .header("Idempotency-Key", "k"),
        Ask::pay("k", "{}").to("POST", "/pay/7"),
        Ask::pay("k", "{}").to("PATCH", "/pay"),
    ] {
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.is_replayed()), (201, false), "{ask:?}");
    }
    assert_eq!(world.count(EFFECTS).await, 4);
    let nobody = Ask { headers: Vec::new(), ..Ask::bare("{}") }.header("Idempotency-Key", "k");
    assert_eq!(server.client.ask(&nobody).await.status, 500, "no tenant");
    assert_eq!(server.calls.count(), 4);
}

#[tokio::test]
async fn the_same_key_with_another_request_is_told_nothing_of_the_first() {
    let mut world = World::new().await;
    let named = |settings: oncely::http::IdempotencyLayerBuilder| settings.consumer(Consumer::named("shop"));
    let server = Server::start(pool(world.database.url(), 4).await, named).await;
    let first =
        server.client.ask(&Ask::pay("k", "{}").to("POST", "/pay/7?a=1").header("X-User", "ann")).await;
    assert_eq!(first.status, 201);
    let same = || Ask::pay("k", "{}").to("POST", "/pay/7?a=1");
    for ask in [
        same().to("PATCH", "/pay").header("X-User", "ann"),
        same().to("POST", "/pay/8?a=1").header("X-User", "ann"),
        same().to("POST", "/pay/7?a=2").header("X-User", "ann"),
        Ask { body: "{ }".to_owned(), ..same() }.header("X-User", "ann"),
        same().header("X-User", "bob"),
        same(),
    ] {
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.problem().as_str()), (422, "key-reused"), "{ask:?}");
        assert_eq!((reply.is_replayed(), reply.header("location")), (false, None));
    }
    assert!(server.client.ask(&same().header("X-User", "ann")).await.is_replayed());
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 1));
}

#[tokio::test]
async fn an_answer_that_may_be_another_one_next_time_is_passed_on_and_not_stored() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let mut calls = 0;
    for status in [500, 502, 503, 599, 401, 403, 407, 408, 409, 421, 423, 425, 429] {
        let ask = Ask::pay(&format!("s{status}"), &format!(r#"{{"do":"status","status":{status}}}"#));
        for _ in 0..2 {
            calls += 1;
            let reply = server.client.ask(&ask).await;
            assert_eq!((reply.status, reply.body), (status, format!("call {calls}").into_bytes()));
        }
    }
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (0, 0));
}

#[tokio::test]
async fn another_refusal_is_stored_and_what_the_handler_wrote_is_rolled_back() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    for status in [400, 404, 410, 422] {
        let ask = Ask::pay(&format!("s{status}"), &format!(r#"{{"do":"status","status":{status}}}"#));
        let first = server.client.ask(&ask).await;
        let again = server.client.ask(&ask).await;
        assert_eq!((first.status, first.is_replayed()), (status, false));
        assert_eq!((again.status, again.is_replayed(), again.body), (status, true, first.body));
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (4, 0));
    let refused = "select count(*) from oncely.audit where outcome = 'refused'";
    assert_eq!(world.count(refused).await, 4);
    // Without a body it is as byte-exact.
    let empty = Ask::pay("empty", r#"{"do":"empty"}"#);
    assert_eq!(server.client.ask(&empty).await.status, 204);
    let again = server.client.ask(&empty).await;
    assert_eq!((again.status, again.is_replayed(), again.body.len()), (204, true, 0));
}

#[tokio::test]
async fn a_key_that_was_given_up_is_told_as_such() {
    let mut world = World::new().await;
    let pool = pool(world.database.url(), 4).await;
    let queue = |_| shop::shared(pool.clone(), "payments");
    let server = Server::start(pool.clone(), queue).await;
    server.client.ask(&Ask::pay("first", "{}")).await;
    let insert = "insert into oncely.idempotency_keys
            (tenant, consumer, key, status, attempts, created_at, completed_at, reason, not_before)
        select 'acme', 'payments', k.key, k.status::oncely.key_status, 1, now(),
            case when k.status <> 'IN_PROGRESS' then now() end, k.reason,
            case when k.status = 'IN_PROGRESS' then now() + interval '20 seconds' end
        from (values ('gone', 'FAILED', 'attempts_exhausted'), ('unknown', 'FAILED', 'outcome_unknown'),
            ('later', 'IN_PROGRESS', null), ('message', 'COMPLETED', null), ('answered', 'COMPLETED', null),
            ('no', 'COMPLETED', 'refused'), ('sealed', 'COMPLETED', null)) as k (key, status, reason)";
    sqlx::query(insert).execute(&mut world.sql).await.unwrap();
    let answer = "update oncely.idempotency_keys set response = '{\"a\": 1}' where key in ('answered', 'no')";
    sqlx::query(answer).execute(&mut world.sql).await.unwrap();
    let sealed = "update oncely.idempotency_keys
        set response = '{\"oncely_encrypted\": {\"key\": \"a\", \"value\": \"AAAA\"}}' where key = 'sealed'";
    sqlx::query(sealed).execute(&mut world.sql).await.unwrap();
    for (key, kind) in [("gone", "given-up"), ("unknown", "outcome-unknown")] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.problem().as_str(), reply.header("retry-after")), (409, kind, None));
    }
    let later = server.client.ask(&Ask::pay("later", "{}")).await;
    assert_eq!((later.status, later.problem().as_str()), (409, "in-flight"));
    let wait: u64 = later.header("retry-after").unwrap().parse().unwrap();
    assert!((15..=20).contains(&wait), "{wait}");
    for (key, status, body) in [
        ("message", 204, ""),
        ("sealed", 204, ""),
        ("answered", 200, "{\"a\": 1}"),
        ("no", 422, "{\"a\": 1}"),
    ] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.is_replayed(), reply.body), (status, true, body.as_bytes().to_vec()));
    }
    assert_eq!(server.calls.count(), 1);
}

#[tokio::test]
async fn what_is_too_large_runs_nothing_or_commits_nothing() {
    let mut world = World::new().await;
    let small = |settings: oncely::http::IdempotencyLayerBuilder| settings.max_request(1_000);
    let server = Server::start(pool(world.database.url(), 2).await, small).await;
    let fits = Ask::pay("fits", &format!("\"{}\"", "x".repeat(998)));
    assert_eq!(server.client.ask(&fits).await.status, 201);
    let large = Ask::pay("large", &format!("\"{}\"", "x".repeat(999)));
    let reply = server.client.ask(&large).await;
    assert_eq!((reply.status, reply.problem().as_str()), (413, "too-large"));
    // Nobody says how long it is.
    let head = "POST /pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nX-Tenant: acme\r\nIdempotency-Key: chunks\r\n\
        Transfer-Encoding: chunked\r\n\r\n";
    let chunked = format!("{head}3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1_001));
    assert_eq!(server.client.send(chunked.as_bytes()).await.unwrap().problem(), "too-large");
    assert_eq!((server.calls.count(), world.count(KEYS).await), (1, 1));
    for what in ["large", "endless"] {
        let reply = server.client.ask(&Ask::pay(what, &format!("{{\"do\":{what:?}}}"))).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "failed"), "{what}");
    }
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (1, 1));
}

#[tokio::test]
async fn settings_that_cannot_be_are_told_all_at_once() {
    let world = World::new().await;
    let pool = pool(world.database.url(), 1).await;
    let bare = IdempotencyLayer::transactional(pool.clone()).wait(Duration::ZERO).build().unwrap_err();
    for part in ["consumer is not set", "tenant is not set", "principal: who sends", "wait:"] {
        assert!(bare.to_string().contains(part), "{bare}");
    }
    let shared = shop::settings(pool.clone()).consumer(Consumer::shared("q")).build().unwrap_err();
    assert!(shared.to_string().contains("fingerprint is not set"), "{shared}");
    let both = shop::settings(pool.clone()).fingerprint(FingerprintPolicy::Body).build().unwrap_err();
    assert!(both.to_string().contains("principal"), "{both}");
    // Of a queue's consumer, too, somebody must say that principals are not compared.
    let queue = IdempotencyLayer::transactional(pool.clone())
        .consumer(Consumer::shared("q"))
        .tenant(|_| None)
        .fingerprint(FingerprintPolicy::Body);
    let silent = queue.clone().build().unwrap_err();
    assert!(silent.to_string().contains("principal: who sends"), "{silent}");
    assert!(queue.clone().one_principal().build().is_ok());
    let horizon = queue.one_principal().redelivery_horizon(Duration::from_secs(60)).build().unwrap_err();
    assert!(horizon.to_string().contains("redelivery_horizon"), "{horizon}");
    let two = shop::settings(pool.clone()).one_principal().build().unwrap_err();
    assert!(two.to_string().contains("principal: who sends"), "{two}");
    let few =
        shop::settings(pool).max_request(1_000).max_bytes_at_work(999).max_at_work(0).build().unwrap_err();
    assert!(
        few.to_string().contains("max_at_work") && few.to_string().contains("max_bytes_at_work"),
        "{few}"
    );
}
