//! The server dies with a request; then another one takes over, when its client asks again.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely_failpoint::STEPS;
use testbed::{Process, eventually};

use super::super::Client;
use super::{Ask, EFFECTS, STEP_KEYS};
use crate::support::{World, http};

fn environment(more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let own = [("LISTEN", "127.0.0.1:0"), ("LEASE_SECONDS", "1")];
    own.iter().chain(more).map(|(name, value)| (*name, (*value).to_owned())).collect()
}

async fn start(world: &World, name: &str, more: &[(&'static str, &str)]) -> (Process, Client) {
    let process = world.start_with("paying", name, &environment(more));
    let client = Client::new(http::address(&process).await.parse().unwrap());
    (process, client)
}

/// Asks it, and sees it die.
async fn dies(process: &mut Process, client: Client, ask: &Ask) {
    let torn = client.send(&ask.bytes()).await;
    assert!(torn.is_err(), "{ask:?}: {torn:?}");
    let ended = process.wait_for_end(Duration::from_secs(30)).await;
    let status = ended.unwrap_or_else(|error| panic!("{ask:?}: {error}: {}", process.output()));
    assert_eq!(status.signal(), Some(6), "{ask:?}: {status}: {}", process.output());
}

/// Asks again until the lease of the dead is over.
async fn asks_again(client: Client, ask: &Ask) -> super::super::client::Reply {
    eventually("its lease is over", || async {
        let reply = client.ask(ask).await;
        anyhow::ensure!(
            reply.status != 409 || reply.problem() != "in-flight",
            "{reply:?}: another one holds the key"
        );
        Ok(reply)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_server_that_dies_at_any_step_calls_the_provider_once() {
    let mut world = World::new().await;
    let steps: Vec<&str> = STEPS.iter().copied().filter(|step| step.starts_with("leased.")).collect();
    assert!(steps.len() >= 6, "{steps:?}");
    let (_surviving, survivor) = start(&world, "surviving", &[]).await;
    for (number, step) in steps.iter().enumerate() {
        let (mut dying, client) = start(&world, &format!("dying-{number}"), &[("FAILPOINT", step)]).await;
        let ask = Ask::pay(step, "{}");
        dies(&mut dying, client, &ask).await;
        let reply = asks_again(survivor, &ask).await;
        assert_eq!(
            (reply.status, reply.is_replayed()),
            (201, *step == "leased.end.after"),
            "{step}: {reply:?}"
        );
        assert!(survivor.ask(&ask).await.is_replayed(), "{step}");
        assert_eq!(world.count(EFFECTS).await, i64::try_from(number).unwrap() + 1, "{step}");
    }
}

#[tokio::test]
async fn a_call_that_a_server_died_of_is_repeated_by_the_same_key_or_not_at_all() {
    let mut world = World::new().await;
    let (_surviving, survivor) = start(&world, "surviving", &[]).await;
    // The provider knows its keys again.
    let (mut dying, client) = start(&world, "dying-1", &[]).await;
    let charge = Ask::pay("charge", r#"{"provider":"dies"}"#);
    dies(&mut dying, client, &charge).await;
    let reply = asks_again(survivor, &charge).await;
    assert_eq!((reply.status, reply.is_replayed()), (201, false), "{reply:?}");
    let of = |count: &str, key: &str| format!("{count} and key = '{key}'");
    assert_eq!(world.count(&of(EFFECTS, "charge")).await, 2, "calls");
    assert_eq!(world.count(&of(STEP_KEYS, "charge")).await, 1, "by one key");
    let tokens = "select count(distinct headers ->> 'token') from app.effects where key = 'charge'";
    assert_eq!(world.count(tokens).await, 2, "under two leases");
    // It does not.
    let (mut dying, client) = start(&world, "dying-2", &[]).await;
    let mail = Ask::pay("mail", r#"{"step":"mail","provider":"dies"}"#);
    dies(&mut dying, client, &mail).await;
    for _ in 0..2 {
        let reply = asks_again(survivor, &mail).await;
        assert_eq!((reply.status, reply.problem().as_str()), (409, "outcome-unknown"));
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(world.count(&of(EFFECTS, "mail")).await, 1);
    let reason = "select reason from oncely.idempotency_keys where key = 'mail'";
    assert_eq!(world.text(reason).await.as_deref(), Some("outcome_unknown"));
}

#[tokio::test]
async fn the_example_charges_once() {
    let mut world = World::new().await;
    let listen = [("LISTEN", "127.0.0.1:0".to_owned())];
    let example = world.start_with("http_leases", "http_leases", &listen);
    let client = Client::new(http::address(&example).await.parse().unwrap());
    let ask = Ask { body: "order-1".to_owned(), ..Ask::pay("k", "") }.to("POST", "/payments");
    let (first, again) = (client.ask(&ask).await, client.ask(&ask).await);
    let key = "select oncely.step_key('shop', 'POST /payments', 'k', 'charge')::text";
    let receipt = format!("order-1 is paid, receipt {}", world.text(key).await.unwrap());
    assert_eq!((first.status, String::from_utf8(first.body).unwrap()), (200, receipt.clone()));
    assert_eq!((again.is_replayed(), String::from_utf8(again.body).unwrap()), (true, receipt));
    assert_eq!(example.output().matches("mail:").count(), 1);
    world.stop(example).await;
}
