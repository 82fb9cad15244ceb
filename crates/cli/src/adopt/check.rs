//! `oncely adopt check`: reports whether an existing queue can be taken over, and the steps before it. Changes nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use serde_json::Value;

use super::super::completions;
use super::super::observer_bindings::COPYING;
use super::super::output::{List, Output, Row, Times, counted};
use oncely_amqp::{BindingFacts, Management, ManagementError, QueueFacts, Topology, connect, depth};
use oncely_config::{Config, ConsumerSettings, OBSERVER};
use oncely_ops::exit;

#[derive(Debug, Args)]
pub(crate) struct AdoptCheckArguments {
    /// Only the queues of this consumer
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// A remark about a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Remark {
    queue: String,
    /// `fine`; `note`: for information; `must`: required before a worker starts.
    level: &'static str,
    found: String,
    advice: String,
}

impl Row for Remark {
    const SCHEMA: &'static str = "oncely.adopt.remark/1";
    const HEADS: &'static [&'static str] = &["QUEUE", "LEVEL", "FOUND", "DO"];

    fn cells(&self, _: Times) -> Vec<String> {
        vec![self.queue.clone(), self.level.to_owned(), self.found.clone(), self.advice.clone()]
    }
}

const FINE: &str = "fine";
const NOTE: &str = "note";
const MUST: &str = "must";

pub(super) async fn run(file: &Path, arguments: AdoptCheckArguments, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let server = config.rabbitmq.shown();
    let connected = connect(&config.rabbitmq, "oncely adopt check").await;
    let connection = connected.with_context(|| format!("cannot connect to {server}"))?;
    let limit = config.rabbitmq.timeout;
    let mut remarks = Vec::new();
    let wanted = |consumer: &&ConsumerSettings| {
        let name = consumer.name.as_str();
        let base = name.strip_suffix(OBSERVER).unwrap_or(name);
        arguments.consumer.as_deref().is_none_or(|named| named == base || named == name)
    };
    for consumer in config.consumers.iter().filter(wanted) {
        for topology in Topology::for_consumer(consumer) {
            // For an observer, the observed queue is the one to take over.
            let queue = topology.queue().strip_suffix(OBSERVER).filter(|_| topology.observes());
            let queue = queue.unwrap_or(topology.queue());
            let mut queue = QueueRemarks { name: queue, remarks: &mut remarks };
            let Some(depth) = depth(&connection, limit, queue.name).await? else {
                queue.say(NOTE, "it is not there", "oncely topology apply declares it; nothing waits in it");
                continue;
            };
            queue.depth(depth.ready, depth.subscriptions);
            let facts = match Management::new(&config.rabbitmq, limit) {
                Ok(management) => facts(&management, queue.name).await,
                Err(error) => Err(error),
            };
            match facts {
                Ok((facts, bindings)) => {
                    queue.kind(&facts);
                    queue.dead_letters(&facts);
                    queue.bounds(&facts);
                    queue.bindings(&bindings);
                    queue.sources(&management_types(&config, &bindings).await, topology.observes());
                }
                Err(ManagementError::NotSet) => queue.say(
                    NOTE,
                    "type, arguments and policies are not seen",
                    "set rabbitmq.management, or look: rabbitmqctl list_queues name type durable auto_delete arguments policy",
                ),
                Err(error) => {
                    queue.say(NOTE, format!("type, arguments and policies are not seen: {error}"), "")
                }
            }
            if !topology.observes() && consumer.declare {
                let report = topology.inspect(&connection, limit).await?;
                let is_unfit = report.unfit_queues.iter().any(|unfit| unfit == queue.name);
                queue.declared(is_unfit);
            }
        }
    }
    let list =
        List { schema: "oncely.adopt.check/1", field: "remarks", rows: &remarks, none: "no such consumer" };
    let code = list.print(arguments.output, times)?;
    Ok(match remarks.iter().any(|remark| remark.level == MUST) {
        true => ExitCode::from(exit::NO),
        false => code,
    })
}

/// Returns a queue's facts from RabbitMQ's HTTP API.
async fn facts(
    management: &Management,
    queue: &str,
) -> Result<(QueueFacts, Vec<BindingFacts>), ManagementError> {
    let mut facts = management.queue(queue).await?.unwrap_or_default();
    let ours = Topology::dead_letter_exchange(queue);
    let until = Instant::now() + OLDEST_WORD;
    while facts.setting("dead-letter-exchange").and_then(Value::as_str) != Some(&ours)
        && Instant::now() < until
    {
        tokio::time::sleep(Duration::from_millis(500)).await;
        facts = management.queue(queue).await?.unwrap_or_default();
    }
    Ok((facts, management.bindings(queue).await?))
}

/// Greatest age of the facts of RabbitMQ's HTTP API about a queue and its policy (`collect_statistics_interval`, 5 s): the check waits for
/// a policy that was set just before.
const OLDEST_WORD: Duration = Duration::from_secs(6);

/// Returns the exchanges that a queue is bound to, with their types as far as the HTTP API reports them.
async fn management_types(config: &Config, bindings: &[BindingFacts]) -> Vec<(String, String)> {
    let mut types = Vec::new();
    if let Ok(management) = Management::new(&config.rabbitmq, config.rabbitmq.timeout) {
        let sources: BTreeSet<&str> =
            bindings.iter().map(|one| one.source.as_str()).filter(|source| !source.is_empty()).collect();
        for source in sources {
            if let Ok(Some(kind)) = management.exchange_type(source).await {
                types.push((source.to_owned(), kind));
            }
        }
    }
    types
}

const NEW_QUEUE: &str =
    "take a new queue (another name, with bindings), and let the old consumer empty this one";

struct QueueRemarks<'a> {
    name: &'a str,
    remarks: &'a mut Vec<Remark>,
}

impl QueueRemarks<'_> {
    fn say(&mut self, level: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.remarks.push(Remark {
            queue: self.name.to_owned(),
            level,
            found: found.into(),
            advice: advice.into(),
        });
    }

    fn depth(&mut self, ready: u32, subscriptions: u32) {
        let found = format!("{} ready", counted(ready, "message"));
        self.say(FINE, found, "they stay: the worker finds them, and what comes back from the old consumer");
        if subscriptions > 0 {
            let found = counted(subscriptions, "subscription");
            let advice = "stop that consumer, wait until its database sessions are gone, and seed its keys, \
                          before a worker starts";
            self.say(NOTE, found, advice);
        }
    }

    fn kind(&mut self, facts: &QueueFacts) {
        let found = format!(
            "{}, durable {}, exclusive {}, auto-delete {}",
            facts.kind, facts.durable, facts.exclusive, facts.auto_delete
        );
        let is_fit = ["classic", "quorum"].contains(&facts.kind.as_str())
            && facts.durable
            && !facts.exclusive
            && !facts.auto_delete;
        match is_fit {
            true => self.say(FINE, found, "set queue_type to it where the configuration says another"),
            false => self.say(MUST, found, NEW_QUEUE),
        }
        if let Some(value) = facts.setting("expires") {
            self.say(
                MUST,
                format!("expires {value}: it is deleted when it has no consumer for so long"),
                NEW_QUEUE,
            );
        }
    }

    fn dead_letters(&mut self, facts: &QueueFacts) {
        let ours = Topology::dead_letter_exchange(self.name);
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let (set, by_policy) =
            (text(facts.setting("dead-letter-exchange")), text(facts.policy("dead-letter-exchange")));
        match set {
            Some(set) if set == ours => {
                self.say(FINE, format!("what it drops goes to {ours}"), "");
            }
            None => self.say(
                MUST,
                "what the broker drops from it is gone: no dead-letter exchange",
                format!(
                    "when the old consumer has stopped: a policy (the guide has the command), or add to its policy: \
                     \"dead-letter-exchange\": \"{ours}\""
                ),
            ),
            Some(other) if by_policy.as_ref() == Some(&other) => self.say(
                MUST,
                format!("its policy sends what it drops to {other:?}"),
                format!("when the old consumer has stopped, and not before, change that policy to {ours}"),
            ),
            Some(other) => self.say(
                MUST,
                format!("it was declared with the dead-letter exchange {other:?}, which no policy outweighs"),
                format!("bind {} to it, or {NEW_QUEUE}", Topology::dead_letter_queue(self.name)),
            ),
        }
    }

    fn bounds(&mut self, facts: &QueueFacts) {
        for setting in ["max-length", "max-length-bytes", "message-ttl"] {
            if let Some(value) = facts.setting(setting) {
                let advice = "what is over it becomes a dead letter once the dead-letter exchange is ours; better without";
                self.say(NOTE, format!("{setting} {value}"), advice);
            }
        }
    }

    fn bindings(&mut self, bindings: &[BindingFacts]) {
        let back = Topology::return_exchange(self.name);
        let from: Vec<String> = bindings
            .iter()
            .filter(|one| !one.source.is_empty() && one.source != back)
            .map(|one| format!("{} ({})", one.source, one.routing_key))
            .collect();
        match from.is_empty() {
            true => self.say(
                NOTE,
                "bound to no exchange: producers reach it by its name",
                "it can be taken over as it is; nothing can observe it beside",
            ),
            false => self.say(FINE, format!("bound to {}", from.join(", ")), "the bindings stay"),
        }
    }

    /// Reports exchanges that divide their messages: they give a part of them to each further queue that is bound.
    fn sources(&mut self, types: &[(String, String)], observes: bool) {
        for (source, kind) in types.iter().filter(|(_, kind)| !COPYING.contains(&kind.as_str())) {
            let level = if observes { MUST } else { NOTE };
            let advice = "it may give a message to one of its queues alone: no observer beside this queue, and a new queue gets a part of \
                          the messages instead of a copy";
            self.say(level, format!("{source} has the type {kind}"), advice);
        }
    }

    fn declared(&mut self, is_unfit: bool) {
        match is_unfit {
            true => self.say(
                MUST,
                "not as Oncely would declare it, which RabbitMQ refuses then",
                "set declare = false; or name its further arguments in queue_arguments, if that is all",
            ),
            false => self.say(FINE, "as Oncely would declare it", ""),
        }
    }
}
