//! A consumer's effective settings, and which of them differ from their defaults.

use super::html::format_config_duration;
use oncely_config::{Config, ConsumerSettings, InFlightPolicy, LargeResponse};
use oncely_core::decide::{OnConflict, PrecheckMode};
use oncely_handler::JsonPolicy;

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DisplayedSetting {
    pub name: &'static str,
    pub value: String,
    /// The default; `None` if it is the value, or the setting has none.
    pub(crate) default: Option<String>,
}

/// Settings without a default: each consumer has its own.
const WITHOUT_DEFAULT: [&str; 5] = ["queues", "tenant", "key", "handler", "bindings"];

/// Returns all settings of a consumer, in the order of the reference.
pub(crate) fn list_settings(consumer: &ConsumerSettings) -> Vec<DisplayedSetting> {
    // The defaults are taken from a parsed minimal configuration, so that they can't differ from the real ones.
    let minimal = "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[[consumers]]\nname = \"x\"\nqueue = \"x\"\n\
                 tenant = \"queue\"\nkey = \"body_hash\"\n";
    let defaults = Config::parse(minimal).ok().and_then(|config| config.consumers.into_iter().next());
    let defaults = defaults.map(|consumer| setting_values(&consumer)).unwrap_or_default();
    let default_of = |name: &str| defaults.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    setting_values(consumer)
        .into_iter()
        .map(|(name, value)| {
            let default = default_of(name)
                .filter(|default| !WITHOUT_DEFAULT.contains(&name) && **default != value)
                .cloned();
            DisplayedSetting { name, value, default }
        })
        .collect()
}

/// Returns a consumer's settings with their values as text.
fn setting_values(consumer: &ConsumerSettings) -> Vec<(&'static str, String)> {
    let time = format_config_duration;
    let flag = |flag: bool| if flag { "true" } else { "false" }.to_owned();
    let bindings: Vec<String> = consumer
        .bindings
        .iter()
        .map(|binding| format!("{} ({})", binding.exchange, binding.routing_key))
        .collect();
    let arguments: Vec<&str> = consumer.queue_arguments.iter().map(|(name, _)| name.as_str()).collect();
    let delays: Vec<String> =
        consumer.retry.delays.iter().map(|delay| format_config_duration(*delay)).collect();
    vec![
        ("mode", if consumer.is_observer() { "observe" } else { "consume" }.to_owned()),
        ("queues", consumer.queues.join(", ")),
        ("queue_type", consumer.queue_type.as_str().to_owned()),
        ("declare", flag(consumer.declare)),
        ("queue_arguments", arguments.join(", ")),
        ("bindings", bindings.join(", ")),
        ("tenant", consumer.tenant.to_string()),
        ("key", consumer.key.to_string()),
        ("fingerprint", consumer.fingerprint.name()),
        ("on_conflict", conflict_policy_name(consumer.on_conflict).to_owned()),
        ("handler", describe_handler(consumer)),
        ("retention", time(consumer.retention)),
        ("redelivery_horizon", time(consumer.redelivery_horizon)),
        ("retry.delays", delays.join(", ")),
        ("retry.max_attempts", consumer.retry.max_attempts.to_string()),
        ("retry.max_crashes", consumer.retry.max_crashes.to_string()),
        ("deadline", time(consumer.deadline)),
        ("lease.time", time(consumer.lease.time)),
        ("lease.max_run", time(consumer.lease.max_run)),
        ("lease.concurrency", consumer.lease.concurrency.to_string()),
        ("lease.in_flight", in_flight_name(consumer.lease.in_flight).to_owned()),
        ("batch", consumer.batch.to_string()),
        ("lanes", consumer.lanes.to_string()),
        ("prefetch", consumer.prefetch.to_string()),
        ("lock_order", consumer.lock_order.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("fair", flag(consumer.fair)),
        ("buffer", consumer.buffer.to_string()),
        ("max_body", consumer.max_body.to_string()),
        ("precheck", precheck_name(consumer.precheck).to_owned()),
        ("replies", flag(consumer.replies)),
        ("response_limit", consumer.response_limit.to_string()),
        ("on_large_response", large_response_name(consumer.on_large_response).to_owned()),
        ("encrypt_responses", flag(consumer.encrypt_responses)),
    ]
}

/// Describes a consumer's handler: a SQL function, an HTTP endpoint, or an embedding program.
fn describe_handler(consumer: &ConsumerSettings) -> String {
    match (&consumer.handler, &consumer.http) {
        (Some(function), _) => {
            let json = match function.json {
                JsonPolicy::Optional => "optional",
                JsonPolicy::Required => "required",
                JsonPolicy::Off => "off",
            };
            format!("{}, batch = {}, json = {json}", function.name, function.batch)
        }
        (None, Some(endpoint)) => endpoint.redacted(),
        (None, None) => "in Rust, in an embedding program".to_owned(),
    }
}

fn conflict_policy_name(policy: OnConflict) -> &'static str {
    match policy {
        OnConflict::DeadLetter => "dead_letter",
        OnConflict::Duplicate => "duplicate",
    }
}

fn precheck_name(mode: Option<PrecheckMode>) -> &'static str {
    match mode {
        None => "as [mirror] says",
        Some(PrecheckMode::Auto) => "auto",
        Some(PrecheckMode::Trust) => "trust",
        Some(PrecheckMode::Verify) => "verify",
        Some(PrecheckMode::Off) => "off",
    }
}

fn in_flight_name(policy: InFlightPolicy) -> &'static str {
    match policy {
        InFlightPolicy::Retry => "retry",
        InFlightPolicy::Wait => "wait",
        InFlightPolicy::Reject => "reject",
    }
}

fn large_response_name(policy: LargeResponse) -> &'static str {
    match policy {
        LargeResponse::Refuse => "refuse",
        LargeResponse::Compress => "compress",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_its_default_says_so() {
        let text = "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[[consumers]]\nname = \"payments\"\n\
                    queue = \"q\"\ntenant = { header = \"x-tenant\" }\nkey = { property = \"message_id\" }\nbatch = 100\nreplies = true\n";
        let config = Config::parse(text).unwrap();
        let found = list_settings(&config.consumers[0]);
        let differs: Vec<_> =
            found.iter().filter(|setting| setting.default.is_some()).map(|s| s.name).collect();
        // prefetch follows batch and lanes.
        assert_eq!(differs, ["batch", "prefetch", "replies"]);
        // The heading has the name; queue is the same as queues.
        let (_, tables) = oncely_config::reference();
        let all = tables.iter().find(|table| table.name == "consumers").unwrap();
        let is_shown = |name: &str| {
            let of_table = |shown: &str| {
                shown == name || shown.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            };
            found.iter().any(|setting| of_table(setting.name))
        };
        let missing: Vec<&str> =
            all.settings.iter().map(|setting| setting.name.as_str()).filter(|name| !is_shown(name)).collect();
        assert_eq!(missing, ["name", "queue"], "settings that the console does not show");
        let batch = found.iter().find(|setting| setting.name == "batch").unwrap();
        assert_eq!((batch.value.as_str(), batch.default.as_deref()), ("100", Some("500")));
    }
}
