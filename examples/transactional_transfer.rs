//! A transfer between two accounts that happens once: `cargo run --example transactional_transfer`.
//!
//! Needs DATABASE_URL and AMQP_URL, `oncely migrate`, `oncely topology apply --config examples/oncely.toml` and
//! `create table accounts (id text primary key, balance bigint not null check (balance >= 0))`. Messages look like
//! `{"from": "alice", "to": "bob", "amount": 5}`.

use oncely::{Config, Context, Handler, HandlerError, Message, Worker, shutdown, telemetry};
use serde::Deserialize;
use serde_json::{Value, json};

// ANCHOR: handler
#[derive(Deserialize)]
struct Transfer {
    from: String,
    to: String,
    amount: i64,
}

struct Transfers;

impl Handler for Transfers {
    type Response = Value;

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<Value, HandlerError> {
        // A body that is no transfer will never be one: dead-lettered.
        let Transfer { from, to, amount } = message.json()?;
        if amount <= 0 {
            return Err(HandlerError::permanent("the amount must be positive"));
        }
        // Accounts in one order, so that two transfers can't wait for each other.
        let mut steps = [(&from, -amount), (&to, amount)];
        steps.sort();
        for (account, change) in steps {
            let done = sqlx::query("update accounts set balance = balance + $2 where id = $1")
                .bind(account)
                .bind(change)
                .execute(context.connection())
                // A balance below zero is SQLSTATE 23514: tried again, since money may come in, then dead-lettered.
                .await?;
            if done.rows_affected() == 0 {
                return Err(HandlerError::permanent(format!("there is no account {account}")));
            }
        }
        // Stored with the key: what a duplicate gets.
        Ok(json!({ "transferred": amount }))
    }
}
// ANCHOR_END: handler

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::load("examples/oncely.toml".as_ref())?;
    telemetry::init(&config.log);
    Worker::builder(config).handler("transfers", Transfers).build()?.run(shutdown::on_signal()?).await?;
    Ok(())
}
