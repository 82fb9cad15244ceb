//! A worker whose handler calls a provider (`testbed::Provider`) under leases: for the fault runs, and for tests that end it at each step.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use oncely::lease::{Call, Finish, Lease, LeasedHandler, Repeat, Step, StepError};
use oncely::{Config, HandlerError, Message, Worker, shutdown, telemetry};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// As the provider says it (`testbed::checker::Side::WINDOW`).
const WINDOW: Duration = Duration::from_secs(10);

const STEPS: [Step; 5] = [
    Step::new("pay", Repeat::Always),
    Step::new("charge", Repeat::Within(WINDOW)),
    Step::new("mail", Repeat::Always),
    Step::new("once", Repeat::Never),
    Step::new("asked", Repeat::Ask),
];

/// What to do (`testbed::checker::Order`).
#[derive(Deserialize)]
struct Order {
    steps: Vec<String>,
    tears: u32,
    refusals: u32,
    delay: u64,
}

#[derive(Clone, Copy)]
struct Provider(SocketAddr);

impl Provider {
    /// A line there, a line back; `None`: the other side has ended the connection without a word.
    async fn ask(self, question: &Value) -> Result<Option<Value>, StepError> {
        let stream = TcpStream::connect(self.0).await;
        // Nothing was sent.
        let stream =
            stream.map_err(|error| StepError::Refused(HandlerError::transient(error.to_string())))?;
        let mut stream = BufReader::new(stream);
        stream.write_all(format!("{question}\n").as_bytes()).await?;
        let mut line = String::new();
        let read = stream.read_line(&mut line);
        tokio::time::timeout(Duration::from_secs(20), read).await??;
        Ok(if line.is_empty() { None } else { Some(serde_json::from_str(&line)?) })
    }

    async fn call(
        self,
        step: &str,
        order: &Order,
        whose: &(String, String),
        call: Call,
    ) -> Result<String, StepError> {
        let question = json!({
            "tenant": whose.0, "key": whose.1, "step": step, "call_key": call.key, "token": call.token,
            "tears": order.tears, "refusals": order.refusals, "delay": order.delay,
        });
        let answer = self.ask(&question).await?.context("no answer")?;
        match answer["done"].as_str() {
            Some(done) => Ok(done.to_owned()),
            None => Err(StepError::Refused(HandlerError::transient("refused"))),
        }
    }

    /// Has a call by this key happened?
    async fn knows(self, call: Call) -> Result<Option<String>, HandlerError> {
        match self.ask(&json!({ "ask": call.key })).await {
            Ok(Some(answer)) => Ok((answer["known"] == true).then(|| call.key.to_string())),
            Ok(None) => Err(HandlerError::transient("no answer")),
            Err(StepError::Refused(error)) => Err(error),
            Err(_) => Err(HandlerError::transient("the provider could not be asked")),
        }
    }
}

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
        for step in &order.steps {
            let step = STEPS.iter().find(|known| known.name() == step);
            let step = step.ok_or_else(|| HandlerError::permanent("no such step"))?;
            let call = async |call: Call| provider.call(step.name(), &order, &whose, call).await;
            if step.name() == "asked" {
                lease.step_or_ask(step, async |call| provider.knows(call).await, call).await?;
            } else {
                lease.step(step, call).await?;
            }
        }
        if order.steps.is_empty() {
            // Work of its own.
            tokio::time::sleep(Duration::from_millis(order.delay)).await;
        }
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
    telemetry::start(&config.log);
    let worker = Worker::builder(config).leased_handler("charges", Provider(provider.parse()?));
    let stopped = worker.build()?.run(shutdown::on_signal()?).await?;
    Ok(stopped.code().into())
}
