//! The server dies at each step of a request; then another one goes on, and the client asks again.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely::failpoint::STEPS;

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
        let mut dying = world.start_with("paying", "dying", &environment);
        let client = Client::new(http::address(&dying).await.parse().unwrap());
        let ask = Ask::pay(step, "{}");
        let torn = client.send(&ask.bytes()).await;
        assert!(torn.is_err(), "{step}: {torn:?}");
        let status = dying.ended(Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.signal(), Some(6), "{step}: {status}: {}", dying.output());
        let reply = survivor.ask(&ask).await;
        assert_eq!(reply.status, 201, "{step}: {reply:?}");
        assert_eq!(reply.is_replayed(), *step == "http.commit.after", "{step}");
        let done = i64::try_from(number).unwrap() + 1;
        assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (done, done), "{step}");
    }
}
