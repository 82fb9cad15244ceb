//! `cargo xtask demo`: a small trial of a fixed course. Payments, a third of them duplicates, while processes are killed with -9; then
//! the judge of the fault runs counts what was lost and what was doubled, by queries that share nothing with the product.

mod kept;
mod payments;
mod report;
mod scene;
mod strikes;

use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use testbed::checker::Intent;
use testbed::{Arena, ArenaConfig, Servers};

use crate::process;
use crate::servers::Choice;
use report::Report;
use strikes::Strikes;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Messages to publish, duplicates included
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: u32,
    /// How many of them are duplicates, in per cent
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=95))]
    duplicates: u32,
    /// How many tenants send them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tenants: u32,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
    /// Go on until Ctrl-C, with a bad day to look at in the console: print its link, and the servers' URLs
    #[arg(long)]
    keep: bool,
}

/// No effect for so long: none comes any more.
const STUCK: Duration = Duration::from_secs(60);

/// Runs the demo. Fails when anything was lost or doubled.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let mut config = ArenaConfig::plain(process::build_binaries()?)
        .set("consumer", "handler", "{ function = \"judge.capture\", batch = true }")
        // Listed, so that they can be counted by who knew them.
        .set("audit", "duplicates", "true");
    config.consumer = "payments".to_owned();
    (config.workers, config.relays) = (2, 1);
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let servers = Servers::start().await?;
    eprintln!("{}", servers.versions().await?);
    eprintln!("starting two workers and a relay; {} tenants send payments", arguments.tenants);
    let mut arena = Arena::start_on(servers, config).await?;
    let plan = payments::plan(arguments.messages, arguments.duplicates, arguments.tenants);
    let mut strikes = Strikes::new(payments::distinct(&plan));
    let seconds = work(&mut arena, plan, &mut strikes).await?;
    arena.drain().await?;
    let report = Report::collect(&mut arena, seconds, strikes.done).await?;
    report.print(arguments.json, arguments.keep)?;
    let good = report.is_good();
    if !good {
        eprintln!("logs: {}", arena.keep_logs()?.display());
    }
    if arguments.keep {
        kept::hold(&mut arena, good, arguments.json).await?;
    }
    anyhow::ensure!(good, "something was lost or doubled: this is a bug, please report it with the logs");
    // The servers may be somebody else's. Of a bad run all is left there to look at.
    arena.clear().await
}

/// Publishes and kills until each payment has its effect; returns how many seconds it took.
async fn work(arena: &mut Arena, plan: Vec<Intent>, strikes: &mut Strikes) -> anyhow::Result<f64> {
    let (all, distinct) = (plan.len() as u64, payments::distinct(&plan));
    let bars = MultiProgress::new();
    let (published, effects) = (bar(&bars, "published", all), bar(&bars, "effects", distinct));
    let started = Instant::now();
    arena.publish(plan);
    let mut last = (0, Instant::now());
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tick.tick().await;
        arena.supervise()?;
        let (done, unpublished) = (arena.effects().await?, arena.unpublished());
        published.set_position(all - unpublished as u64);
        effects.set_position(done);
        strikes.strike(done, arena, &bars).await?;
        if done >= distinct && unpublished == 0 && strikes.is_over() {
            break;
        }
        if done != last.0 {
            last = (done, Instant::now());
        }
        if last.1.elapsed() > STUCK {
            bars.println(format!("no effect for {STUCK:?}: counting what is there"))?;
            break;
        }
    }
    published.finish();
    effects.finish();
    Ok(started.elapsed().as_secs_f64())
}

fn bar(bars: &MultiProgress, what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {pos:>8}/{len} {per_sec:>12}");
    let bar = ProgressBar::new(length).with_prefix(what);
    bars.add(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
}
