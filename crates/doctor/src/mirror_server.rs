//! The mirror's server: `redis.*`. Problems there make processing slower, never wrong.

use std::collections::BTreeSet;

use super::redis_cluster::report_cluster;
use super::scope::CheckSelection;
use super::words::{format_duration, format_size};
use oncely_config::Config;
use oncely_mirror::{Mirror, MirrorError, RedisFacts, SentinelAnswer, format_address};
use oncely_process::preflight::{self, CheckFindings};

const CHECKS: [&str; 4] = ["redis.memory", "redis.role", "redis.cluster", "redis.latency"];

/// Runs the checks of Redis; without a mirror in the configuration they are skipped.
pub(super) async fn run_checks(config: &Config, scope: &CheckSelection, findings: &mut CheckFindings) {
    let Some(settings) = &config.mirror else {
        for check in ["redis.reach", "redis.tls"].into_iter().chain(CHECKS) {
            findings.add_skipped(check, "there is no [redis] url: PostgreSQL answers for all duplicates");
        }
        return;
    };
    let server = settings.redacted();
    let mirror = match Mirror::new(settings) {
        Ok(mirror) => mirror,
        Err(error) => return report_unreachable(findings, &server, &error),
    };
    if let Err(error) = mirror.ping().await {
        return match mirror.tls_fault(&error) {
            Some(fault) => preflight::REDIS.report_fault(fault, &server, &error.to_string(), findings),
            None => report_unreachable(findings, &server, &error),
        };
    }
    findings.add_read("redis.reach", server);
    if let Ok(tls) = settings.redis_tls() {
        preflight::REDIS.report_protection(tls.as_ref(), settings.allow_plaintext, findings);
    }
    if scope.at_start {
        if let Ok(facts) = mirror.read_facts().await {
            report_cluster(&facts, mirror.is_for_cluster(), findings);
        }
        return;
    }
    check_sentinels(&mirror, findings).await;
    match mirror.read_facts().await {
        Ok(facts) => check_facts(&facts, &mirror, settings.budget, findings),
        Err(error) => {
            for check in CHECKS {
                findings.add_skipped(check, format!("INFO was not answered: {error}"));
            }
        }
    }
}

/// Checks that every Sentinel answers, and that all of them name one master. Processes need only one, so they don't report a missing one.
async fn check_sentinels(mirror: &Mirror, findings: &mut CheckFindings) {
    const SENTINELS_SETTING: &str = "redis.sentinels";
    let Ok(answers) = mirror.query_sentinels().await else { return };
    let mut masters = BTreeSet::new();
    for SentinelAnswer { sentinel, master } in answers {
        match master {
            Ok(Some(address)) => {
                let master = format_address(&address);
                findings
                    .add_read("redis.reach", format!("Sentinel at {sentinel}: the master is at {master}"));
                masters.insert(master);
            }
            Ok(None) => {
                let text = format!("Sentinel at {sentinel}: knows no such master; the others are asked");
                findings.add_warning("redis.reach", SENTINELS_SETTING, text);
            }
            Err(error) => findings.add_warning(
                "redis.reach",
                SENTINELS_SETTING,
                format!("{error}; the others are asked"),
            ),
        }
    }
    if masters.len() > 1 {
        let masters: Vec<String> = masters.into_iter().collect();
        let text = format!(
            "name different masters ({}): a failover is under way, or some are cut off from the others",
            masters.join(" and ")
        );
        findings.add_warning("redis.reach", SENTINELS_SETTING, text);
    }
}

/// Adds an error if Redis refuses the login, otherwise a server that does not answer.
fn report_unreachable(findings: &mut CheckFindings, server: &str, error: &MirrorError) {
    if error.is_refusal() {
        let text = format!("{server}: user or password is refused ({error})");
        findings.add_error("redis.reach", error.setting(), text);
    } else {
        findings.add_unreachable("redis.reach", format!("Redis at {server}: {error} (slower, never wrong)"));
    }
}

/// Checks that Redis has room, takes writes, is in a cluster where the configuration says so, and answers within the budget.
fn check_facts(
    facts: &RedisFacts,
    mirror: &Mirror,
    budget: std::time::Duration,
    findings: &mut CheckFindings,
) {
    let RedisFacts { version, used_memory, max_memory, policy, is_replica, is_cluster: _, latency } = facts;
    let size = |count: u64| format_size(i64::try_from(count).unwrap_or(i64::MAX));
    let limit = if *max_memory == 0 { "no bound".to_owned() } else { size(*max_memory) };
    findings.add_read("redis.memory", format!("{version}: {} in use, {limit}, {policy}", size(*used_memory)));
    if policy == "noeviction" && *max_memory > 0 && used_memory / 9 >= max_memory / 10 {
        let text = format!(
            "{} of {limit} are in use, and nothing is evicted: new entries are refused, duplicates then cost more",
            size(*used_memory)
        );
        findings.add_warning("redis.memory", "maxmemory", text);
    }
    findings.add_read("redis.role", if *is_replica { "replica" } else { "primary" });
    if *is_replica {
        findings.add_warning("redis.role", "redis.url", "is a replica: the relay can write nothing there");
    }
    report_cluster(facts, mirror.is_for_cluster(), findings);
    findings.add_read("redis.latency", format!("{latency:?} a round trip, the budget is {budget:?}"));
    if *latency > budget {
        let text = format!(
            "is {}, and Redis takes {} for a round trip: the mirror is bypassed; lengthen it, or bring Redis nearer",
            format_duration(budget),
            format_duration(*latency)
        );
        findings.add_warning("redis.latency", "mirror.budget", text);
    }
}
