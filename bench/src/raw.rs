//! The limit: the same rows by bare inserts in batches, without a broker, a claim or a handler.

use clap::Args;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use crate::payment::{Payments, id};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database: String,
    /// Name to write into the rows
    #[arg(long)]
    queue: String,
    #[arg(long)]
    messages: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    batch: u64,
    #[arg(long)]
    lanes: u64,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut lanes = JoinSet::new();
    for lane in 0..arguments.lanes {
        let connection = PgConnection::connect(&arguments.database).await?;
        let share =
            arguments.messages / arguments.lanes + u64::from(lane < arguments.messages % arguments.lanes);
        let payments = Payments::new(arguments.seed.wrapping_add(lane.wrapping_mul(1 << 32)), 0);
        lanes.spawn(insert(connection, payments, share, arguments.batch, arguments.queue.clone()));
    }
    while let Some(done) = lanes.join_next().await {
        done??;
    }
    // Until it is killed, so that its CPU time can still be read.
    std::future::pending().await
}

async fn insert(
    mut connection: PgConnection,
    mut payments: Payments,
    messages: u64,
    batch: u64,
    queue: String,
) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(messages);
    let mut left = messages;
    while left > 0 {
        let count = usize::try_from(left.min(batch))?;
        left -= count as u64;
        let mut rows: Vec<(String, String)> = (0..count).map(|_| payments.next_identity()).collect();
        rows.sort();
        let (tenants, keys): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let mut bytes = |length: usize| {
            let mut bytes = vec![0_u8; length];
            random.fill(&mut bytes);
            bytes
        };
        let fingerprints: Vec<Vec<u8>> = (0..count).map(|_| bytes(16)).collect();
        let tags = bytes(16 * count);
        let customers: Vec<i32> = (0..count).map(|_| random.i32(0..1_000)).collect();
        let amounts: Vec<i64> = (0..count).map(|_| random.i64(1..1_000_000)).collect();
        let mut transaction = connection.begin().await?;
        // The database's clock, as a worker has it.
        let now = sqlx::types::chrono::Utc::now();
        sqlx::query(include_str!("raw.sql"))
            .bind(now)
            .bind(&tenants)
            .bind(&keys)
            .bind(&fingerprints)
            .bind(id())
            .bind(&customers)
            .bind(&amounts)
            .bind(&tags)
            .bind(&queue)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
    }
    Ok(())
}
