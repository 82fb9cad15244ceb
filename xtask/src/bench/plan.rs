//! Which measurements the wanted cases need.

use serde_json::{Value, json};

use super::console;
use super::event_delay;
use super::gc;
use super::growth::growth;
use super::hot;
use super::job::Handler;
use super::latency::latency;
use super::lease_stores;
use super::leases;
use super::limit::raw_batch;
use super::long;
use super::mirror::lag;
use super::network::RoundTrips;
use super::outcome::{Outcome, rounded};
use super::relay;
use super::report::print_line;
use super::round::Rounds;
use super::stage::Stage;
use super::storm::{KnownTo, storm, storm_limit};
use super::throughput as rate;
use super::web;
use super::{Arguments, backlog};

/// What has come out so far.
#[derive(Debug)]
pub(crate) struct Results<'a> {
    arguments: &'a Arguments,
    round_trips: Option<RoundTrips>,
    pub(crate) outcomes: Vec<Outcome>,
    /// Cases whose results were wrong.
    pub(crate) failed: Vec<&'static str>,
}

impl Results<'_> {
    /// Is one of these cases wanted?
    fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.arguments.wants(name))
    }

    /// Keeps what was wanted, and says it at once: the whole takes long. A case that failed does not end the others.
    fn take(&mut self, name: &'static str, result: anyhow::Result<Vec<Outcome>>) -> anyhow::Result<()> {
        match result {
            Ok(outcomes) => {
                for mut outcome in outcomes {
                    if let Some(version) = self.arguments.queue_version {
                        outcome = outcome.note("queue_version", version.into());
                    }
                    if let Some(round_trips) = &self.round_trips {
                        outcome = outcome.note("network", to_json(round_trips));
                    }
                    if self.wants(&[outcome.case.name]) {
                        if self.arguments.json {
                            print_line(&outcome)?;
                        }
                        self.outcomes.push(outcome);
                    }
                }
            }
            Err(error) => {
                eprintln!("{name} FAILED: {error:#}");
                self.failed.push(name);
            }
        }
        Ok(())
    }
}

fn to_json(RoundTrips { loopback, no_delay, delayed, statements }: &RoundTrips) -> Value {
    json!({
        "loopback_ms": rounded(*loopback),
        "link_without_delay_ms": rounded(*no_delay),
        "link_ms": rounded(*delayed),
        "statements": statements,
    })
}

/// Measures what is wanted; several cases may come out of one measurement.
pub(crate) async fn carry_out<'a>(arguments: &'a Arguments, stage: &Stage) -> anyhow::Result<Results<'a>> {
    let mut results = Results {
        arguments,
        round_trips: stage.round_trips.clone(),
        outcomes: Vec::new(),
        failed: Vec::new(),
    };
    let rounds = Rounds::new(stage, arguments);
    if results.wants(&["e2e_classic_full", "cpu_per_message", "wal_per_message"]) {
        results.take("e2e_classic_full", rate::classic(&rounds).await)?;
    }
    if results.wants(&["e2e_quorum_full", "cpu_quorum"]) {
        results.take("e2e_quorum_full", rate::quorum(&rounds).await)?;
    }
    if results.wants(&["e2e_per_message_sql"]) {
        results.take("e2e_per_message_sql", rate::per_message(&rounds).await)?;
    }
    if results.wants(&["e2e_rust_handler"]) {
        results.take("e2e_rust_handler", rate::rust(&rounds).await)?;
    }
    if results.wants(&["poison_1pct"]) {
        results.take("poison_1pct", rate::poison(&rounds).await)?;
    }
    if results.wants(&["env_1pct"]) {
        results.take("env_1pct", rate::environment(&rounds).await)?;
    }
    for (name, handler) in
        [("pg_cpu_vs_raw_batch", Handler::RustBatch), ("pg_cpu_sql_vs_raw", Handler::Batch)]
    {
        if results.wants(&[name]) {
            results.take(name, raw_batch(&rounds, name, handler).await)?;
        }
    }
    for (name, known) in [("storm_redis", KnownTo::Redis), ("storm_postgres", KnownTo::Postgres)] {
        if results.wants(&[name]) {
            results.take(name, storm(&rounds, known).await)?;
        }
    }
    if results.wants(&["storm_limit"]) {
        results.take("storm_limit", storm_limit(&rounds).await)?;
    }
    if results.wants(&["worker_rss", "redis_bytes"]) {
        results.take("worker_rss", backlog::backlog(&rounds).await)?;
    }
    if results.wants(&["gc_cpu"]) {
        results.take("gc_cpu", gc::cpu(&rounds).await)?;
    }
    if results.wants(&["gc_interference"]) {
        results.take("gc_interference", gc::interference(&rounds).await)?;
    }
    if results.wants(&["metrics_cost"]) {
        results.take("metrics_cost", rate::metrics(&rounds).await)?;
    }
    if results.wants(&["console_5m"]) {
        results.take("console_5m", console::pages(&rounds, arguments.trail_rows).await)?;
    }
    if results.wants(&["console_interference"]) {
        results.take("console_interference", console::interference(&rounds).await)?;
    }
    for (name, keys) in [("growth_1m", arguments.growth_keys / 10), ("growth_10m", arguments.growth_keys)] {
        if results.wants(&[name]) {
            results.take(name, growth(&rounds, name, keys).await)?;
        }
    }
    for (name, workers) in [("workers_2", 2), ("workers_4", 4)] {
        if results.wants(&[name]) {
            results.take(name, rate::workers(&rounds, name, workers).await)?;
        }
    }
    if results.wants(&["e2e_vs_lean", "wal_vs_lean"]) {
        results.take("e2e_vs_lean", rate::lean(&rounds).await)?;
    }
    if results.wants(&["relay_to_rabbitmq"]) {
        results.take("relay_to_rabbitmq", relay::to_rabbitmq(&rounds).await)?;
    }
    if results.wants(&["relay_ordered"]) {
        results.take("relay_ordered", relay::ordered(&rounds).await)?;
    }
    for (name, rate) in event_delay::CASES {
        if results.wants(&[name]) {
            results.take(name, event_delay::delays(&rounds, name, rate).await)?;
        }
    }
    if results.wants(&["relay_idle"]) {
        results.take("relay_idle", event_delay::idle(&rounds).await)?;
    }
    if results.wants(&["relay_vs_outbox_core"]) {
        results.take("relay_vs_outbox_core", relay::against_outbox_core(&rounds).await)?;
    }
    if results.wants(&["lease_empty"]) {
        results.take("lease_empty", leases::empty(&rounds).await)?;
    }
    if results.wants(&["lease_50ms_256"]) {
        results.take("lease_50ms_256", leases::calls(&rounds).await)?;
    }
    if results.wants(&["lease_idle_10k"]) {
        results.take("lease_idle_10k", leases::idle(&rounds).await)?;
    }
    if results.wants(&["lease_redis_rate", "lease_redis_vs_script", "lease_redis_cpu", "lease_redis_vs_set"])
    {
        results.take("lease_redis_rate", lease_stores::rates(&rounds).await)?;
    }
    if results.wants(&["lease_redis_bytes"]) {
        results.take("lease_redis_bytes", lease_stores::bytes(&rounds).await)?;
    }
    if results.wants(&["lease_dynamodb_cost"]) {
        results.take("lease_dynamodb_cost", lease_stores::cost())?;
    }
    for pair in web::PAIRS {
        let [latency, first, replay] = pair.names;
        if results.wants(&[latency]) {
            results.take(latency, web::latency(&rounds, pair).await)?;
        }
        if results.wants(&[first, replay]) {
            results.take(first, web::throughput(&rounds, pair).await)?;
        }
    }
    for (work, names) in hot::CASES {
        if results.wants(&names) {
            results.take(names[0], hot::hot(&rounds, work, names).await)?;
        }
    }
    rounds.bar.finish_and_clear();
    Ok(results)
}

/// The cases that need to know when each transaction committed.
pub(crate) async fn carry_out_with_commit_times(
    results: &mut Results<'_>,
    mut stage: Stage,
) -> anyhow::Result<()> {
    if results.wants(&["latency_200", "latency_1000", "mirror_lag"]) {
        stage = stage.with_commit_times(&[]).await?;
        let rounds = Rounds::new(&stage, results.arguments);
        for (name, messages) in [("latency_200", 200), ("latency_1000", 1_000)] {
            if results.wants(&[name]) {
                results.take(name, latency(&rounds, messages).await)?;
            }
        }
        if results.wants(&["mirror_lag"]) {
            results.take("mirror_lag", lag(&rounds).await)?;
        }
        rounds.bar.finish_and_clear();
    }
    if results.wants(&long::CASES) {
        stage = stage.with_commit_times(&long::SETTINGS).await?;
        results.take("long", long::long(&stage, results.arguments).await)?;
    }
    Ok(())
}
