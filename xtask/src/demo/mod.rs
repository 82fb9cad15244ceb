//! `cargo xtask demo`: payments into a ledger, a third of them duplicates, while processes are killed with -9; then a
//! count of what was lost and what was doubled, by queries that share nothing with the product.

mod chaos;
mod report;
mod stage;
mod traffic;

use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use testbed::{Ledger, eventually_within};

use crate::servers::Choice;
use chaos::Chaos;
use report::Report;
use stage::Stage;

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
    /// Leave the servers up until Ctrl-C and print their URLs
    #[arg(long)]
    keep: bool,
}

/// Runs the demo. Fails when anything was lost or doubled.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let mut stage = Stage::set(arguments.tenants).await?;
    let plan = traffic::plan(arguments.messages, arguments.duplicates, arguments.tenants);
    let bars = MultiProgress::new();
    let published = bar(&bars, "published", plan.len());
    let effects = bar(&bars, "effects", traffic::distinct(&plan));

    let started = Instant::now();
    let mut ledger = Ledger::default();
    let mut chaos = Chaos::new(traffic::distinct(&plan));
    let publishing = traffic::publish(stage.amqp_url(), stage.queue.clone(), &plan, &published);
    tokio::pin!(publishing);
    let mut watch = stage.database.connect().await?;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            done = &mut publishing => {
                done?;
                break;
            }
            _ = tick.tick() => {
                let done = Ledger::progress(&mut watch).await?;
                effects.set_position(done);
                chaos.strike(done, &mut stage, &bars).await?;
            }
        }
    }
    published.finish();
    for message in &plan {
        ledger.expect(&message.tenant, &message.key);
    }
    // Until every payment has its effect and no message is left; then as long again as nothing moves.
    let distinct = ledger.expected() as u64;
    let mut last = (0, Instant::now());
    loop {
        let done = Ledger::progress(&mut watch).await?;
        effects.set_position(done);
        chaos.strike(done, &mut stage, &bars).await?;
        if done != last.0 {
            last = (done, Instant::now());
        }
        if done >= distinct && chaos.is_over() {
            break;
        }
        if last.1.elapsed() > Duration::from_secs(60) {
            bars.println("no effect for 60 s: counting what is there")?;
            break;
        }
        tick.tick().await;
    }
    let seconds = started.elapsed().as_secs_f64();
    effects.finish();
    let drained =
        eventually_within(Duration::from_secs(30), "the queue is empty and all is mirrored", || async {
            stage.at_rest().await.and_then(|rest| if rest { Ok(()) } else { Err(anyhow::anyhow!("not yet")) })
        })
        .await;
    if let Err(error) = drained {
        bars.println(format!("{error:#}"))?;
    }
    let ends = stage.stop().await?;
    let report = Report::collect(&stage, &ledger, plan.len() as u64, seconds, &chaos, ends).await?;
    if arguments.json {
        eprintln!("{}", report.table());
        report.print_json()?;
    } else {
        report.print(arguments.keep)?;
    }
    if arguments.keep {
        stage.hold().await?;
    }
    stage.clear(report.is_good()).await?;
    anyhow::ensure!(
        report.is_good(),
        "something was lost or doubled: this is a bug, please report it with the logs"
    );
    Ok(())
}

fn bar(bars: &MultiProgress, what: &'static str, length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {pos:>8}/{len} {per_sec:>12}");
    let bar = ProgressBar::new(length as u64).with_prefix(what);
    bars.add(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
}
