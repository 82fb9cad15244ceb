//! The server dies at each step of a request; then another one goes on, and the client asks again.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely_failpoint::STEPS;

use super::{Ask, Client, EFFECTS, KEYS};
use crate::support::{World, http};

#[tokio::test]
async fn a_server_that_dies_at_any_step_takes_one_effect() {
    let mut world = World::new().await;
    let listen = ("LISTEN", "127.0.0.1:0".to_owned());
    let steps: Vec<&str> = STEPS.iter().copied().filter(|step| step.starts_with("http.")).collect();
    assert!(steps.len() >= 10, "{steps:?}");
    let surviving = world.start_with("paying", "surviving", std::slice::from_ref(&listen));
    let survivor = Client::new(http::address(&surviving).await.parse().unwrap());
    for (number, step) in steps.iter().enumerate() {
        let environment = [listen.clone(), ("FAILPOINT", (*step).to_owned())];
        let mut dying = world.start_with("paying", &format!("dying-{number}"), &environment);
        let client = Client::new(http::address(&dying).await.parse().unwrap());
        let ask = Ask::pay(step, "{}");
        let torn = client.send(&ask.bytes()).await;
        assert!(torn.is_err(), "{step}: {torn:?}");
        let ended = dying.wait_for_end(Duration::from_secs(30)).await;
        let status = ended.unwrap_or_else(|error| panic!("{step}: {error}: {}", dying.output()));
        assert_eq!(status.signal(), Some(6), "{step}: {status}: {}", dying.output());
        let reply = survivor.ask(&ask).await;
        assert_eq!(reply.status, 201, "{step}: {reply:?}");
        assert_eq!(reply.is_replayed(), *step == "http.commit.after", "{step}");
        let done = i64::try_from(number).unwrap() + 1;
        assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (done, done), "{step}");
    }
}

#[tokio::test]
async fn the_example_takes_a_payment_once() {
    let mut world = World::new().await;
    let payments = "create table public.payments (id bigint generated always as identity, order_id text)";
    sqlx::raw_sql(payments).execute(&mut world.sql).await.unwrap();
    let listen = [("LISTEN", "127.0.0.1:0".to_owned())];
    let example = world.start_with("http_door", "http_door", &listen);
    let client = Client::new(http::address(&example).await.parse().unwrap());
    let ask = Ask { body: "order-1".to_owned(), ..Ask::pay("k", "") }.to("POST", "/payments");
    let (first, again) = (client.ask(&ask).await, client.ask(&ask).await);
    assert_eq!((first.status, first.body.as_slice()), (201, &b"payment 1 for order-1"[..]));
    assert_eq!((again.is_replayed(), again.body), (true, first.body));
    world.stop(example).await;
    assert_eq!(world.count("select count(*) from public.payments").await, 1);
}
