//! What renewals cost PostgreSQL.

use std::time::Duration;

use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::{HandlerError, Message};
use sqlx::{Connection as _, PgConnection, Row as _};
use testbed::eventually_within;

use super::{Running, world_of};
use crate::support::message;

/// Holds its key and does nothing.
#[derive(Clone)]
struct Holds;

impl LeasedHandler for Holds {
    async fn handle(&self, lease: &Lease, _: Message<'_>) -> Result<Finish, HandlerError> {
        lease.wait_until_lost().await;
        Err(HandlerError::transient("it ends"))
    }
}

#[tokio::test]
async fn keys_that_were_claimed_together_are_not_renewed_together() {
    const LEASES: i64 = 800;
    let mut world = world_of("time = \"9s\", max_run = \"60s\", concurrency = 800", "", "").await;
    for number in 0..LEASES {
        world.publish("charges", message("acme", &format!("k{number}")), "{}").await;
    }
    let running = Running::start(&world, &Holds);
    world.wait_for("select count(*) from oncely.idempotency_keys where owner is not null", LEASES).await;
    // Two renewals of each. Renewed together, a page's rows find no room beside what they were, and each of them moves.
    let updates = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'oncely.idempotency_keys'::regclass";
    let (all, hot) = eventually_within(Duration::from_secs(60), "keys are renewed twice", || {
        let url = world.database.url().to_owned();
        async move {
            let mut sql = PgConnection::connect(&url).await?;
            let row = sqlx::query(updates).fetch_one(&mut sql).await?;
            let (all, hot): (i64, i64) = (row.get(0), row.get(1));
            anyhow::ensure!(all >= 2 * LEASES, "{all} updates");
            anyhow::Ok((all, hot))
        }
    })
    .await
    .unwrap();
    assert!(hot * 2 > all, "{hot} of {all} updates were HOT");
    running.end().await;
}
