//! A shop behind the HTTP door, for tests that end it at each step: `LISTEN` is where, `DATABASE_URL` its database.

mod shop;

use anyhow::Context as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let listen = std::env::var("LISTEN").context("LISTEN is not set")?;
    let pool = sqlx::PgPool::connect(&url).await?;
    let layer = shop::settings(pool).build()?;
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    eprintln!("listening: address={}", listener.local_addr()?);
    axum::serve(listener, shop::app(layer, shop::Calls::default())).await?;
    Ok(())
}
