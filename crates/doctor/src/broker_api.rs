//! Facts that RabbitMQ reports by its HTTP API alone: `mq.version`, `mq.policies`, `mq.limits`, `mq.routes`, and the arguments of foreign
//! queues.

use std::time::Duration;

use super::words::span;
use oncely_amqp::{Management, ManagementError, QueueFacts, Topology};
use oncely_config::{Config, ConsumerSettings, LeaseSettings, masked};
use oncely_process::preflight::{self, CheckFindings};

/// Minimum delivery limit: a lower one may be used up in one night, as every lost connection counts for all messages on it.
const DELIVERIES: i64 = 100;
/// Default limit of a quorum queue, from RabbitMQ 4.0 on.
const DEFAULT_DELIVERIES: i64 = 20;
/// How long an unprocessed message waits before it goes to the end of its queue.
const ASIDE: Duration = Duration::from_secs(120);

/// Skips the checks that need the API; other checks skip the parts that need it.
pub(super) fn skip(config: &Config, why: &str, found: &mut CheckFindings) {
    for check in ["mq.version", "mq.policies", "mq.limits", "mq.routes"] {
        found.skipped(check, format!("needs the HTTP API: {why}"));
    }
    if config.consumers.iter().any(|consumer| !consumer.declare && !consumer.observes()) {
        let what = format!("the arguments of queues with declare = false cannot be read: {why}");
        found.skipped("mq.queue", what);
    }
}

pub(super) async fn run_checks(config: &Config, management: &Management, found: &mut CheckFindings) {
    let mut default_limit = None;
    match management.version().await {
        Ok(version) => {
            found.add_read("mq.version", format!("RabbitMQ {version}"));
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            if major.is_some_and(|major| major < 4) {
                let what =
                    format!("RabbitMQ {version} is of a series without community support: plan an upgrade");
                found.info("mq.version", "rabbitmq.url", what);
            } else {
                default_limit = Some(DEFAULT_DELIVERIES);
            }
        }
        Err(error) => return unanswered(config, &error, found),
    }
    for consumer in &config.consumers {
        for topology in Topology::for_consumer(consumer) {
            if let Err(error) = queue(consumer, &topology, management, default_limit, found).await {
                return unanswered(config, &error, found);
            }
        }
    }
    for check in ["mq.policies", "mq.limits", "mq.routes"] {
        found.add_read(check, format!("the queues of {} consumers", config.consumers.len()));
    }
}

fn unanswered(config: &Config, error: &ManagementError, found: &mut CheckFindings) {
    if let ManagementError::Tls(_, fault) = error {
        let server = config.rabbitmq.management.as_ref().map(masked).unwrap_or_default();
        preflight::RABBITMQ.report_fault(*fault, &server, &error.to_string(), found);
    }
    skip(config, &error.to_string(), found);
}

async fn queue(
    consumer: &ConsumerSettings,
    topology: &Topology,
    management: &Management,
    default_limit: Option<i64>,
    found: &mut CheckFindings,
) -> Result<(), ManagementError> {
    let work = topology.queue();
    let dead = Topology::dead_letter_queue(work);
    let place = format!("consumers.{}.queue", consumer.name);
    let deliveries = |facts: &QueueFacts| {
        let default = default_limit.filter(|_| facts.kind == "quorum");
        facts.lowest("delivery-limit").or(default).filter(|limit| (0..DELIVERIES).contains(limit))
    };
    if let Some(facts) = management.queue(work).await? {
        if !consumer.declare && !consumer.observes() {
            foreign(work, &facts, &place, found);
        }
        policies(work, &facts, &place, found);
        if let Some(limit) = deliveries(&facts) {
            let what = format!(
                "{work} has a delivery limit of {limit}: every lost connection counts for all messages on it, and after so many they \
                 are dead letters"
            );
            found.warning("mq.limits", place.as_str(), what);
        }
        consumer_timeout(consumer, work, &facts, &place, found);
    }
    if let Some(facts) = management.queue(&dead).await? {
        policies(&dead, &facts, &place, found);
        if let Some(limit) = deliveries(&facts) {
            let what = format!(
                "{dead} has a delivery limit of {limit}: each look by hand counts, and after so many a dead letter vanishes"
            );
            found.error("mq.dlq", place.as_str(), what);
        }
    }
    routes(consumer, topology, management, found).await
}

/// Compares a queue with another owner with Oncely's own declaration.
fn foreign(queue: &str, facts: &QueueFacts, place: &str, found: &mut CheckFindings) {
    const CHECK: &str = "mq.queue";
    found.add_read(CHECK, format!("{queue}: {}, durable {}", facts.kind, facts.durable));
    let unfit = [
        (!["classic", "quorum"].contains(&facts.kind.as_str()), "is neither classic nor quorum"),
        (!facts.durable, "is not durable"),
        (facts.auto_delete, "is auto-delete"),
        (facts.exclusive, "is exclusive"),
    ];
    for (is, what) in unfit {
        if is {
            found.error(CHECK, place, format!("{queue} {what}: its messages are lost sooner or later"));
        }
    }
    let exchange = facts.setting("dead-letter-exchange").and_then(serde_json::Value::as_str);
    let ours = Topology::dead_letter_exchange(queue);
    if exchange != Some(ours.as_str()) {
        let what = match exchange {
            None => "none: what the broker gives up (delivery limit, length, TTL) is dropped".to_owned(),
            Some(other) => format!("{other:?}: what the broker gives up does not come to {ours}"),
        };
        found.error("mq.dlx", place, format!("the dead-letter exchange of {queue} is {what}"));
    }
}

/// Reports policies that lose messages. Arguments are compared by declaring the queue once more.
fn policies(queue: &str, facts: &QueueFacts, place: &str, found: &mut CheckFindings) {
    const CHECK: &str = "mq.policies";
    for setting in ["message-ttl", "expires"] {
        if let Some(value) = facts.policy(setting) {
            let what = format!("a policy gives {queue} {setting} {value}: its messages go when that is over");
            found.error(CHECK, place, what);
        }
    }
    for setting in ["max-length", "max-length-bytes"] {
        let Some(value) = facts.policy(setting) else { continue };
        let overflow = facts.setting("overflow").and_then(serde_json::Value::as_str).unwrap_or("drop-head");
        if overflow == "reject-publish" {
            let what = format!(
                "a policy bounds {queue} ({setting} {value}): publishers and copies wait when it is full"
            );
            found.warning(CHECK, place, what);
        } else {
            let what = format!(
                "a policy bounds {queue} ({setting} {value}, overflow {overflow}): it drops its oldest messages"
            );
            found.error(CHECK, place, what);
        }
    }
}

fn consumer_timeout(
    consumer: &ConsumerSettings,
    queue: &str,
    facts: &QueueFacts,
    place: &str,
    found: &mut CheckFindings,
) {
    const CHECK: &str = "mq.limits";
    let timeout = facts.lowest("consumer-timeout").and_then(|millis| u64::try_from(millis).ok());
    if let Some(timeout) = timeout.map(Duration::from_millis) {
        let longest = consumer.deadline * 2 + ASIDE;
        found.add_read(CHECK, format!("{queue}: a consumer timeout of {}", span(timeout)));
        leased(consumer, queue, timeout, place, found);
        if timeout < longest {
            let what = format!(
                "{queue} has a consumer timeout of {}, and a message may wait for {}: the broker then takes all back that is \
                 unacknowledged",
                span(timeout),
                span(longest)
            );
            found.warning(CHECK, place, what);
        }
    }
}

/// Checks the consumer timeout: a message is unacknowledged for as long as its run, and as long again if the next run waits for the first
/// one's lease. The program knows which handlers run under leases, the file only if it sets `lease`.
fn leased(
    consumer: &ConsumerSettings,
    queue: &str,
    timeout: Duration,
    place: &str,
    found: &mut CheckFindings,
) {
    let longest = consumer.lease.max_run;
    if consumer.handler.is_some() || longest * 2 <= timeout {
        return;
    }
    let what = format!(
        "{queue} has a consumer timeout of {}, and a run under a lease may take {} (lease.max_run): more than half of it. The broker then takes \
         the message back while it runs, and with it all that is unacknowledged",
        span(timeout),
        span(longest)
    );
    if consumer.lease == LeaseSettings::default() {
        found.info("mq.limits", place, format!("if the handler runs under leases: {what}"));
    } else {
        found.warning("mq.limits", place, what);
    }
}

async fn routes(
    consumer: &ConsumerSettings,
    topology: &Topology,
    management: &Management,
    found: &mut CheckFindings,
) -> Result<(), ManagementError> {
    const CHECK: &str = "mq.routes";
    let work = topology.queue();
    let dead = Topology::dead_letter_queue(work);
    let place = format!("consumers.{}.queue", consumer.name);
    let bound = management.bindings(work).await?;
    if topology.observes() && bound.iter().all(|binding| binding.source.is_empty()) {
        let what = format!("{work} is bound to nothing, so nothing is observed: run `oncely topology apply`");
        found.error(CHECK, place.as_str(), what);
    }
    let mut ways = vec![
        (Topology::dead_letter_exchange(work), dead),
        (Topology::return_exchange(work), work.to_owned()),
    ];
    let mut delays = consumer.retry.delays.clone();
    delays.dedup();
    ways.extend(
        delays.iter().map(|delay| (Topology::retry_exchange(work), Topology::retry_queue(work, *delay))),
    );
    for (exchange, queue) in ways.into_iter().filter(|_| !topology.observes()) {
        let is_bound = management.bindings(&queue).await?.iter().any(|binding| binding.source == exchange);
        found.add_read(
            CHECK,
            format!("{exchange} → {queue}: {}", if is_bound { "bound" } else { "not bound" }),
        );
        // A missing queue is reported elsewhere.
        if !is_bound && management.queue(&queue).await?.is_some() {
            let what = format!("{queue} is not bound to {exchange}: run `oncely topology apply`");
            found.error(CHECK, place.as_str(), what);
        }
    }
    for wanted in &consumer.bindings {
        let has = bound
            .iter()
            .any(|binding| binding.source == wanted.exchange && binding.routing_key == wanted.routing_key);
        if !has {
            let what = format!(
                "{work} is not bound to {} with the routing key {:?}: run `oncely topology apply`",
                wanted.exchange, wanted.routing_key
            );
            found.error(CHECK, format!("consumers.{}.bindings", consumer.name), what);
        }
    }
    Ok(())
}
