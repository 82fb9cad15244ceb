//! Events: written with the effect that they tell of, published once that has committed.

mod emit;
mod operators;
mod order;
mod outages;
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
async fn bodies(broker: &Broker, queue: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(delivery) = broker.take(queue).await.expect("queue") {
        bodies.push(String::from_utf8(delivery.data).expect("text"));
    }
    bodies
}
