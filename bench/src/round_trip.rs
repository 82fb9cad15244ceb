//! Measures round trips to Redis and back.

use std::time::Instant;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, env = "REDIS_URL")]
    redis: String,
    #[arg(long, default_value_t = 1_000)]
    count: usize,
}

/// Prints the median in milliseconds.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let client = redis::Client::open(arguments.redis.as_str())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut times = Vec::with_capacity(arguments.count);
    for _ in 0..arguments.count {
        let began = Instant::now();
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    crate::tell(&serde_json::json!({ "p50_ms": median.as_secs_f64() * 1e3 }))
}
