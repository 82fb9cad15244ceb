//! The stock worker posts messages to an endpoint, under leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use testbed::eventually;
use tokio::net::TcpListener;

use crate::support::rude::Rude;
use crate::support::{World, message};

const COMPLETED: &str =
    "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and owner is null";

/// One request, as it came.
#[derive(Clone, Debug)]
struct Call {
    headers: HeaderMap,
    body: Value,
}

impl Call {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A service with books: what came, and what took effect by its `Idempotency-Key`.
#[derive(Clone, Default)]
struct Endpoint {
    calls: Arc<Mutex<Vec<Call>>>,
    effects: Arc<Mutex<HashMap<String, usize>>>,
}

impl Endpoint {
    /// Answers as the body says: `status` for the first `times` calls of a key; `hang` never, at first; `tear` breaks off.
    async fn answer(
        State(me): State<Self>,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, String), StatusCode> {
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let call = Call { headers, body: body.clone() };
        let times = {
            let mut calls = me.calls.lock().unwrap();
            calls.push(call.clone());
            calls.iter().filter(|one| one.header("oncely-key") == call.header("oncely-key")).count()
        };
        let first = u64::try_from(times).unwrap() <= body["times"].as_u64().unwrap_or(1);
        // One after the other.
        let listed = body["statuses"].get(times - 1).and_then(Value::as_u64);
        if let Some(status) = listed.or(body["status"].as_u64().filter(|_| first)) {
            return Err(StatusCode::from_u16(u16::try_from(status).unwrap()).unwrap());
        }
        *me.effects.lock().unwrap().entry(call.header("idempotency-key").to_owned()).or_default() += 1;
        if body["tear"] == json!(true) && first {
            panic!("torn off");
        }
        if body["hang"] == json!(true) && first {
            std::future::pending::<()>().await;
        }
        Ok((StatusCode::CREATED, json!({ "charged": call.header("oncely-key") }).to_string()))
    }

    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Self::on(listener), address)
    }

    fn on(listener: TcpListener) -> Self {
        let me = Self::default();
        let routes = Router::new().route("/charges", post(Self::answer)).with_state(me.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        me
    }

    fn calls_of(&self, key: &str) -> Vec<Call> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.header("oncely-key") == key).cloned().collect()
    }
}

async fn world(address: &str, repeat: &str, more: &str) -> World {
    let mut world = World::new().await;
    let text = format!(
        "[[consumers]]\nname = \"charges\"\nqueue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\n\
         key = {{ property = \"message_id\" }}\nlease = {{ time = \"5s\", max_run = \"60s\" }}\n\
         retry = {{ delays = [\"50ms\"], max_attempts = 3 }}\n\
         handler = {{ http = \"http://{address}/charges?from=oncely\", repeat = {repeat}{more} }}",
        world.queue("charges")
    );
    world.configure(&text);
    world.apply_topology().await;
    world
}

#[tokio::test]
async fn a_status_decides_what_becomes_of_a_message() {
    let (endpoint, address) = Endpoint::start().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cr3t-token\n").unwrap();
    let more = format!(", headers = {{ x-team = \"billing\" }}, token_file = {token:?}");
    let mut world = world(&address, "{ within = \"24h\" }", &more).await;
    let worker = world.start("worker");
    for (key, body) in [
        ("fine", r#"{"amount": 7}"#),
        ("later", r#"{"status": 500}"#),
        ("throttled", r#"{"status": 429}"#),
        ("torn", r#"{"tear": true}"#),
        ("declined", r#"{"status": 422}"#),
        ("broken", r#"{"status": 500, "times": 9}"#),
        ("moved", r#"{"status": 303}"#),
        ("doubtful", r#"{"statuses": [500, 429]}"#),
        ("too-late", r#"{"statuses": [500, 422]}"#),
    ] {
        world.publish("charges", message("acme", key), body).await;
    }
    world.wait_for(COMPLETED, 6).await;
    world.wait_for("select count(*) from oncely.dead_letters", 3).await;
    let reasons = "select string_agg(key || ' ' || reason || ' ' || attempt, ', ' order by key) from oncely.dead_letters";
    let reasons = world.text(reasons).await.unwrap();
    // Its first call counts only where another one had succeeded meanwhile.
    let known = "broken attempts_exhausted 3, declined handler_rejected 1, too-late outcome_unknown ";
    assert!([1, 2].map(|attempt| format!("{known}{attempt}")).contains(&reasons), "{reasons}");
    let fine = &endpoint.calls_of("fine")[0];
    assert_eq!(fine.body, json!({ "amount": 7 }));
    let of_call =
        world.text("select oncely.step_key('acme', 'charges', 'fine', 'http')::text").await.unwrap();
    for (name, expected) in [
        ("idempotency-key", format!("\"{of_call}\"").as_str()),
        ("oncely-tenant", "acme"),
        ("oncely-consumer", "charges"),
        ("oncely-attempt", "1"),
        ("oncely-repeat", "false"),
        ("content-type", "application/json"),
        ("authorization", "Bearer s3cr3t-token"),
        ("x-team", "billing"),
    ] {
        assert_eq!(fine.header(name), expected, "{name}");
    }
    let response = world.text("select response::text from oncely.idempotency_keys where key = 'fine'").await;
    assert_eq!(response.as_deref(), Some(r#"{"charged": "fine"}"#));
    // What may have happened is repeated by the same key; what certainly did not is another call.
    for (key, is_same) in [("later", true), ("torn", true), ("moved", true), ("throttled", false)] {
        let calls = endpoint.calls_of(key);
        let [first, second] = calls.as_slice() else { panic!("{key}: {} calls", calls.len()) };
        let same = first.header("idempotency-key") == second.header("idempotency-key");
        assert_eq!(same, is_same, "{key}");
        assert_eq!(second.header("oncely-repeat"), if is_same { "true" } else { "false" }, "{key}");
        assert!(second.header("oncely-token") > first.header("oncely-token"), "{key}");
    }
    // That a repeated call is refused says nothing of the first one: the key stays.
    let calls = endpoint.calls_of("doubtful");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call.header("idempotency-key") == calls[0].header("idempotency-key")));
    // A duplicate is no call.
    world.publish("charges", message("acme", "fine"), r#"{"amount": 7}"#).await;
    world.wait_for_ready(&world.queue("charges"), 0).await;
    // Another token is used from the next call on.
    std::fs::write(&token, "another\n").unwrap();
    world.publish("charges", message("acme", "after"), "{}").await;
    world.wait_for(COMPLETED, 7).await;
    assert_eq!(endpoint.calls_of("after")[0].header("authorization"), "Bearer another");
    assert_eq!(endpoint.calls_of("fine").len(), 1);
    let log = world.stopped_log(worker).await;
    assert!(!log.contains("s3cr3t") && !log.contains("amount"), "{log}");
}

#[tokio::test]
async fn a_worker_that_is_killed_in_the_call_is_followed_by_one_call_with_the_same_key() {
    let (endpoint, address) = Endpoint::start().await;
    let mut world = world(&address, "{ within = \"24h\" }", "").await;
    let mut worker = world.start("worker");
    world.publish("charges", message("acme", "order"), r#"{"hang": true}"#).await;
    let called = eventually("a call", || async {
        if endpoint.calls_of("order").is_empty() { Err("none") } else { Ok(()) }
    });
    called.await.unwrap();
    world.kill(&mut worker);
    let second = world.start_as("worker", "second");
    world.wait_for(COMPLETED, 1).await;
    world.stop(second).await;
    let calls = endpoint.calls_of("order");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].header("oncely-repeat"), "true");
    assert_eq!(endpoint.effects.lock().unwrap().len(), 1, "one effect, where the service knows a key again");
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'taken_over'").await, 1);
}

#[tokio::test]
async fn what_may_have_happened_and_must_not_be_repeated_is_a_dead_letter() {
    let (endpoint, address) = Endpoint::start().await;
    let mut world = world(&address, "\"never\"", ", timeout = \"1s\"").await;
    let worker = world.start("worker");
    world.publish("charges", message("acme", "broken"), r#"{"status": 500}"#).await;
    world.publish("charges", message("acme", "silent"), r#"{"hang": true}"#).await;
    let unknown = "select count(*) from oncely.dead_letters where reason = 'outcome_unknown'";
    world.wait_for(unknown, 2).await;
    assert_eq!((endpoint.calls_of("broken").len(), endpoint.calls_of("silent").len()), (1, 1));
    world.stop(worker).await;
}

/// Two messages whose first call may have happened, as their dead letters.
async fn unknown(world: &mut World, first: [(&str, &str); 2]) {
    for (key, body) in first {
        world.publish("charges", message("acme", key), body).await;
    }
    let letters =
        "select count(*) from oncely.dead_letters where reason = 'outcome_unknown' and state = 'waiting'";
    world.wait_for(letters, 2).await;
}

#[tokio::test]
async fn a_call_that_may_have_happened_keeps_its_key_until_its_answer_whatever_is_refused_meanwhile() {
    let (endpoint, address) = Endpoint::start().await;
    let mut world = world(&address, "\"never\"", ", timeout = \"1s\"").await;
    let worker = world.start("worker");
    unknown(
        &mut world,
        [("torn", r#"{"tear": true, "statuses": [null, 429, 429]}"#), ("silent", r#"{"hang": true}"#)],
    )
    .await;
    let requeued = world.oncely(&["failed", "requeue", "--key", "torn", "--repeat-unknown", "--yes"]).await;
    assert!(requeued.status.success(), "{requeued:?}");
    world.wait_for(COMPLETED, 1).await;
    world.stop(worker).await;
    let calls = endpoint.calls_of("torn");
    let repeats: Vec<&str> = calls.iter().map(|call| call.header("oncely-repeat")).collect();
    assert_eq!(repeats, ["false", "true", "true", "true"]);
    assert!(calls.iter().all(|call| call.header("idempotency-key") == calls[0].header("idempotency-key")));
    let effects = endpoint.effects.lock().unwrap();
    assert_eq!(effects.len(), 2, "one for each message, where the service knows a key again: {effects:?}");
}

#[tokio::test]
async fn an_operators_no_is_worth_a_calls_and_is_asked_for_before_a_letters_reason() {
    let (endpoint, address) = Endpoint::start().await;
    let mut world = world(&address, "\"never\"", ", timeout = \"1s\"").await;
    let worker = world.start("worker");
    unknown(&mut world, [("lost", r#"{"status": 500}"#), ("other", r#"{"status": 500}"#)]).await;
    let all = &["failed", "requeue", "--all", "--yes"][..];
    let refused = world.oncely(all).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let no = ["keys", "settle", "lost", "--took-effect", "no", "--yes"];
    let settled = world.oncely(&no).await;
    assert!(settled.status.success(), "{settled:?}");
    // The one that is settled runs again, and needs no leave; the other one still does.
    let requeued = world.oncely(all).await;
    assert!(requeued.status.success(), "{requeued:?}");
    world.wait_for(COMPLETED, 1).await;
    world.stop(worker).await;
    assert_eq!(endpoint.calls_of("other").len(), 1);
    let calls = endpoint.calls_of("lost");
    let [first, second] = calls.as_slice() else { panic!("{} calls", calls.len()) };
    // A service that stores its 500 would answer with it for ever.
    assert_ne!(first.header("idempotency-key"), second.header("idempotency-key"));
    assert_eq!([second.header("oncely-repeat"), second.header("oncely-attempt")], ["false", "1"]);
}

#[tokio::test]
async fn an_endpoint_that_is_away_costs_no_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut world = world(&address.to_string(), "\"always\"", "").await;
    let worker = world.start("worker");
    for key in ["a", "b"] {
        world.publish("charges", message("acme", key), "{}").await;
    }
    world.wait_for_line(&worker, "not sent: ").await;
    let endpoint = Endpoint::on(TcpListener::bind(address).await.unwrap());
    world.wait_for(COMPLETED, 2).await;
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(endpoint.calls_of("a")[0].header("oncely-attempt"), "1");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_body_that_an_endpoint_leaves_unread_is_never_the_beginning_of_another_message() {
    let rude = Rude::deaf();
    let mut world = world(&rude.address.to_string(), "\"always\"", "").await;
    let worker = world.start("worker");
    for number in 0..12 {
        let key = format!("order-{number}");
        world.publish("charges", message("acme", &key), "POST /gone HTTP/1.1\r\nx-rest: ").await;
        world.wait_for(COMPLETED, number + 1).await;
    }
    let heads = rude.heads();
    assert!(!heads.iter().any(|head| head.contains("/gone")), "{heads:?}");
    assert_eq!(heads.len(), 12);
    world.stop(worker).await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_read_decides() {
    let rude = Rude::early();
    let mut world = world(&rude.address.to_string(), "\"never\"", "").await;
    let worker = world.start("worker");
    let body = "x".repeat(900_000);
    for number in 0..40 {
        let status = [413, 422, 201, 201][number % 4];
        world.publish("charges", message("acme", &format!("{status}-{number}")), &body).await;
    }
    world.wait_for(COMPLETED, 20).await;
    world.wait_for("select count(*) from oncely.dead_letters where reason = 'handler_rejected'", 20).await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 20);
    assert_eq!(world.count("select max(attempts)::bigint from oncely.idempotency_keys").await, 1);
    assert_eq!(rude.heads().len(), 40);
    world.stop(worker).await;
}

#[tokio::test]
async fn all_that_is_wrong_with_an_endpoint_is_said_at_once() {
    let mut world = World::new().await;
    let text = format!(
        "[[consumers]]\nname = \"charges\"\nqueue = {:?}\ntenant = {{ fixed = \"t\" }}\nkey = {{ property = \"message_id\" }}\n\
         lease = {{ time = \"5s\", max_run = \"10s\" }}\n\
         handler = {{ http = \"http://u:s3cr3t@pay.example.com/\", timeout = \"20s\", token_file = \"/x\", \
         headers = {{ Idempotency-Key = \"1\", authorization = \"s3cr3t\" }} }}",
        world.queue("charges")
    );
    world.configure(&text);
    let checked = world.oncely(&["check"]).await;
    assert!(!checked.status.success());
    let told =
        String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    for part in [
        "handler.http: must hold no user",
        "goes to pay.example.com in plaintext",
        "handler.repeat: is missing",
        "handler.timeout: must be shorter than lease.max_run",
        "\"Idempotency-Key\" is set by Oncely",
        "headers.authorization too",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("s3cr3t"), "{told}");
    world.reconfigure("http://u:s3cr3t@pay.example.com/", "https://pay.example.com/hooks/s3cr3t?sig=s3cr3t");
    let shown = world.oncely(&["config", "show"]).await;
    let told = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(told.contains("https://pay.example.com/***") && !told.contains("s3cr3t"), "{told}");
}
