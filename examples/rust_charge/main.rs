//! Charges at a payment provider, by a worker of one's own whose handler runs under leases. See README.md beside it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::lease::{Call, Repeat, Step, StepError};
use oncely::{Config, HandlerError, Message, Worker, shutdown, telemetry};
use serde::Deserialize;
use serde_json::json;
use sqlx::PgPool;

#[derive(Deserialize)]
struct Order {
    cents: i64,
}

/// Stands for a payment provider: it has books of its own, and knows a key again.
struct Provider {
    books: PgPool,
    delay: Duration,
}

impl Provider {
    async fn charge(&self, order: &str, call: Call) -> Result<i64, StepError> {
        let (id, calls): (i64, i32) = sqlx::query_as(
            "insert into shop.provider_books (idempotency_key, order_id) values ($1, $2)
             on conflict (idempotency_key) do update set calls = shop.provider_books.calls + 1 returning id, calls",
        )
        .bind(call.key.to_string())
        .bind(order)
        .fetch_one(&self.books)
        .await?;
        // The answer to a first call takes a while: a good moment to be killed in.
        if calls == 1 {
            tokio::time::sleep(self.delay).await;
        }
        Ok(id)
    }
}

// ANCHOR: handler
/// The provider knows a key again for a day.
const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(24 * 3_600)));

struct Charges(Provider);

impl LeasedHandler for Charges {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        let Order { cents } = message.json()?;
        if cents <= 0 {
            return Err(HandlerError::permanent("an order must cost something"));
        }
        let charge = lease.step(&CHARGE, async |call| self.0.charge(message.key(), call).await).await?;
        let (tenant, order) = (message.tenant().to_owned(), message.key().to_owned());
        // In the commit that completes the key.
        Ok(Finish::response(json!({ "charge": charge }))?.with(move |connection| {
            let (tenant, order) = (tenant.clone(), order.clone());
            Box::pin(async move {
                sqlx::query("insert into shop.payments (tenant, order_id, charge) values ($1, $2, $3)")
                    .bind(tenant)
                    .bind(order)
                    .bind(json!({ "charge": charge }))
                    .execute(connection)
                    .await?;
                Ok(())
            })
        }))
    }
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::var_os("ONCELY_CONFIG").map(PathBuf::from).context("ONCELY_CONFIG is not set")?;
    let config = Config::load(&path)?;
    telemetry::init(&config.log);
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let delay = std::env::var("PROVIDER_DELAY").ok().map(|delay| delay.parse()).transpose()?.unwrap_or(0.0);
    let provider =
        Provider { books: PgPool::connect_lazy(&url)?, delay: Duration::try_from_secs_f64(delay)? };
    let worker = Worker::builder(config).leased_handler("charges", Charges(provider)).build()?;
    worker.run(shutdown::on_signal()?).await?;
    Ok(())
}
