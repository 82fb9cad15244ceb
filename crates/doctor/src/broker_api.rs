//! Facts that RabbitMQ reports by its HTTP API alone: `mq.version`, `mq.policies`, `mq.limits`, `mq.routes`, and the arguments of foreign
//! queues.

use std::time::Duration;

use super::words::format_duration;
use oncely_amqp::{Management, ManagementError, QueueFacts, Topology};
use oncely_config::{Config, ConsumerSettings, LeaseSettings, mask_url};
use oncely_process::preflight::{self, CheckFindings};

/// Minimum delivery limit: a lower one may be used up in one night, as every lost connection counts for all messages on it.
const MIN_DELIVERY_LIMIT: i64 = 100;
/// Default delivery limit of a quorum queue, from RabbitMQ 4.0 on.
const DEFAULT_DELIVERY_LIMIT: i64 = 20;
/// Maximum time that an unprocessed message waits before it goes to the end of its queue.
const ASIDE_TIME: Duration = Duration::from_secs(120);

/// Skips the checks that need the API; other checks skip the parts that need it.
pub(super) fn skip(config: &Config, reason: &str, findings: &mut CheckFindings) {
    for check in ["mq.version", "mq.policies", "mq.limits", "mq.routes"] {
        findings.add_skipped(check, format!("needs the HTTP API: {reason}"));
    }
    if config.consumers.iter().any(|consumer| !consumer.declare && !consumer.is_observer()) {
        let text = format!("the arguments of queues with declare = false cannot be read: {reason}");
        findings.add_skipped("mq.queue", text);
    }
}

/// Runs the checks that need the HTTP API. After an error of the API the remaining ones are skipped.
pub(super) async fn run_checks(config: &Config, management: &Management, findings: &mut CheckFindings) {
    let mut default_limit = None;
    match management.query_version().await {
        Ok(version) => {
            findings.add_read("mq.version", format!("RabbitMQ {version}"));
            let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
            if major.is_some_and(|major| major < 4) {
                let text =
                    format!("RabbitMQ {version} is of a series without community support: plan an upgrade");
                findings.add_info("mq.version", "rabbitmq.url", text);
            } else {
                default_limit = Some(DEFAULT_DELIVERY_LIMIT);
            }
        }
        Err(error) => return report_api_error(config, &error, findings),
    }
    for consumer in &config.consumers {
        for topology in Topology::for_consumer(consumer) {
            if let Err(error) = check_queue(consumer, &topology, management, default_limit, findings).await {
                return report_api_error(config, &error, findings);
            }
        }
    }
    for check in ["mq.policies", "mq.limits", "mq.routes"] {
        findings.add_read(check, format!("the queues of {} consumers", config.consumers.len()));
    }
}

/// Reports a TLS fault of the API, and skips its checks with the error as the reason.
fn report_api_error(config: &Config, error: &ManagementError, findings: &mut CheckFindings) {
    if let ManagementError::Tls(_, fault) = error {
        let server = config.rabbitmq.management.as_ref().map(mask_url).unwrap_or_default();
        preflight::RABBITMQ.report_fault(*fault, &server, &error.to_string(), findings);
    }
    skip(config, &error.to_string(), findings);
}

/// Checks the policies, limits and routes of a queue and of its dead-letter queue, which only the HTTP API reports.
async fn check_queue(
    consumer: &ConsumerSettings,
    topology: &Topology,
    management: &Management,
    default_limit: Option<i64>,
    findings: &mut CheckFindings,
) -> Result<(), ManagementError> {
    let work = topology.queue();
    let dead = Topology::dead_letter_queue(work);
    let subject = format!("consumers.{}.queue", consumer.name);
    let low_delivery_limit = |facts: &QueueFacts| {
        let default = default_limit.filter(|_| facts.kind == "quorum");
        facts
            .lowest_number("delivery-limit")
            .or(default)
            .filter(|limit| (0..MIN_DELIVERY_LIMIT).contains(limit))
    };
    if let Some(facts) = management.query_queue(work).await? {
        if !consumer.declare && !consumer.is_observer() {
            check_foreign_queue(work, &facts, &subject, findings);
        }
        check_policies(work, &facts, &subject, findings);
        if let Some(limit) = low_delivery_limit(&facts) {
            let text = format!(
                "{work} has a delivery limit of {limit}: every lost connection counts for all messages on it, and after so many they \
                 are dead letters"
            );
            findings.add_warning("mq.limits", subject.as_str(), text);
        }
        check_consumer_timeout(consumer, work, &facts, &subject, findings);
    }
    if let Some(facts) = management.query_queue(&dead).await? {
        check_policies(&dead, &facts, &subject, findings);
        if let Some(limit) = low_delivery_limit(&facts) {
            let text = format!(
                "{dead} has a delivery limit of {limit}: each look by hand counts, and after so many a dead letter vanishes"
            );
            findings.add_error("mq.dlq", subject.as_str(), text);
        }
    }
    check_routes(consumer, topology, management, findings).await
}

/// Checks a queue that another program declares: its kind, its durability, and its dead-letter exchange.
fn check_foreign_queue(queue: &str, facts: &QueueFacts, subject: &str, findings: &mut CheckFindings) {
    const CHECK: &str = "mq.queue";
    findings.add_read(CHECK, format!("{queue}: {}, durable {}", facts.kind, facts.durable));
    let unfit = [
        (!["classic", "quorum"].contains(&facts.kind.as_str()), "is neither classic nor quorum"),
        (!facts.durable, "is not durable"),
        (facts.auto_delete, "is auto-delete"),
        (facts.exclusive, "is exclusive"),
    ];
    for (is_unfit, text) in unfit {
        if is_unfit {
            findings.add_error(
                CHECK,
                subject,
                format!("{queue} {text}: its messages are lost sooner or later"),
            );
        }
    }
    let exchange = facts.setting("dead-letter-exchange").and_then(serde_json::Value::as_str);
    let ours = Topology::dead_letter_exchange(queue);
    if exchange != Some(ours.as_str()) {
        let text = match exchange {
            None => "none: what the broker gives up (delivery limit, length, TTL) is dropped".to_owned(),
            Some(other) => format!("{other:?}: what the broker gives up does not come to {ours}"),
        };
        findings.add_error("mq.dlx", subject, format!("the dead-letter exchange of {queue} is {text}"));
    }
}

/// Checks that no policy of a queue loses messages. Arguments are compared by declaring the queue once more.
fn check_policies(queue: &str, facts: &QueueFacts, subject: &str, findings: &mut CheckFindings) {
    const CHECK: &str = "mq.policies";
    for setting in ["message-ttl", "expires"] {
        if let Some(value) = facts.policy_setting(setting) {
            let text = format!("a policy gives {queue} {setting} {value}: its messages go when that is over");
            findings.add_error(CHECK, subject, text);
        }
    }
    for setting in ["max-length", "max-length-bytes"] {
        let Some(value) = facts.policy_setting(setting) else { continue };
        let overflow = facts.setting("overflow").and_then(serde_json::Value::as_str).unwrap_or("drop-head");
        if overflow == "reject-publish" {
            let text = format!(
                "a policy bounds {queue} ({setting} {value}): publishers and copies wait when it is full"
            );
            findings.add_warning(CHECK, subject, text);
        } else {
            let text = format!(
                "a policy bounds {queue} ({setting} {value}, overflow {overflow}): it drops its oldest messages"
            );
            findings.add_error(CHECK, subject, text);
        }
    }
}

/// Checks that no message may wait longer than the consumer timeout of its queue.
fn check_consumer_timeout(
    consumer: &ConsumerSettings,
    queue: &str,
    facts: &QueueFacts,
    subject: &str,
    findings: &mut CheckFindings,
) {
    const CHECK: &str = "mq.limits";
    let timeout = facts.lowest_number("consumer-timeout").and_then(|millis| u64::try_from(millis).ok());
    if let Some(timeout) = timeout.map(Duration::from_millis) {
        let max_wait = consumer.deadline * 2 + ASIDE_TIME;
        findings.add_read(CHECK, format!("{queue}: a consumer timeout of {}", format_duration(timeout)));
        check_leased_timeout(consumer, queue, timeout, subject, findings);
        if timeout < max_wait {
            let text = format!(
                "{queue} has a consumer timeout of {}, and a message may wait for {}: the broker then takes all back that is \
                 unacknowledged",
                format_duration(timeout),
                format_duration(max_wait)
            );
            findings.add_warning(CHECK, subject, text);
        }
    }
}

/// Checks that a run under a lease fits twice into the consumer timeout, with some waiting: a message is unacknowledged for as long as its
/// run, and as long again if it waits for a place, or for another run's lease. The program knows which handlers run under leases, the file
/// only if it sets `lease`.
fn check_leased_timeout(
    consumer: &ConsumerSettings,
    queue: &str,
    timeout: Duration,
    subject: &str,
    findings: &mut CheckFindings,
) {
    let max_run = consumer.lease.max_run;
    if consumer.handler.is_some() || max_run * 2 + ASIDE_TIME <= timeout {
        return;
    }
    let text = format!(
        "{queue} has a consumer timeout of {}, and a run under a lease may take {} (lease.max_run), twice that and two minutes do not fit \
         into it. The broker then takes the message back while it runs, and with it all that is unacknowledged",
        format_duration(timeout),
        format_duration(max_run)
    );
    if consumer.lease == LeaseSettings::default() {
        findings.add_info("mq.limits", subject, format!("if the handler runs under leases: {text}"));
    } else {
        findings.add_warning("mq.limits", subject, text);
    }
}

/// Checks that a queue, its dead-letter queue and its retry queues are bound to their exchanges.
async fn check_routes(
    consumer: &ConsumerSettings,
    topology: &Topology,
    management: &Management,
    findings: &mut CheckFindings,
) -> Result<(), ManagementError> {
    const CHECK: &str = "mq.routes";
    let work = topology.queue();
    let dead = Topology::dead_letter_queue(work);
    let subject = format!("consumers.{}.queue", consumer.name);
    let bindings = management.query_bindings(work).await?;
    if topology.is_observer() && bindings.iter().all(|binding| binding.source.is_empty()) {
        let text = format!("{work} is bound to nothing, so nothing is observed: run `oncely topology apply`");
        findings.add_error(CHECK, subject.as_str(), text);
    }
    let mut routes = vec![
        (Topology::dead_letter_exchange(work), dead),
        (Topology::return_exchange(work), work.to_owned()),
    ];
    let mut delays = consumer.retry.delays.clone();
    delays.dedup();
    routes.extend(
        delays.iter().map(|delay| (Topology::retry_exchange(work), Topology::retry_queue(work, *delay))),
    );
    for (exchange, queue) in routes.into_iter().filter(|_| !topology.is_observer()) {
        let is_bound =
            management.query_bindings(&queue).await?.iter().any(|binding| binding.source == exchange);
        findings.add_read(
            CHECK,
            format!("{exchange} → {queue}: {}", if is_bound { "bound" } else { "not bound" }),
        );
        // A missing queue is reported elsewhere.
        if !is_bound && management.query_queue(&queue).await?.is_some() {
            let text = format!("{queue} is not bound to {exchange}: run `oncely topology apply`");
            findings.add_error(CHECK, subject.as_str(), text);
        }
    }
    for expected in &consumer.bindings {
        let has = bindings.iter().any(|binding| {
            binding.source == expected.exchange && binding.routing_key == expected.routing_key
        });
        if !has {
            let text = format!(
                "{work} is not bound to {} with the routing key {:?}: run `oncely topology apply`",
                expected.exchange, expected.routing_key
            );
            findings.add_error(CHECK, format!("consumers.{}.bindings", consumer.name), text);
        }
    }
    Ok(())
}
