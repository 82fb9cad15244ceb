//! A worker whose handler calls a provider (`testbed::Provider`) under leases: for the fault runs, and for tests that end it at each step.

mod provider;

use anyhow::Context as _;
use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::lease::Call;
use oncely::{Config, HandlerError, Message, Worker, shutdown, telemetry};
use provider::{Order, Provider};
use serde_json::json;

impl LeasedHandler for Provider {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        let order: Order = message.json()?;
        let whose = (message.tenant().to_owned(), message.key().to_owned());
        let provider = *self;
        let (tenant, key, token) = (whose.0.clone(), whose.1.clone(), lease.token());
        lease
            .transaction("reserve", move |connection| {
                Box::pin(async move {
                    sqlx::query("insert into judge.reserved (tenant, key, token) values ($1, $2, $3)")
                        .bind(tenant)
                        .bind(key)
                        .bind(token)
                        .execute(connection)
                        .await?;
                    Ok(token)
                })
            })
            .await?;
        for step in order.steps()? {
            let call = async |call: Call| provider.call(step.name(), &order, &whose, call).await;
            if step.name() == "asked" {
                lease.step_or_ask(step, async |call| provider.knows(call).await, call).await?;
            } else {
                lease.step(step, call).await?;
            }
        }
        order.work().await;
        let (tenant, key) = whose.clone();
        Ok(Finish::response(json!({ "token": token }))?.with(move |connection| {
            let (tenant, key) = (tenant.clone(), key.clone());
            Box::pin(async move {
                sqlx::query("insert into judge.finished (tenant, key, token) values ($1, $2, $3)")
                    .bind(tenant)
                    .bind(key)
                    .bind(token)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        }))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    let provider = std::env::var("PROVIDER").context("PROVIDER is not set")?;
    let config = Config::load(std::env::var("ONCELY_CONFIG").context("ONCELY_CONFIG is not set")?.as_ref())?;
    telemetry::init(&config.log);
    let worker = Worker::builder(config).leased_handler("charges", Provider(provider.parse()?));
    let stopped = worker.build()?.run(shutdown::on_signal()?).await?;
    Ok(stopped.code().into())
}
