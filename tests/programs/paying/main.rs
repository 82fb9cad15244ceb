//! A shop behind the HTTP door, for tests that end it at each step: `LISTEN` is where, `DATABASE_URL` its database. With `LEASE_SECONDS` its
//! effects are outside, and behind leases in that database.

mod shop;
mod till;

use std::time::Duration;

use anyhow::Context as _;
use oncely::lease::PostgresStore;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let listen = std::env::var("LISTEN").context("LISTEN is not set")?;
    let pool = sqlx::PgPool::connect(&url).await?;
    let calls = shop::Calls::default();
    let app = match std::env::var("LEASE_SECONDS") {
        Ok(seconds) => {
            let settings = till::settings(PostgresStore::new(pool.clone()));
            let layer = settings.lease(Duration::from_secs(seconds.parse()?)).build()?;
            till::app(layer, calls, pool)
        }
        Err(_) => shop::app(shop::settings(pool).build()?, calls),
    };
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    eprintln!("listening: address={}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
