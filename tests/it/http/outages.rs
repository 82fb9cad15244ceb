//! PostgreSQL away, and answers to COMMIT that are lost.

use testbed::proxy::{Mode, OneShot, Protocol, Proxy};

use super::{Ask, EFFECTS, KEYS, Server, pool};
use crate::support::World;

async fn through_a_proxy(world: &World) -> (Proxy, Server) {
    let (proxy, [(_, url)]) = world.proxied_postgres().await;
    let server = Server::start(pool(&url, 4).await, |settings| settings).await;
    (proxy, server)
}

#[tokio::test]
async fn without_postgresql_nothing_runs_and_the_client_may_come_again() {
    let mut world = World::new().await;
    let (proxy, server) = through_a_proxy(&world).await;
    proxy.set(Mode::Refuse);
    let ask = Ask::pay("away", "{}");
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert_eq!((reply.header("retry-after").as_deref(), server.calls.count()), (Some("1"), 0));
    proxy.set(Mode::Pass);
    assert_eq!(server.client.ask(&ask).await.status, 201);
    assert_eq!(world.count(EFFECTS).await, 1);
}

#[tokio::test]
async fn a_lost_answer_to_commit_is_found_out() {
    let mut world = World::new().await;
    let (proxy, server) = through_a_proxy(&world).await;
    assert_eq!(server.client.ask(&Ask::pay("warm", "{}")).await.status, 201);
    // It happened: the client gets the first answer, with all its headers.
    proxy.arm(Some(OneShot::LoseCommitReply));
    let ask = Ask::pay("lost", "{}");
    let first = server.client.ask(&ask).await;
    assert_eq!((first.status, first.is_replayed(), proxy.struck()), (201, false, 1));
    assert!(first.header("set-cookie").is_some());
    assert_eq!(server.client.ask(&ask).await.body, first.body);
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (2, 2));
    // It did not: nothing is claimed to be done.
    proxy.arm(Some(OneShot::CutBeforeCommit));
    let ask = Ask::pay("cut", "{}");
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str(), proxy.struck()), (503, "unavailable", 2));
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (2, 2));
    assert_eq!(server.client.ask(&ask).await.status, 201);
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (4, 3));
}

#[tokio::test]
async fn an_answer_that_a_proxy_tears_is_had_again_by_a_retry() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let proxy = Proxy::start(Protocol::Plain, server.client.address()).await.unwrap();
    let through = super::Client::new(([127, 0, 0, 1], proxy.port()).into());
    let whole = server.client.ask(&Ask::pay("whole", "{}")).await;
    assert_eq!(whole.status, 201);
    for bytes in [1, 20, 100, 200, 250] {
        let ask = Ask::pay(&format!("torn-{bytes}"), "{}");
        proxy.set(Mode::CutAfter(testbed::proxy::Direction::Down, bytes));
        let torn = through.send(&ask.bytes()).await;
        let torn = torn.map(|reply| reply.body.len()).unwrap_or(0);
        assert!(torn < whole.body.len(), "{bytes}: torn after {torn} bytes of the body");
        proxy.set(Mode::Pass);
        let again = through.ask(&ask).await;
        assert_eq!((again.status, again.is_replayed()), (201, true), "{bytes}");
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (6, 6));
}
