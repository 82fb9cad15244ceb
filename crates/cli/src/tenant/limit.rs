//! `oncely tenant usage` and `oncely tenant limit TENANT`: usage and limits of a tenant's stored dead letters and waiting events, and the
//! retention of its keys.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde_json::json;

use super::super::operator;
use super::super::output::{self, List, Output, Row, Times, escape, format_bytes};
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres::{self as pg, EffectiveRetention, TenantLimits, TenantRetention, TenantUsage};
use oncely_process::preflight::open_session;

const MAX_RETENTION: Duration = Duration::from_secs(3_650 * 86_400);
const USAGE_SCHEMA: &str = "oncely.tenant_usage/1";
const LIMIT_SCHEMA: &str = "oncely.tenant_limit/1";

#[derive(Debug, Args)]
pub(crate) struct UsageArguments {
    /// Maximum number of tenants in the list
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["letters", "bytes", "events", "event_bytes", "retention", "default"]))]
pub(crate) struct LimitArguments {
    /// Tenant; '' for messages without a valid one
    pub(super) tenant: String,
    /// Maximum number of dead letters with a stored message
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    letters: Option<i64>,
    /// Maximum bytes of their stored bodies and headers
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    bytes: Option<i64>,
    /// Maximum number of waiting events before oncely.emit refuses those of clients
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    events: Option<i64>,
    /// Maximum bytes of their payloads and headers
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    event_bytes: Option<i64>,
    /// Retention of its keys, such as 90d; 'default': that of each consumer
    #[arg(long, value_parser = parse_retention)]
    retention: Option<TenantRetention>,
    /// Reset to the limits and retention of the configuration and the consumers
    #[arg(long, conflicts_with_all = ["letters", "bytes", "events", "event_bytes", "retention"])]
    default: bool,
    /// Reason, recorded with the action
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses the retention of a tenant: a duration, or `default` for the retention of each consumer.
fn parse_retention(text: &str) -> Result<TenantRetention, String> {
    if text == "default" {
        return Ok(TenantRetention::OfConsumers);
    }
    let own = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_secs(1)..=MAX_RETENTION).contains(&own) {
        Ok(TenantRetention::Own(own))
    } else {
        Err("from 1s to 3650d, or 'default'".to_owned())
    }
}

/// Formats seconds as `7days2h`.
fn format_span(seconds: f64) -> String {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// Formats how long a tenant's keys are kept: the tenant's setting, and consumers where the effective time differs.
fn format_retention(usage: &TenantUsage) -> String {
    let own = usage.retention.map_or_else(|| "–".to_owned(), format_span);
    let others: Vec<String> = usage
        .kept
        .iter()
        .filter(|kept| kept.because != "tenant")
        .map(|kept| format!("{}: {}", kept.consumer, format_span(kept.retention)))
        .collect();
    if others.is_empty() { own } else { format!("{own} ({})", others.join(", ")) }
}

impl Row for TenantUsage {
    const SCHEMA: &'static str = "oncely.tenant_usage.tenant/1";
    const HEADS: &'static [&'static str] = &[
        "TENANT",
        "LETTERS",
        "OF",
        "BYTES",
        "OF",
        "NOT STORED",
        "EVENTS",
        "OF",
        "BYTES",
        "OF",
        "LIMITS",
        "KEYS KEPT",
    ];

    fn cells(&self, _: Times) -> Vec<String> {
        vec![
            self.tenant.clone(),
            self.letters.to_string(),
            self.most_letters.to_string(),
            format_bytes(self.bytes),
            format_bytes(self.most_bytes),
            self.left_out.to_string(),
            self.events.to_string(),
            self.most_events.to_string(),
            format_bytes(self.event_bytes),
            format_bytes(self.most_event_bytes),
            if self.own_limit { "its own" } else { "of all" }.to_owned(),
            format_retention(self),
        ]
    }
}

/// Prints the usage and the limits of tenants.
pub(super) async fn print_usage(file: &Path, arguments: UsageArguments, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let quota = config.dead_letters.quota();
    let now = session.clock.now();
    let usages = pg::list_tenant_usages(&mut session.connection, quota, None, arguments.limit, now).await?;
    session.close().await;
    let none = "no message of a dead letter is stored, no event waits, and no tenant has limits or a retention of its own";
    List { schema: USAGE_SCHEMA, field: "tenants", rows: &usages, none }.print(arguments.output, times)
}

/// Sets the limits and the retention of a tenant, and prints their effect.
pub(super) async fn set_limits(file: &Path, arguments: LimitArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let LimitArguments {
        tenant,
        letters,
        bytes: max_bytes,
        events,
        event_bytes,
        retention,
        default,
        note,
        json,
    } = arguments;
    let has_events = events.is_some() || event_bytes.is_some();
    if (retention.is_some() || has_events) && tenant.is_empty() {
        output::print_note(
            "nothing was changed: messages without a valid tenant have neither keys nor events, so no limits for them",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    let quota = config.dead_letters.quota();
    let now = session.clock.now();
    let usage_before = pg::list_tenant_usages(&mut session.connection, quota, Some(&tenant), 1, now).await?;
    let had_retention = usage_before.first().is_some_and(|usage| usage.retention.is_some());
    let limits = TenantLimits {
        letters: (letters.is_some() || max_bytes.is_some() || default).then_some((letters, max_bytes)),
        events: (has_events || default && !tenant.is_empty()).then_some((events, event_bytes)),
        retention: retention.or((default && had_retention).then_some(TenantRetention::OfConsumers)),
    };
    let (user, note) = (operator::name(), note.as_deref());
    pg::limit_tenant(&mut session.connection, &tenant, limits, &user, note).await?;
    pg::remove_statement_timeout(&mut session.connection).await?;
    let now = session.clock.now();
    let usage_after = pg::list_tenant_usages(&mut session.connection, quota, Some(&tenant), 1, now).await?;
    session.close().await;
    let usage_after = usage_after.into_iter().next().unwrap_or_default();
    if json {
        output::print_json(
            LIMIT_SCHEMA,
            json!({
                "tenant": tenant, "letters": limits.letters.and_then(|(letters, _)| letters),
                "bytes": limits.letters.and_then(|(_, bytes)| bytes), "events": events, "event_bytes": event_bytes,
                "retention": usage_after.retention, "kept": usage_after.kept,
            }),
        )?;
    }
    if let Some((letters, max_bytes)) = limits.letters {
        output::print_note(&format!(
            "of the tenant {} up to {} dead letters are stored with their message, and up to {}",
            escape(&tenant),
            letters.unwrap_or(quota.letters),
            format_bytes(max_bytes.unwrap_or(quota.bytes))
        ));
    }
    if has_events {
        output::print_note(&format!(
            "of the tenant {} up to {} events may wait before those of clients are refused, and up to {}",
            escape(&tenant),
            usage_after.most_events,
            format_bytes(usage_after.most_event_bytes)
        ));
    }
    if let Some(setting) = limits.retention {
        describe_retention(&config, &tenant, setting, &usage_after)
            .iter()
            .for_each(|line| output::print_note(line));
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the effect of a retention that was set, including consumers that keep keys longer.
fn describe_retention(
    config: &Config,
    tenant: &str,
    setting: TenantRetention,
    usage: &TenantUsage,
) -> Vec<String> {
    let mut lines = vec![match setting {
        TenantRetention::Own(own) => format!(
            "keys of the tenant {} are remembered for {}",
            escape(tenant),
            humantime::format_duration(own)
        ),
        TenantRetention::OfConsumers => {
            format!("keys of the tenant {} are remembered as each consumer says", escape(tenant))
        }
    }];
    for EffectiveRetention { consumer, retention, because } in usage.kept.iter() {
        let why = match because.as_str() {
            "tenant" => continue,
            "redelivery_horizon" => "a copy may still come for so long (redelivery_horizon)",
            "mirror_ttl" => "a mirror entry may live for so long (mirror.ttl), and must not outlive its key",
            _ => "until the mirror entries of before are over (mirror.ttl and an hour)",
        };
        lines.push(format!("! of {} they are kept for {}: {why}", escape(consumer), format_span(*retention)));
    }
    if let TenantRetention::Own(own) = setting
        && own > config.audit.retention
    {
        lines.push(format!(
            "! the trail is kept for {} only (audit.retention): of older keys it says nothing any more",
            humantime::format_duration(config.audit.retention.min(own))
        ));
    }
    if setting != TenantRetention::OfConsumers {
        lines.push(
            "keys of oncely.claim that are there keep the end that they have; new ones get the longer of the two"
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_a_time_that_can_be_or_that_of_the_consumers() {
        assert_eq!(parse_retention("default"), Ok(TenantRetention::OfConsumers));
        assert_eq!(parse_retention("90d"), Ok(TenantRetention::Own(Duration::from_secs(90 * 86_400))));
        assert!(["0s", "3651d", "soon", ""].iter().all(|text| parse_retention(text).is_err()));
    }
}
