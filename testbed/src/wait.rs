//! Waiting on an event with a deadline.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

/// Bounds every wait that has no bound of its own: longer than any of them takes on a busy machine with two cores.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Asks `probe` until it says `Ok`, for [`DEADLINE`] at most; then fails with its last answer.
pub async fn eventually<T, E, F>(what: &str, probe: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, E>>,
    E: Debug,
{
    eventually_within(DEADLINE, what, probe).await
}

/// Asks `probe` until it says `Ok`, for `limit` at most; then fails with its last answer.
pub async fn eventually_within<T, E, F>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, E>>,
    E: Debug,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(answer) if start.elapsed() >= limit => {
                anyhow::bail!("{what}: not within {limit:?}; last answer: {answer:?}")
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
