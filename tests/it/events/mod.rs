//! Events: written with the effect that they tell of, published once that has committed.

mod emit;
mod operators;
mod order;
mod outages;
mod prompt;
mod publish;
mod refusals;
mod replies;

use sqlx::AssertSqlSafe;
use testbed::Broker;

use crate::support::World;

/// A world with a relay's configuration: quick retries, three attempts.
async fn world_with(settings: &str) -> World {
    let mut world = World::new().await;
    world.configure("[relay]\npoll = \"20ms\"");
    world.configure(&format!("[events]\nretry = {{ delays = [\"100ms\"], max_attempts = 3 }}\n{settings}"));
    world
}

/// Runs statements one by one.
async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut world.sql).await.expect(statements);
}

/// All messages of a queue, as texts.
pub(crate) async fn bodies(broker: &Broker, queue: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(delivery) = broker.take(queue).await.expect("queue") {
        bodies.push(String::from_utf8(delivery.data).expect("text"));
    }
    bodies
}

/// Emits good events until so many others are parked.
async fn parked_beside(world: &mut World, good: &str, parked: i64) {
    let query = "select count(*) from oncely.events where state = 'parked'";
    wait_beside_good_events(world, good, query, parked).await;
}

/// Emits good events until a query gives a number.
pub(crate) async fn wait_beside_good_events(world: &mut World, good: &str, query: &str, wanted: i64) {
    for _ in 0..300 {
        if world.count(query).await == wanted {
            return;
        }
        run(world, &format!("select oncely.emit('', '{good}', 'witness')")).await;
        world
            .wait_for(
                &format!(
                    "select count(*) from oncely.events where routing_key = '{good}' and payload = 'witness'"
                ),
                0,
            )
            .await;
    }
    panic!("{:?}", world.text("select string_agg(e::text, '; ') from oncely.events as e").await);
}
