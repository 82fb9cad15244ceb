//! `cargo xtask bench`: against the usual way, in the same run, on private servers that lose nothing. What is fast and wrong
//! fails.

mod backlog;
mod case;
mod configuration;
mod console;
mod event_delay;
mod gc;
mod growth;
mod hot;
pub(crate) mod job;
mod latency;
mod lease_stores;
mod leases;
mod limit;
mod long;
pub(crate) mod measured;
pub(crate) mod meter;
mod mirror;
mod network;
mod outcome;
mod plan;
mod published;
mod relay;
mod report;
mod round;
pub(crate) mod run;
mod scrape;
pub(crate) mod site;
pub(crate) mod stage;
mod stats;
mod storm;
mod throughput;
mod verify;
mod web;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::servers::Choice;
use case::{CASES, Group, Target};
pub(crate) use network::{ForwardArguments, forward};
use outcome::Outcome;
use stage::Stage;

#[derive(Debug, Args)]
#[command(after_help = cases(), after_long_help = help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Only the cases of this group
    #[arg(value_enum)]
    group: Option<Group>,
    /// Only these cases, such as e2e_classic_full,wal_per_message
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    only: Vec<String>,
    /// How often each case and its baseline take turns; medians of the rounds count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Messages in a run, ours and the baseline's; worker_rss has 25 times as many, the collection 50 times
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    messages: u64,
    /// Keys that are there in growth_10m; growth_1m has a tenth of them
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    growth_keys: u64,
    /// Rows of the trail in console_5m; a fifth as many keys, a hundredth as many dead letters
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(100_000..=1_000_000_000))]
    trail_rows: u64,
    #[command(flatten)]
    long: long::Arguments,
    /// Take worker, relay and oncely from this folder, and build only what is not there
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Version of the classic queues of both sides; 2 is the only one since RabbitMQ 4.3. Default: the server's
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(1..=2))]
    queue_version: Option<u8>,
    /// Between programs and servers there is a network with this round trip, such as 1ms: each side in a network namespace of its own, a
    /// link of MTU 1500, each byte delayed by half of it. Needs root. Only the cases that are marked with *
    #[arg(long, value_name = "ROUND_TRIP", value_parser = network::parse_round_trip)]
    network: Option<Duration>,
    /// Print one JSON object a line for each case
    #[arg(long)]
    json: bool,
    /// Say on stderr which processes each run measures (for a profiler), and what it found
    #[arg(long)]
    pids: bool,
}

impl Arguments {
    /// Is a case wanted?
    fn wants(&self, name: &str) -> bool {
        let Some(case) = case::find(name) else { return false };
        let is_named = self.only.iter().any(|only| only == name);
        let is_of_group = match self.group {
            // An hour by itself.
            None => self.only.is_empty() && !case.is_of(Group::Long),
            Some(group) => case.is_of(group),
        };
        is_named || (is_of_group && (self.network.is_none() || case.crosses_network()))
    }
}

fn cases() -> String {
    let mut text = "Cases, and the ratio that each is to reach:\n".to_owned();
    for case in CASES {
        let target = match case.target {
            Target::AtLeast(value) => format!("at least {value}"),
            Target::AtMost(value) => format!("at most {value}"),
            Target::None => "no target".to_owned(),
        };
        let mark = if case.crosses_network() { "*" } else { " " };
        text.push_str(&format!("{mark} {:<22} {:<14} {}\n", case.name, target, case.what));
    }
    text
}

fn help() -> String {
    format!(
        "{}\n\
         The baseline \"naive\" is the usual idempotent consumer: per message SELECT FOR UPDATE, INSERT IN_PROGRESS, the\n\
         business row, UPDATE COMPLETED, an audit row, an outbox row, COMMIT, then one acknowledgement; eight connections with\n\
         prepared statements, prefetch 100. Both sides: private servers, PostgreSQL durable as by default, durable queues,\n\
         persistent messages of 300 bytes, one business row a message. Each run has a database of its own, begins after a\n\
         checkpoint with a full queue that has been at rest for 2.5 s, and is clocked from the first effect to the last; then\n\
         every message is accounted for.\n\
         The relay's runs begin with a full table of events and are clocked from the first message in the queue to an empty\n\
         table; the queue must then hold each event once.\n\
         CPU time is the operating system's, PostgreSQL's with all its backends. The exit code tells of wrong results only.\n",
        cases()
    )
}

/// Runs the cases. Fails where a result is wrong; a target that is missed is only shown.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for name in &arguments.only {
        let case = case::find(name)
            .ok_or_else(|| anyhow::anyhow!("there is no case {name}; see cargo xtask bench --help"))?;
        anyhow::ensure!(
            arguments.network.is_none() || case.crosses_network(),
            "{name} is measured without a network; --network is for the cases marked with * in cargo xtask bench --help"
        );
    }
    arguments.servers.apply()?;
    let stage = Stage::set(arguments).await?;
    let mut results = plan::carry_out(arguments, &stage).await?;
    plan::carry_out_with_commit_times(&mut results, stage).await?;
    let place = |outcome: &Outcome| CASES.iter().position(|case| case.name == outcome.case.name);
    results.outcomes.sort_by_key(place);
    match arguments.json {
        true => eprintln!("{}", report::table(&results.outcomes)),
        false => report::print(&results.outcomes)?,
    }
    anyhow::ensure!(results.failed.is_empty(), "wrong results: {}", results.failed.join(", "));
    Ok(())
}
