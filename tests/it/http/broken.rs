//! Handlers that fail, and clients that leave.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{Ask, EFFECTS, KEYS, Server, pool};
use crate::support::Login;
use crate::support::World;
use crate::support::gate::{Gate, WAITING};

#[tokio::test]
async fn a_handler_that_fails_commits_nothing_and_may_run_again() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    // Panics, goes on after an error, violates what is checked at COMMIT, keeps the transaction.
    for what in ["panic", "swallow", "twice", "keep"] {
        for _ in 0..2 {
            let reply = server.client.ask(&Ask::pay(what, &format!("{{\"do\":{what:?}}}"))).await;
            assert_eq!((reply.status, reply.problem().as_str()), (500, "failed"), "{what}");
            assert_eq!(reply.header("retry-after"), None, "{what}");
            // Its transaction is nobody's any more, or still somebody's.
            if what == "keep" {
                break;
            }
        }
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await, world.count(KEYS).await), (7, 0, 0));
    // Whatever they left in their sessions: the next one is well.
    for number in 0..8 {
        assert_eq!(server.client.ask(&Ask::pay(&format!("well-{number}"), "{}")).await.status, 201);
    }
}

/// Its role can't be restored, so its transaction is lost, but not ended: nothing of it is committed.
#[tokio::test]
async fn a_handler_that_forges_its_role_commits_nothing_and_may_run_again() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let grant = format!(
        "grant usage on schema app to {0}; grant insert on all tables in schema app to {0}",
        login.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
    let server = Server::start(pool(&login.url, 4).await, |settings| settings).await;
    for _ in 0..2 {
        let reply = server.client.ask(&Ask::pay("forge", r#"{"do":"forge"}"#)).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "failed"));
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await, world.count(KEYS).await), (2, 0, 0));
    for number in 0..8 {
        assert_eq!(server.client.ask(&Ask::pay(&format!("well-{number}"), "{}")).await.status, 201);
    }
    server.layer.drain().await;
    login.drop_now(&mut world).await;
}

/// What it wrote after that is committed by itself: a retry would do it again.
#[tokio::test]
async fn a_handler_that_rolls_its_transaction_back_itself_has_an_unknown_outcome() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    for what in ["rollback", "chain", "rewrite"] {
        for (status, problem) in [(500, "failed"), (409, "outcome-unknown")] {
            let reply = server.client.ask(&Ask::pay(what, &format!("{{\"do\":{what:?}}}"))).await;
            assert_eq!((reply.status, reply.problem().as_str()), (status, problem), "{what}");
        }
    }
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (3, 1));
    let given_up =
        "select count(*) from oncely.idempotency_keys where status = 'FAILED' and reason = 'outcome_unknown'";
    assert_eq!(world.count(given_up).await, 3);
    // Whatever they left in their sessions: the next one is well.
    for number in 0..8 {
        assert_eq!(server.client.ask(&Ask::pay(&format!("well-{number}"), "{}")).await.status, 201);
    }
}

#[tokio::test]
async fn a_handler_that_rolls_back_itself_and_hangs_has_an_unknown_outcome_too() {
    let mut world = World::new().await;
    let short =
        |settings: oncely::http::IdempotencyLayerBuilder| settings.handler_limit(Duration::from_millis(500));
    let server = Server::start(pool(world.database.url(), 4).await, short).await;
    let ask = Ask::pay("k", r#"{"do":"rewrite","then":"hang"}"#);
    let reply = server.client.ask(&ask).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "failed"));
    server.layer.drain().await;
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "outcome-unknown"));
    assert_eq!((server.calls.count(), world.count(EFFECTS).await), (1, 1));
}

/// Nobody can take it back, and it is not told as done.
#[tokio::test]
async fn what_a_handler_commits_by_itself_is_of_an_unknown_outcome() {
    let mut world = World::new().await;
    let short =
        |settings: oncely::http::IdempotencyLayerBuilder| settings.handler_limit(Duration::from_millis(500));
    // With no more rights than a door needs.
    let login = Login::create(&mut world, "oncely_worker").await;
    let grant = format!(
        "grant usage on schema app to {0}; grant insert on all tables in schema app to {0}",
        login.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
    let server = Server::start(pool(&login.url, 4).await, short).await;
    for (number, then) in ["answer", "fail", "panic", "begin", "hang"].into_iter().enumerate() {
        let ask = Ask::pay(then, &format!(r#"{{"do":"commit","then":{then:?}}}"#));
        let status = if then == "hang" { 503 } else { 500 };
        let reply = server.client.ask(&ask).await;
        assert_eq!((reply.status, reply.problem().as_str()), (status, "failed"), "{then}");
        let given_up = format!(
            "select count(*) from oncely.idempotency_keys where key = '{then}' and status = 'FAILED' and reason = 'outcome_unknown'"
        );
        world.wait_for(&given_up, 1).await;
        let again = server.client.ask(&ask).await;
        assert_eq!((again.status, again.problem().as_str()), (409, "outcome-unknown"), "{then}");
        let calls = u32::try_from(number).unwrap() + 1;
        assert_eq!((server.calls.count(), world.count(EFFECTS).await), (calls, i64::from(calls)), "{then}");
    }
    // Whatever it left in its session: the next one is well, and another one's key is not touched.
    for number in 0..8 {
        assert_eq!(server.client.ask(&Ask::pay(&format!("well-{number}"), "{}")).await.status, 201);
    }
}

/// As soon as the handler has committed, whatever becomes of its process: another server is asked while the handler stands still.
#[tokio::test]
async fn what_a_handler_has_committed_is_of_an_unknown_outcome_at_once_until_a_person_says() {
    let mut world = World::new().await;
    let (server, other) = (Server::of(&world).await, Server::of(&world).await);
    let ask = Ask::pay("k", r#"{"do":"commit","then":"hang"}"#);
    let client = server.client;
    let first = tokio::spawn({
        let bytes = ask.bytes();
        async move { client.send(&bytes).await }
    });
    world.wait_for(EFFECTS, 1).await;
    let again = other.client.ask(&ask).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "outcome-unknown"));
    assert_eq!((again.is_replayed(), again.header("retry-after")), (false, None));
    first.abort();
    let settled = "select count(*) from (select oncely.settle_claim(tenant, consumer, key, true) as settled
        from oncely.idempotency_keys) as s where settled";
    assert_eq!(world.count(settled).await, 1);
    let again = other.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed()), (204, true));
    assert_eq!((server.calls.count(), other.calls.count(), world.count(EFFECTS).await), (1, 0, 1));
}

/// A migration has the table: nobody waits for it with a connection of the application's in hand.
#[tokio::test]
async fn a_locked_table_is_not_waited_for() {
    let world = World::new().await;
    let server = Server::of(&world).await;
    assert_eq!(server.client.ask(&Ask::pay("before", "{}")).await.status, 201);
    let locking = pool(world.database.url(), 1).await;
    let mut locked = locking.begin().await.unwrap();
    sqlx::query("lock table oncely.idempotency_keys in access exclusive mode")
        .execute(&mut *locked)
        .await
        .unwrap();
    for key in ["before", "k"] {
        let reply = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!((reply.status, reply.problem().as_str()), (409, "in-flight"), "{key}");
    }
    locked.rollback().await.unwrap();
    assert_eq!(server.client.ask(&Ask::pay("k", "{}")).await.status, 201);
}

#[tokio::test]
async fn a_role_that_a_handler_sets_ends_with_it() {
    let mut world = World::new().await;
    // One session for all.
    let pool = pool(world.database.url(), 1).await;
    let server = Server::start(pool.clone(), |settings| settings).await;
    for (key, body) in [("role", r#"{"do":"role"}"#), ("next", "{}"), ("again", r#"{"do":"role"}"#)] {
        let ask = Ask::pay(key, body);
        assert_eq!(server.client.ask(&ask).await.status, 201, "{key}");
        assert!(server.client.ask(&ask).await.is_replayed(), "{key}");
    }
    let role: String = sqlx::query_scalar("select current_setting('role')").fetch_one(&pool).await.unwrap();
    assert_eq!((role.as_str(), world.count(EFFECTS).await), ("none", 3));
}

#[tokio::test]
async fn a_handler_past_its_limit_commits_nothing() {
    let mut world = World::new().await;
    let short =
        |settings: oncely::http::IdempotencyLayerBuilder| settings.handler_limit(Duration::from_millis(400));
    let server = Server::start(pool(world.database.url(), 4).await, short).await;
    let gate = Gate::shut(&world).await;
    for (key, body) in [("hangs", r#"{"do":"hang"}"#), ("waits", r#"{"do":"wait"}"#)] {
        let reply = server.client.ask(&Ask::pay(key, body)).await;
        assert_eq!((reply.status, reply.problem().as_str()), (503, "failed"));
        assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    }
    gate.open().await;
    server.layer.drain().await;
    assert_eq!((server.calls.count(), world.count(EFFECTS).await, world.count(KEYS).await), (2, 0, 0));
    assert_eq!(server.client.ask(&Ask::pay("waits", r#"{"do":"wait"}"#)).await.status, 201, "free again");
}

#[tokio::test]
async fn a_client_that_leaves_at_any_byte_takes_one_effect_or_none() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let ask = |key: &str| Ask::pay(key, r#"{"amount":7}"#);
    let length = ask("left-000").bytes().len();
    for sent in 0..=length {
        let key = format!("left-{sent:03}");
        let bytes = ask(&key).bytes();
        let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
        stream.write_all(&bytes[..sent]).await.unwrap();
        // Reset, as by a process that dies.
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
    // Those that came whole, and were not gone before they were read, are done; all get the same when they ask again.
    for sent in 0..=length {
        let reply = server.client.ask(&ask(&format!("left-{sent:03}"))).await;
        assert_eq!(reply.status, 201);
        assert!(sent == length || !reply.is_replayed(), "{sent} bytes of {length} are no request");
    }
    let keys = i64::try_from(length).unwrap() + 1;
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (keys, keys));
    assert_eq!(i64::from(server.calls.count()), keys);
}

#[tokio::test]
async fn a_client_that_leaves_does_not_interrupt_its_handler() {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let gate = Gate::shut(&world).await;
    let ask = Ask::pay("left", r#"{"do":"wait"}"#);
    let mut stream = TcpStream::connect(server.client.address()).await.unwrap();
    stream.write_all(&ask.bytes()).await.unwrap();
    world.wait_for(WAITING, 1).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    gate.open().await;
    server.layer.drain().await;
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (1, 1));
    let again = server.client.ask(&ask).await;
    assert_eq!((again.status, again.is_replayed(), server.calls.count()), (201, true, 1));
}
