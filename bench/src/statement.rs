//! Measures statements with large parameters.

use std::time::Instant;

use clap::Args;
use sqlx::{Connection as _, PgConnection, Row as _};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "DATABASE_URL")]
    database_url: String,
    /// Bytes of the parameter, one measurement for each
    #[arg(long, value_delimiter = ',', required = true)]
    bytes: Vec<usize>,
    #[arg(long, default_value_t = 200)]
    count: usize,
}

/// Prints for each size the median and the 99th percentile in milliseconds. Each statement is the second of its transaction, as a worker's
/// are: a packet that waits for the acknowledgement of the one before it would show.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&arguments.database_url).await?;
    let mut measured = Vec::new();
    for &bytes in &arguments.bytes {
        let parameter = vec![b'x'; bytes];
        let mut times = Vec::with_capacity(arguments.count);
        for _ in 0..arguments.count {
            let mut transaction = connection.begin().await?;
            let began = Instant::now();
            let length: i32 = sqlx::query("select octet_length($1::bytea)")
                .bind(&parameter)
                .fetch_one(&mut *transaction)
                .await?
                .get(0);
            times.push(began.elapsed().as_secs_f64() * 1e3);
            anyhow::ensure!(usize::try_from(length)? == bytes, "{length} bytes arrived of {bytes}");
            transaction.commit().await?;
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
        measured.push(serde_json::json!({ "bytes": bytes, "p50_ms": at(0.5), "p99_ms": at(0.99) }));
    }
    crate::tell(&serde_json::Value::Array(measured))
}
