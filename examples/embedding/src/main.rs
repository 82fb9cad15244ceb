//! Three consumers in one program: a closure, a type with a state, and one that takes batches. Configured in Rust, stopped by any
//! future. `oncely migrate` and `oncely topology apply` come before, and `create table notes (tenant text collate "C", key text, via
//! text)`.

use oncely::handler::{Json, handler_fn};
use oncely::{BatchHandler, Config, Context, Handler, HandlerError, Message, Worker};
use serde::Serialize;
use serde_json::{Value, json};

const NOTE: &str = "insert into notes (tenant, key, via) values ($1, $2, $3)";

/// A handler with a state, and a typed response.
struct Notes {
    via: String,
}

#[derive(Serialize)]
struct Receipt {
    noted: String,
}

impl Handler for Notes {
    type Response = Json<Receipt>;

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<Json<Receipt>, HandlerError> {
        sqlx::query(NOTE)
            .bind(message.tenant())
            .bind(message.key())
            .bind(&self.via)
            .execute(context.connection())
            .await?;
        Ok(Json(Receipt { noted: message.key().to_owned() }))
    }
}

/// One statement for many messages.
struct Batches;

impl BatchHandler for Batches {
    type Responses = ();

    async fn handle_batch(&self, mut context: Context<'_>, messages: &[Message<'_>]) -> Result<(), HandlerError> {
        let tenants: Vec<&str> = messages.iter().map(|message| message.tenant()).collect();
        let keys: Vec<&str> = messages.iter().map(|message| message.key()).collect();
        sqlx::query("insert into notes (tenant, key, via) select *, 'batch' from unnest($1::text[], $2::text[])")
            .bind(tenants)
            .bind(keys)
            .execute(context.connection())
            .await?;
        Ok(())
    }
}

fn consumer(name: &str, prefix: &str) -> Value {
    json!({
        "name": name,
        "queue": format!("{prefix}{name}"),
        "queue_type": "classic",
        "tenant": { "header": "x-tenant-id" },
        "key": { "property": "message_id" },
        "retry": { "delays": ["100ms"], "max_attempts": 3 },
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let prefix = std::env::args().nth(1).unwrap_or_default();
    let config = Config::from_value(json!({
        "postgres": { "url": std::env::var("DATABASE_URL")? },
        "rabbitmq": { "url": std::env::var("AMQP_URL")? },
        "consumers": [consumer("closure", &prefix), consumer("state", &prefix), consumer("batch", &prefix)],
    }))?;
    let closure = handler_fn(async |mut context: Context<'_>, message: Message<'_>| {
        let note = sqlx::query(NOTE).bind(message.tenant()).bind(message.key()).bind("closure");
        note.execute(context.connection()).await?;
        Ok(())
    });
    let worker = Worker::builder(config)
        .handler("closure", closure)
        .handler("state", Notes { via: "state".to_owned() })
        .batch_handler("batch", Batches)
        .build()?;
    let stop = async {
        // An error means that nobody can stop it by a signal.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    worker.run(stop).await?;
    Ok(())
}
