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
use super::super::observer_bindings::COPYING_EXCHANGE_TYPES;
use super::super::output::{List, Output, Row, Times, format_count};
use oncely_amqp::{BindingFacts, Management, ManagementError, QueueFacts, Topology, connect, query_depth};
use oncely_config::{Config, ConsumerSettings, OBSERVER_SUFFIX};
use oncely_ops::exit;

#[derive(Debug, Args)]
pub(crate) struct AdoptCheckArguments {
    /// Only the queues of this consumer
    #[arg(long, add = ArgValueCompleter::new(completions::complete_consumers))]
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
    let server = config.rabbitmq.redacted();
    let connected = connect(&config.rabbitmq, "oncely adopt check").await;
    let connection = connected.with_context(|| format!("cannot connect to {server}"))?;
    let limit = config.rabbitmq.timeout;
    let mut remarks = Vec::new();
    let is_selected = |consumer: &&ConsumerSettings| {
        let name = consumer.name.as_str();
        let base = name.strip_suffix(OBSERVER_SUFFIX).unwrap_or(name);
        arguments.consumer.as_deref().is_none_or(|selected| selected == base || selected == name)
    };
    for consumer in config.consumers.iter().filter(is_selected) {
        for topology in Topology::for_consumer(consumer) {
            // For an observer, the observed queue is the one to take over.
            let queue = topology.queue().strip_suffix(OBSERVER_SUFFIX).filter(|_| topology.is_observer());
            let queue = queue.unwrap_or(topology.queue());
            let mut queue = QueueRemarks { name: queue, remarks: &mut remarks };
            let Some(depth) = query_depth(&connection, limit, queue.name).await? else {
                queue.add(NOTE, "it is not there", "oncely topology apply declares it; nothing waits in it");
                continue;
            };
            queue.check_depth(depth.ready, depth.subscriptions);
            let facts = match Management::open(&config.rabbitmq, limit) {
                Ok(management) => query_queue_facts(&management, queue.name).await,
                Err(error) => Err(error),
            };
            match facts {
                Ok((facts, bindings)) => {
                    queue.check_kind(&facts);
                    queue.check_dead_letters(&facts);
                    queue.check_limits(&facts);
                    queue.check_bindings(&bindings);
                    queue.check_exchange_types(&query_exchange_types(&config, &bindings).await, topology.is_observer());
                }
                Err(ManagementError::NotSet) => queue.add(
                    NOTE,
                    "type, arguments and policies are not seen",
                    "set rabbitmq.management, or look: rabbitmqctl list_queues name type durable auto_delete arguments policy",
                ),
                Err(error) => {
                    queue.add(NOTE, format!("type, arguments and policies are not seen: {error}"), "")
                }
            }
            if !topology.is_observer() && consumer.declare {
                let report = topology.inspect(&connection, limit).await?;
                let is_unfit = report.unfit_queues.iter().any(|unfit| unfit == queue.name);
                queue.check_declaration(is_unfit);
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

/// Queries a queue's facts and bindings from RabbitMQ's HTTP API. Unless Oncely's dead-letter exchange is set, it queries again for up to
/// [`MAX_FACT_AGE`].
async fn query_queue_facts(
    management: &Management,
    queue: &str,
) -> Result<(QueueFacts, Vec<BindingFacts>), ManagementError> {
    let mut facts = management.query_queue(queue).await?.unwrap_or_default();
    let own_exchange = Topology::dead_letter_exchange(queue);
    let until = Instant::now() + MAX_FACT_AGE;
    while facts.setting("dead-letter-exchange").and_then(Value::as_str) != Some(&own_exchange)
        && Instant::now() < until
    {
        tokio::time::sleep(Duration::from_millis(500)).await;
        facts = management.query_queue(queue).await?.unwrap_or_default();
    }
    Ok((facts, management.query_bindings(queue).await?))
}

/// Greatest age of the facts of RabbitMQ's HTTP API about a queue and its policy (`collect_statistics_interval`, 5 s): the check waits for
/// a policy that was set just before.
const MAX_FACT_AGE: Duration = Duration::from_secs(6);

/// Queries the types of the exchanges that a queue is bound to; exchanges without an answer are left out.
async fn query_exchange_types(config: &Config, bindings: &[BindingFacts]) -> Vec<(String, String)> {
    let mut types = Vec::new();
    if let Ok(management) = Management::open(&config.rabbitmq, config.rabbitmq.timeout) {
        let sources: BTreeSet<&str> =
            bindings.iter().map(|one| one.source.as_str()).filter(|source| !source.is_empty()).collect();
        for source in sources {
            if let Ok(Some(kind)) = management.query_exchange_type(source).await {
                types.push((source.to_owned(), kind));
            }
        }
    }
    types
}

const NEW_QUEUE: &str =
    "take a new queue (another name, with bindings), and let the old consumer empty this one";

/// Collects the remarks about one queue.
struct QueueRemarks<'a> {
    name: &'a str,
    remarks: &'a mut Vec<Remark>,
}

impl QueueRemarks<'_> {
    /// Adds a remark about the queue.
    fn add(&mut self, level: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.remarks.push(Remark {
            queue: self.name.to_owned(),
            level,
            found: found.into(),
            advice: advice.into(),
        });
    }

    /// Reports the waiting messages, and the subscriptions that must end before a worker starts.
    fn check_depth(&mut self, ready: u32, subscriptions: u32) {
        let found = format!("{} ready", format_count(ready, "message"));
        self.add(FINE, found, "they stay: the worker finds them, and what comes back from the old consumer");
        if subscriptions > 0 {
            let found = format_count(subscriptions, "subscription");
            let advice = "stop that consumer, wait until its database sessions are gone, and seed its keys, \
                          before a worker starts";
            self.add(NOTE, found, advice);
        }
    }

    /// Checks the queue's type, durability and expiry.
    fn check_kind(&mut self, facts: &QueueFacts) {
        let found = format!(
            "{}, durable {}, exclusive {}, auto-delete {}",
            facts.kind, facts.durable, facts.exclusive, facts.auto_delete
        );
        let is_fit = ["classic", "quorum"].contains(&facts.kind.as_str())
            && facts.durable
            && !facts.exclusive
            && !facts.auto_delete;
        match is_fit {
            true => self.add(FINE, found, "set queue_type to it where the configuration says another"),
            false => self.add(MUST, found, NEW_QUEUE),
        }
        if let Some(value) = facts.setting("expires") {
            self.add(
                MUST,
                format!("expires {value}: it is deleted when it has no consumer for so long"),
                NEW_QUEUE,
            );
        }
    }

    /// Checks the dead-letter exchange of the queue.
    fn check_dead_letters(&mut self, facts: &QueueFacts) {
        let own_exchange = Topology::dead_letter_exchange(self.name);
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let (set, by_policy) =
            (text(facts.setting("dead-letter-exchange")), text(facts.policy_setting("dead-letter-exchange")));
        match set {
            Some(set) if set == own_exchange => {
                self.add(FINE, format!("what it drops goes to {own_exchange}"), "");
            }
            None => self.add(
                MUST,
                "what the broker drops from it is gone: no dead-letter exchange",
                format!(
                    "when the old consumer has stopped: a policy (the guide has the command), or add to its policy: \
                     \"dead-letter-exchange\": \"{own_exchange}\""
                ),
            ),
            Some(other) if by_policy.as_ref() == Some(&other) => self.add(
                MUST,
                format!("its policy sends what it drops to {other:?}"),
                format!("when the old consumer has stopped, and not before, change that policy to {own_exchange}"),
            ),
            Some(other) => self.add(
                MUST,
                format!("it was declared with the dead-letter exchange {other:?}, which no policy outweighs"),
                format!("bind {} to it, or {NEW_QUEUE}", Topology::dead_letter_queue(self.name)),
            ),
        }
    }

    /// Reports the queue's limits of length and age.
    fn check_limits(&mut self, facts: &QueueFacts) {
        for setting in ["max-length", "max-length-bytes", "message-ttl"] {
            if let Some(value) = facts.setting(setting) {
                let advice = "what is over it becomes a dead letter once the dead-letter exchange is ours; better without";
                self.add(NOTE, format!("{setting} {value}"), advice);
            }
        }
    }

    /// Reports the exchanges by which producers reach the queue.
    fn check_bindings(&mut self, bindings: &[BindingFacts]) {
        let return_exchange = Topology::return_exchange(self.name);
        let sources: Vec<String> = bindings
            .iter()
            .filter(|one| !one.source.is_empty() && one.source != return_exchange)
            .map(|one| format!("{} ({})", one.source, one.routing_key))
            .collect();
        match sources.is_empty() {
            true => self.add(
                NOTE,
                "bound to no exchange: producers reach it by its name",
                "it can be taken over as it is; nothing can observe it beside",
            ),
            false => self.add(FINE, format!("bound to {}", sources.join(", ")), "the bindings stay"),
        }
    }

    /// Reports exchanges that divide their messages: they give a part of them to each further queue that is bound.
    fn check_exchange_types(&mut self, types: &[(String, String)], observes: bool) {
        for (source, kind) in
            types.iter().filter(|(_, kind)| !COPYING_EXCHANGE_TYPES.contains(&kind.as_str()))
        {
            let level = if observes { MUST } else { NOTE };
            let advice = "it may give a message to one of its queues alone: no observer beside this queue, and a new queue gets a part of \
                          the messages instead of a copy";
            self.add(level, format!("{source} has the type {kind}"), advice);
        }
    }

    /// Reports whether Oncely would declare the queue with the same arguments.
    fn check_declaration(&mut self, is_unfit: bool) {
        match is_unfit {
            true => self.add(
                MUST,
                "not as Oncely would declare it, which RabbitMQ refuses then",
                "set declare = false; or name its further arguments in queue_arguments, if that is all",
            ),
            false => self.add(FINE, "as Oncely would declare it", ""),
        }
    }
}
