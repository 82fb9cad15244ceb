//! One key behind two layers that compare different things.

use oncely::http::{Consumer, FingerprintPolicy, IdempotencyLayer, IdempotencyLayerBuilder};

use super::{Ask, EFFECTS, Server, pool};
use crate::support::World;

#[tokio::test]
async fn an_answer_is_given_again_only_where_the_requests_are_known_to_be_the_same() {
    let mut world = World::new().await;
    let pool = pool(world.database.url(), 4).await;
    let named = |settings: IdempotencyLayerBuilder| settings.consumer(Consumer::named("shop"));
    let whole = Server::start(pool.clone(), named).await;
    let by = async |policy: FingerprintPolicy| {
        let settings = IdempotencyLayer::transactional(pool.clone())
            .consumer(Consumer::named("shop"))
            .tenant(|parts| parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned))
            .fingerprint(policy)
            .one_principal();
        Server::start(pool.clone(), |_| settings).await
    };
    let body = by(FingerprintPolicy::Body).await;
    let json = by(FingerprintPolicy::CanonicalJson).await;
    let nothing = by(FingerprintPolicy::None).await;
    let servers = [&whole, &body, &json, &nothing];
    let mut done = 0;
    for (number, first) in servers.iter().enumerate() {
        let ask = |user: &str| Ask::pay(&format!("k{number}"), "{}").header("X-User", user);
        assert_eq!(first.client.ask(&ask("ann")).await.status, 201);
        done += 1;
        for (other, server) in servers.iter().enumerate() {
            let reply = server.client.ask(&ask("bob")).await;
            if other == number && other > 0 {
                assert!(reply.is_replayed(), "{number}: principals are not compared there");
                continue;
            }
            assert_eq!((reply.status, reply.problem().as_str()), (422, "key-reused"), "{number} {other}");
            assert_eq!((reply.is_replayed(), reply.header("location")), (false, None));
        }
        assert!(first.client.ask(&ask("ann")).await.is_replayed());
    }
    assert_eq!(world.count(EFFECTS).await, done);
}
