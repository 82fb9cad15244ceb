//! Keys that tell their time, at either door.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use oncely::http::IdempotencyLayerBuilder;
use oncely::lease::PostgresStore;
use uuid::{NoContext, Timestamp, Uuid};

use super::{Ask, EFFECTS, Server, pool};
use crate::support::World;

const DAY: u64 = 86_400;

fn before(seconds: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(seconds)
}

/// A UUIDv7 of that time.
fn key(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Uuid::new_v7(Timestamp::from_unix(NoContext, since.as_secs(), since.subsec_nanos())).to_string()
}

fn date(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

#[tokio::test]
async fn a_key_that_may_have_been_forgotten_is_refused_where_that_is_asked_for() {
    let mut world = World::new().await;
    let refusing = |settings: IdempotencyLayerBuilder| {
        settings.refuse_old_keys(true).retention(Duration::from_secs(2 * DAY))
    };
    let leased = |world: &World| {
        let url = world.database.url().to_owned();
        async move { PostgresStore::new(pool(&url, 4).await) }
    };
    let servers = [
        ("transactional", Server::start(pool(world.database.url(), 4).await, refusing).await),
        ("leased", Server::leased(&world, leased(&world).await, refusing).await),
    ];
    for (door, server) in &servers {
        let old = server.client.ask(&Ask::pay(&key(before(2 * DAY)), "{}")).await;
        assert_eq!((old.status, old.problem().as_str()), (412, "key-too-old"), "{door}");
        assert_eq!(old.header("retry-after"), None);
        let sent = |seconds| Ask::pay(&format!("{door}-{seconds}"), "{}");
        let ask = sent(2 * DAY).header("Repeatability-First-Sent", &date(before(2 * DAY)));
        assert_eq!(server.client.ask(&ask).await.problem(), "key-too-old", "{door}");
        let ask = sent(1).header("Repeatability-First-Sent", "yesterday");
        assert_eq!(server.client.ask(&ask).await.problem(), "key-invalid", "{door}");
        let ahead = SystemTime::now() + Duration::from_secs(2 * 3_600);
        assert_eq!(server.client.ask(&Ask::pay(&key(ahead), "{}")).await.problem(), "key-invalid", "{door}");
        assert_eq!(server.calls.count(), 0, "{door}: nothing ran");
        // Young enough, or of no time.
        let fresh = [
            Ask::pay(&key(before(DAY)), "{}"),
            sent(DAY).header("Repeatability-First-Sent", &date(before(DAY))),
            Ask::pay(&format!("{door}-timeless"), "{}"),
        ];
        for ask in &fresh {
            assert_eq!(server.client.ask(ask).await.status, 201, "{door}: {ask:?}");
            assert!(server.client.ask(ask).await.is_replayed(), "{door}");
        }
        assert_eq!(server.calls.count(), 3, "{door}");
    }
    // Nobody asks for it: as before.
    let server = Server::start(pool(world.database.url(), 4).await, |settings| settings).await;
    assert_eq!(server.client.ask(&Ask::pay(&key(before(30 * DAY)), "{}")).await.status, 201);
    assert_eq!(world.count(EFFECTS).await, 7);
}
