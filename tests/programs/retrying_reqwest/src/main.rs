//! Sends one order for each key, and leaves all else to reqwest-retry: what it tells at the end is status and body, one line a key. What the
//! middleware does not see (it ends where the head of an answer has come: a torn body) is asked again here, as a program would: with the same
//! key.

use std::time::Duration;

use anyhow::Context as _;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::{
    Jitter, RetryTransientMiddleware, Retryable, RetryableStrategy, default_on_request_failure,
    policies::ExponentialBackoff,
};

/// Whatever breaks a request off may be tried again with its key, and so may an answer that says so.
struct WithKey;

impl RetryableStrategy for WithKey {
    fn handle(&self, answer: &Result<reqwest::Response, reqwest_middleware::Error>) -> Option<Retryable> {
        match answer {
            Ok(answer) if [409, 503].contains(&answer.status().as_u16()) => Some(Retryable::Transient),
            Ok(_) => None,
            Err(error) => Some(default_on_request_failure(error).unwrap_or(Retryable::Transient)),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = format!("http://127.0.0.1:{}/pay", arguments.next().context("no port")?);
    // A connection for each request.
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
    let backoff = ExponentialBackoff::builder()
        .retry_bounds(Duration::from_millis(20), Duration::from_millis(200))
        .jitter(Jitter::None)
        .build_with_max_retries(40);
    let retry = RetryTransientMiddleware::new_with_policy_and_strategy(backoff, WithKey);
    let client = ClientBuilder::new(client).with(retry).build();
    for key in arguments {
        let mut left = 40;
        loop {
            match send(&client, &url, &key).await {
                Ok(line) => break println!("{line}"),
                Err(error) if left == 0 => return Err(error),
                Err(_) => left -= 1,
            }
        }
    }
    Ok(())
}

async fn send(client: &ClientWithMiddleware, url: &str, key: &str) -> anyhow::Result<String> {
    let request = client.post(url).header("idempotency-key", key).header("x-tenant", "acme");
    let answer = request.body("{}").send().await?;
    let status = answer.status().as_u16();
    let replayed = answer.headers().get("idempotent-replayed").is_some_and(|said| said == "true");
    let body = answer.text().await?;
    Ok(format!("{status} {} {body}", if replayed { "true" } else { "none" }))
}
