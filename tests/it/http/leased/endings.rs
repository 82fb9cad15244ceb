//! How a run ends, by what its handler answers.

use std::time::Duration;

use super::{Ask, EFFECTS, STEP_KEYS, changed, of_each_store, server};
use crate::support::World;
use crate::support::gate::Gate;

/// Runs whose failure is counted; and the response, where there is one.
async fn attempts(world: &mut World, key: &str) -> i64 {
    world.count(&format!("select attempts::bigint from oncely.idempotency_keys where key = '{key}'")).await
}

fn at_once(settings: oncely::http::IdempotencyLayerBuilder) -> oncely::http::IdempotencyLayerBuilder {
    settings.retry(vec![Duration::ZERO], 30, 3)
}

#[tokio::test]
async fn an_answer_that_may_be_another_one_next_time_is_passed_on_and_its_steps_are_kept() {
    let mut world = World::new().await;
    let server = changed(&world, at_once).await;
    let (mut calls, mut keys) = (0, 0);
    // The last two are nobody's failure: the key is given back.
    for (status, counted) in [500, 502, 504, 599, 401, 403, 407, 408, 409, 421, 423, 425]
        .map(|status| (status, 1))
        .into_iter()
        .chain([(429, 0), (503, 0)])
    {
        let key = format!("s{status}");
        let ask = Ask::pay(&key, &format!(r#"{{"do":"status","status":{status}}}"#));
        keys += 1;
        for again in 1..=2 {
            calls += 1;
            let reply = server.client.ask(&ask).await;
            assert_eq!((reply.status, reply.is_replayed()), (status, false));
            assert_eq!(reply.body, format!("call {calls}").into_bytes(), "{status}");
            assert_eq!(attempts(&mut world, &key).await, again * counted, "{status}");
        }
        assert_eq!(world.count(EFFECTS).await, keys, "{status}: the step is known");
    }
}

#[tokio::test]
async fn another_refusal_is_stored() {
    let mut world = World::new().await;
    let server = server(&world).await;
    for status in [400, 404, 410, 422] {
        let ask = Ask::pay(&format!("s{status}"), &format!(r#"{{"do":"status","status":{status}}}"#));
        let (first, again) = (server.client.ask(&ask).await, server.client.ask(&ask).await);
        assert_eq!((first.status, first.is_replayed()), (status, false));
        assert_eq!((again.status, again.is_replayed(), again.body), (status, true, first.body));
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (4, 4));
}

/// No handler has run, and none is to blame.
#[tokio::test]
async fn a_redirect_of_a_router_counts_as_no_run() {
    let mut world = World::new().await;
    let twice = |settings: oncely::http::IdempotencyLayerBuilder| settings.retry(vec![Duration::ZERO], 2, 3);
    let server = changed(&world, twice).await;
    let ask = Ask::pay("moved", "{}").to("POST", "/moved");
    for _ in 0..4 {
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.is_replayed()), (308, false));
        assert_eq!(reply.header("location").as_deref(), Some("/pay"));
    }
    let free = "select count(*) from oncely.idempotency_keys where owner is null and attempts = 0";
    assert_eq!(world.count(free).await, 1);
}

#[tokio::test]
async fn a_failed_run_is_waited_for_or_told_with_its_delay_and_given_up_after_the_last() {
    let mut world = World::new().await;
    let soon = |settings: oncely::http::IdempotencyLayerBuilder| {
        settings.retry(vec![Duration::from_millis(500)], 3, 3)
    };
    let server = changed(&world, soon).await;
    let ask = Ask::pay("soon", r#"{"do":"status","status":500}"#);
    for call in 1..=3 {
        let reply = server.client.ask(&ask).await;
        assert_eq!(
            (reply.status, reply.body),
            (500, format!("call {call}").into_bytes()),
            "in time for its delay"
        );
    }
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (409, "given-up"));
    assert_eq!(reply.header("retry-after"), None);

    let late =
        |settings: oncely::http::IdempotencyLayerBuilder| settings.retry(vec![Duration::from_secs(40)], 3, 3);
    let server = changed(&world, late).await;
    let ask = Ask::pay("late", r#"{"do":"status","status":500}"#);
    assert_eq!(server.client.ask(&ask).await.status, 500);
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "failed"));
    let delay: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((30..=40).contains(&delay), "{delay}");
    assert_eq!((server.calls.count(), attempts(&mut world, "late").await), (1, 1), "no attempt is spent");
}

#[tokio::test]
async fn a_handler_that_panics_or_breaks_off_has_failed_and_goes_on_from_its_steps() {
    let mut world = World::new().await;
    let server = changed(&world, at_once).await;
    for (number, what) in ["panic", "breaks"].into_iter().enumerate() {
        let ask = Ask::pay(what, &format!("{{\"do\":{what:?}}}"));
        for again in 1..=2 {
            let reply = server.client.ask(&ask).await;
            assert_eq!((reply.status, reply.problem().as_str()), (500, "failed"), "{what}");
            assert_eq!(reply.header("retry-after"), None, "{what}");
            assert_eq!(attempts(&mut world, what).await, again, "{what}");
        }
        assert_eq!(world.count(EFFECTS).await, i64::try_from(number).unwrap() + 1, "{what}");
    }
}

#[tokio::test]
async fn a_handler_past_its_limit_has_failed_unless_it_ends_when_it_is_told() {
    let mut world = World::new().await;
    let short = |settings: oncely::http::IdempotencyLayerBuilder| {
        at_once(settings).handler_limit(Duration::from_secs(1))
    };
    let server = changed(&world, short).await;
    for (what, counted) in [("hang", 1), ("late", 1)] {
        let ask = Ask::pay(what, &format!("{{\"do\":{what:?}}}"));
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.problem().as_str()), (503, "failed"), "{what}");
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"), "{what}");
        let ended = format!(
            "select count(*) from oncely.idempotency_keys where key = '{what}' and owner is null and attempts = {counted}"
        );
        world.wait_for(&ended, 1).await;
    }
    // It was told, has ended, and its answer counts.
    let again = server.client.ask(&Ask::pay("late", r#"{"do":"late"}"#)).await;
    assert_eq!((again.status, again.is_replayed()), (201, true));
    assert_eq!(world.count(EFFECTS).await, 2);
    server.layer.drain().await;
}

#[tokio::test]
async fn what_a_step_says_is_what_becomes_of_the_run() {
    let mut world = World::new().await;
    let (servers, _redis) = of_each_store(&world).await;
    for (store, server) in &servers {
        let ask = |name: &str, body: &str| Ask::pay(&format!("{store}-{name}"), body);
        // No, and that is the answer.
        let refused = ask("refused", r#"{"provider":"refuses"}"#);
        let (first, again) = (server.client.ask(&refused).await, server.client.ask(&refused).await);
        assert_eq!(
            (first.status, first.body.as_slice()),
            (422, &br#"{"refused":"no such card"}"#[..]),
            "{store}"
        );
        assert_eq!((again.status, again.is_replayed(), again.body), (422, true, first.body), "{store}");
        // It can never succeed.
        let rejected = ask("rejected", r#"{"provider":"rejects"}"#);
        for _ in 0..2 {
            let reply = server.client.ask(&rejected).await;
            assert_eq!((reply.status, reply.problem().as_str()), (409, "given-up"), "{store}");
            assert_eq!(reply.header("retry-after"), None);
        }
        // Nobody's fault.
        let away = ask("away", r#"{"provider":"away"}"#);
        for _ in 0..2 {
            let reply = server.client.ask(&away).await;
            assert_eq!((reply.status, reply.problem().as_str()), (503, "failed"), "{store}");
            assert_eq!(reply.header("retry-after").as_deref(), Some("1"), "{store}");
        }
        assert_eq!(server.calls.count(), 4, "{store}");
        // Torn: repeated by the same key, where the provider knows it again.
        let torn = ask("torn", r#"{"provider":"torn"}"#);
        let first = server.client.ask(&torn).await;
        assert_eq!((first.status, first.problem().as_str()), (503, "failed"), "{store}");
        assert_eq!(first.header("retry-after").as_deref(), Some("1"), "{store}: the delay");
        let second = server.client.ask(&torn).await;
        assert_eq!((second.status, second.is_replayed()), (201, false), "{store}");
        // And never, where it does not; also where the handler says it in words of its own.
        for (words, first_status, name) in [("", 503, "mail"), ("own", 502, "own")] {
            let body = format!(r#"{{"step":"mail","provider":"torn","words":{words:?}}}"#);
            let mail = ask(name, &body);
            assert_eq!(server.client.ask(&mail).await.status, first_status, "{store}");
            for _ in 0..2 {
                let reply = server.client.ask(&mail).await;
                assert_eq!((reply.status, reply.problem().as_str()), (409, "outcome-unknown"), "{store}");
                assert_eq!(reply.header("retry-after"), None);
            }
        }
    }
    for (name, calls, keys) in [("torn", 2, 1), ("mail", 1, 1), ("own", 1, 1)] {
        for store in ["postgresql", "redis", "memory"] {
            let of = |count: &str| format!("{count} and key = '{store}-{name}'");
            let counted = (world.count(&of(EFFECTS)).await, world.count(&of(STEP_KEYS)).await);
            assert_eq!(counted, (calls, keys), "{store}: {name}");
        }
    }
}

#[tokio::test]
async fn what_an_answer_waits_for_is_waited_for_at_the_stop() {
    let mut world = World::new().await;
    let server = server(&world).await;
    let gate = Gate::shut(&world).await;
    let (client, layer) = (server.client, server.layer.clone());
    let asked = tokio::spawn(async move { client.ask(&Ask::pay("slow", r#"{"do":"wait"}"#)).await });
    world.wait_for(crate::support::gate::WAITING, 1).await;
    let mut draining = tokio::spawn(async move { layer.drain().await });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut draining).await;
    assert!(early.is_err(), "it is at work");
    gate.open().await;
    draining.await.unwrap();
    assert_eq!(asked.await.unwrap().status, 201);
    let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    assert_eq!((world.count(done).await, world.count(EFFECTS).await), (1, 1));
}

#[tokio::test]
async fn a_person_settles_what_is_not_known() {
    let mut world = World::new().await;
    let server = changed(&world, at_once).await;
    for (key, happened) in [("it did", true), ("it did not", false)] {
        let ask = Ask::pay(&format!("\"{key}\""), r#"{"step":"mail","provider":"torn"}"#);
        assert_eq!(server.client.ask(&ask).await.status, 503);
        assert_eq!(server.client.ask(&ask).await.problem(), "outcome-unknown");
        let calls = server.calls.count();
        let settle = "select oncely.settle_claim('acme', 'POST /pay', $1, $2)";
        sqlx::query(settle).bind(key).bind(happened).execute(&mut world.sql).await.unwrap();
        let reply = server.client.ask(&ask).await;
        match happened {
            true => assert_eq!((reply.status, reply.is_replayed(), server.calls.count()), (204, true, calls)),
            // It begins anew, and is torn anew.
            false => assert_eq!((reply.status, server.calls.count()), (503, calls + 1)),
        }
    }
}
