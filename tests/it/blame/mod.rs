//! Who is to blame, and who has to wait for whom: a message that fails, is held or is too early costs unrelated ones a pause at most, and
//! nobody spends an attempt on another's account.

mod budget;
mod contention;
pub(crate) mod environment;
mod hot_rows;
mod time;

use crate::support::World;

/// Publishes messages of `tenant` with the keys `name0`, `name1`, … to the consumer `payments`, all with this body.
async fn publish_many(world: &World, tenant: &str, name: &str, count: usize, body: &str) {
    let queue = world.queue("payments");
    let messages = (0..count)
        .map(|number| {
            let properties = crate::support::message(tenant, &format!("{name}{number}"));
            (queue.clone(), properties, body.as_bytes().to_vec())
        })
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
}
