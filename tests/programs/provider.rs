//! A provider (`testbed::Provider`) as runs under leases call it, and what they are told to call.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use oncely::HandlerError;
use oncely::lease::{Call, Repeat, Step, StepError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// As the provider says it (`testbed::checker::Side::WINDOW`).
const WINDOW: Duration = Duration::from_secs(10);

/// One for each of its sides.
const STEPS: [Step; 5] = [
    Step::new("pay", Repeat::Always),
    Step::new("charge", Repeat::Within(WINDOW)),
    Step::new("mail", Repeat::Always),
    Step::new("once", Repeat::Never),
    Step::new("asked", Repeat::Ask),
];

/// What to do (`testbed::checker::Order`).
#[derive(Deserialize)]
pub(crate) struct Order {
    steps: Vec<String>,
    tears: u32,
    refusals: u32,
    delay: u64,
}

/// Where it is.
#[derive(Clone, Copy)]
pub(crate) struct Provider(pub(crate) SocketAddr);

impl Order {
    /// The steps, in their order.
    pub(crate) fn steps(&self) -> Result<Vec<&'static Step>, HandlerError> {
        let of = |name: &String| STEPS.iter().find(|known| known.name() == name);
        let steps =
            self.steps.iter().map(|name| of(name).ok_or_else(|| HandlerError::permanent("no such step")));
        steps.collect()
    }

    /// Work of its own, where nobody is called.
    pub(crate) async fn work(&self) {
        if self.steps.is_empty() {
            tokio::time::sleep(Duration::from_millis(self.delay)).await;
        }
    }
}

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

    /// A call of a side.
    pub(crate) async fn call(
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
    pub(crate) async fn knows(self, call: Call) -> Result<Option<String>, HandlerError> {
        match self.ask(&json!({ "ask": call.key })).await {
            Ok(Some(answer)) => Ok((answer["known"] == true).then(|| call.key.to_string())),
            Ok(None) => Err(HandlerError::transient("no answer")),
            Err(StepError::Refused(error)) => Err(error),
            Err(_) => Err(HandlerError::transient("the provider could not be asked")),
        }
    }
}
