//! Which measurements the wanted cases need.

use super::gc;
use super::growth::growth;
use super::latency::latency;
use super::limit::raw_batch;
use super::mirror::lag;
use super::outcome::Outcome;
use super::round::Rounds;
use super::stage::Stage;
use super::storm::{KnownTo, storm};
use super::throughput as rate;
use super::{Arguments, backlog};

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// Measures what is wanted; several cases may come out of one measurement.
pub(crate) async fn carry_out(arguments: &Arguments, stage: Stage) -> anyhow::Result<Vec<Outcome>> {
    let wants = |names: &[&str]| names.iter().any(|name| arguments.wants(name));
    let mut rounds = Rounds::new(&stage, arguments);
    let mut outcomes = Vec::new();
    if wants(&["e2e_classic_full", "cpu_per_message", "wal_per_message"]) {
        outcomes.extend(rate::classic(&rounds).await?);
    }
    if wants(&["e2e_quorum_full"]) {
        outcomes.extend(rate::quorum(&rounds).await?);
    }
    if wants(&["e2e_per_message_sql"]) {
        outcomes.extend(rate::per_message(&rounds).await?);
    }
    if wants(&["e2e_rust_handler"]) {
        outcomes.extend(rate::rust(&rounds).await?);
    }
    if wants(&["poison_1pct"]) {
        outcomes.extend(rate::poison(&rounds).await?);
    }
    if wants(&["pg_cpu_vs_raw_batch"]) {
        outcomes.extend(raw_batch(&rounds).await?);
    }
    if wants(&["storm_redis"]) {
        outcomes.extend(storm(&rounds, KnownTo::Redis).await?);
    }
    if wants(&["storm_postgres"]) {
        outcomes.extend(storm(&rounds, KnownTo::Postgres).await?);
    }
    if wants(&["worker_rss", "redis_bytes"]) {
        outcomes.extend(backlog::backlog(&rounds).await?);
    }
    if wants(&["gc_cpu"]) {
        outcomes.extend(gc::cpu(&rounds).await?);
    }
    if wants(&["gc_interference"]) {
        outcomes.extend(gc::interference(&rounds).await?);
    }
    for (name, keys) in [("growth_1m", arguments.growth_keys / 10), ("growth_10m", arguments.growth_keys)] {
        if wants(&[name]) {
            outcomes.extend(growth(&rounds, name, keys).await?);
        }
    }
    for (name, workers) in [("workers_2", 2), ("workers_4", 4)] {
        if wants(&[name]) {
            outcomes.extend(rate::workers(&rounds, name, workers).await?);
        }
    }
    if wants(&["e2e_vs_article", "wal_vs_article"]) {
        outcomes.extend(rate::article(&rounds).await?);
    }
    if wants(&["latency_200", "latency_1000", "mirror_lag"]) {
        rounds.bar.finish_and_clear();
        let stage = stage.with_commit_times().await?;
        rounds = Rounds::new(&stage, arguments);
        for (name, messages) in [("latency_200", 200), ("latency_1000", 1_000)] {
            if wants(&[name]) {
                outcomes.extend(latency(&rounds, messages).await?);
            }
        }
        if wants(&["mirror_lag"]) {
            outcomes.extend(lag(&rounds).await?);
        }
        rounds.bar.finish_and_clear();
    } else {
        rounds.bar.finish_and_clear();
    }
    outcomes.retain(|outcome| arguments.wants(outcome.case.name));
    Ok(outcomes)
}
