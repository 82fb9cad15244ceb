//! The mirror's server: `redis.*`. Problems there make processing slower, never wrong.

use std::collections::BTreeSet;

use super::redis_cluster::judge_cluster;
use super::scope::CheckSelection;
use super::words::{bytes, span};
use oncely_config::Config;
use oncely_mirror::{Mirror, MirrorError, RedisFacts, shown_place};
use oncely_process::preflight::{self, CheckFindings};

const CHECKS: [&str; 4] = ["redis.memory", "redis.role", "redis.cluster", "redis.latency"];

pub(super) async fn run_checks(config: &Config, scope: &CheckSelection, found: &mut CheckFindings) {
    let Some(settings) = &config.mirror else {
        for check in ["redis.reach", "redis.tls"].into_iter().chain(CHECKS) {
            found.skipped(check, "there is no [redis] url: PostgreSQL answers for all duplicates");
        }
        return;
    };
    let server = settings.shown();
    let mirror = match Mirror::new(settings) {
        Ok(mirror) => mirror,
        Err(error) => return report_unreachable(found, &server, &error),
    };
    if let Err(error) = mirror.ping().await {
        return match mirror.tls_fault(&error) {
            Some(fault) => preflight::REDIS.report_fault(fault, &server, &error.to_string(), found),
            None => report_unreachable(found, &server, &error),
        };
    }
    found.add_read("redis.reach", server);
    if let Ok(tls) = settings.redis_tls() {
        preflight::REDIS.report_protection(tls.as_ref(), settings.allow_plaintext, found);
    }
    if scope.at_start {
        if let Ok(facts) = mirror.facts().await {
            judge_cluster(&facts, found);
        }
        return;
    }
    sentinels(&mirror, found).await;
    match mirror.facts().await {
        Ok(facts) => judge(&facts, settings.budget, found),
        Err(error) => {
            for check in CHECKS {
                found.skipped(check, format!("INFO was not answered: {error}"));
            }
        }
    }
}

/// Checks every Sentinel. Processes need only one, so they don't report a missing one.
async fn sentinels(mirror: &Mirror, found: &mut CheckFindings) {
    const PLACE: &str = "redis.sentinels";
    let Ok(said) = mirror.sentinels().await else { return };
    let mut masters = BTreeSet::new();
    for (sentinel, said) in said {
        match said {
            Ok(Some(place)) => {
                let master = shown_place(&place);
                found.add_read("redis.reach", format!("Sentinel at {sentinel}: the master is at {master}"));
                masters.insert(master);
            }
            Ok(None) => {
                let what = format!("Sentinel at {sentinel}: knows no such master; the others are asked");
                found.warning("redis.reach", PLACE, what);
            }
            Err(error) => found.warning("redis.reach", PLACE, format!("{error}; the others are asked")),
        }
    }
    if masters.len() > 1 {
        let masters: Vec<String> = masters.into_iter().collect();
        let what = format!(
            "name different masters ({}): a failover is under way, or some are cut off from the others",
            masters.join(" and ")
        );
        found.warning("redis.reach", PLACE, what);
    }
}

fn report_unreachable(found: &mut CheckFindings, server: &str, error: &MirrorError) {
    if error.is_refusal() {
        let what = format!("{server}: user or password is refused ({error})");
        found.error("redis.reach", error.place(), what);
    } else {
        found.add_unreachable("redis.reach", format!("Redis at {server}: {error} (slower, never wrong)"));
    }
}

fn judge(facts: &RedisFacts, budget: std::time::Duration, found: &mut CheckFindings) {
    let RedisFacts { version, used_memory, max_memory, policy, is_replica, is_cluster: _, latency } = facts;
    let size = |count: u64| bytes(i64::try_from(count).unwrap_or(i64::MAX));
    let most = if *max_memory == 0 { "no bound".to_owned() } else { size(*max_memory) };
    found.add_read("redis.memory", format!("{version}: {} in use, {most}, {policy}", size(*used_memory)));
    if policy == "noeviction" && *max_memory > 0 && used_memory / 9 >= max_memory / 10 {
        let what = format!(
            "{} of {most} are in use, and nothing is evicted: new entries are refused, duplicates then cost more",
            size(*used_memory)
        );
        found.warning("redis.memory", "maxmemory", what);
    }
    found.add_read("redis.role", if *is_replica { "replica" } else { "primary" });
    if *is_replica {
        found.warning("redis.role", "redis.url", "is a replica: the relay can write nothing there");
    }
    judge_cluster(facts, found);
    found.add_read("redis.latency", format!("{latency:?} a round trip, the budget is {budget:?}"));
    if *latency > budget {
        let what = format!(
            "is {}, and Redis takes {} for a round trip: the mirror is bypassed; lengthen it, or bring Redis nearer",
            span(budget),
            span(*latency)
        );
        found.warning("redis.latency", "mirror.budget", what);
    }
}
