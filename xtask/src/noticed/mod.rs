//! `cargo xtask noticed`: how soon trouble is told, by everybody who could tell. On real servers a worker, a relay and a console of a small
//! shop run with their defaults and steady traffic; one thing after another breaks and is mended again, and meanwhile each observer is
//! asked four times a second, until it says so by name.

mod cell;
mod console;
mod http;
mod observer;
mod report;
mod shop;
mod traffic;
mod trouble;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::process;
use crate::servers::Choice;
use observer::{Observer, Observers};
use report::Row;
use shop::Shop;
use trouble::Trouble;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Only these troubles, such as broken_handler
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Nobody is waited for any longer, in seconds
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Print one JSON object for each trouble and observer
    #[arg(long)]
    json: bool,
}

/// Long enough for a minute's retries, and for a window of five minutes.
const QUIET: Duration = Duration::from_secs(400);

/// Tries them. Fails where somebody does not say it within 15 seconds.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let troubles: Vec<Trouble> = Trouble::ALL
        .into_iter()
        .filter(|trouble| {
            arguments.only.is_empty() || arguments.only.iter().any(|name| name == trouble.name())
        })
        .collect();
    for name in &arguments.only {
        let names = Trouble::ALL.map(Trouble::name);
        anyhow::ensure!(names.contains(&name.as_str()), "{name} is none of {}", names.join(", "));
    }
    let programs = process::build_binaries()?;
    let rules = std::fs::read_to_string(process::root().join("alerts.yml"))?;
    eprintln!("starting PostgreSQL, RabbitMQ, Redis, Prometheus, a worker, a relay and a console");
    let mut shop = Shop::open(&programs, &rules).await?;
    eprintln!("{}; Prometheus scrapes every {:?}", shop.servers.versions().await?, shop::SCRAPE);
    let observers = Observers::of(&shop).await?;
    // It listens before it has read its rules.
    let durations = testbed::eventually("Prometheus knows its rules", || observers.durations()).await?;
    let limit = Duration::from_secs(arguments.limit);
    let bar = bar(troubles.len());
    let mut rows = Vec::new();
    for trouble in troubles {
        bar.set_message(trouble.name());
        let row = one(&mut shop, &observers, trouble, limit).await;
        let mut row = row.with_context(|| trouble.name())?;
        let alert = row.cells.iter().find(|cell| cell.observer == Observer::Alert);
        row.waits = alert.and_then(|cell| {
            let found = durations.iter().find(|(name, _)| cell.sentence.starts_with(name.as_str()))?;
            Some(found.1)
        });
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    report::print(&rows, limit, arguments.json)?;
    let late: Vec<String> = rows
        .iter()
        .flat_map(|row| row.late().map(|cell| format!("{} by {}", row.trouble.name(), cell.observer.name())))
        .collect();
    anyhow::ensure!(late.is_empty(), "not told within {:?}: {}", report::SOON, late.join(", "));
    Ok(())
}

async fn one(
    shop: &mut Shop,
    observers: &Observers,
    trouble: Trouble,
    limit: Duration,
) -> anyhow::Result<Row> {
    let asked: Vec<Observer> =
        Observer::ALL.into_iter().filter(|observer| !trouble.words(*observer).is_empty()).collect();
    let quiet = asked
        .iter()
        .map(|observer| cell::wait_until_silent(observers, (trouble, *observer), Instant::now(), QUIET));
    for (observer, silent) in asked.iter().zip(futures::future::join_all(quiet).await) {
        anyhow::ensure!(silent.is_some(), "{} says it before it happens", observer.name());
    }
    trouble.begin(shop).await?;
    let begin = Instant::now();
    let told =
        asked.iter().map(|observer| cell::wait_until_told(observers, (trouble, *observer), begin, limit));
    let mut cells = futures::future::join_all(told).await;
    trouble.end(shop).await?;
    let end = Instant::now();
    let healed =
        asked.iter().map(|observer| cell::wait_until_silent(observers, (trouble, *observer), end, limit));
    for (cell, healed) in cells.iter_mut().zip(futures::future::join_all(healed).await) {
        cell.healed = healed.filter(|_| cell.told.is_some());
    }
    Ok(Row { trouble, cells, waits: None })
}

fn bar(troubles: usize) -> ProgressBar {
    // Hidden by itself where stderr is no terminal.
    let style = ProgressStyle::with_template("troubles {bar:30} {pos}/{len} {elapsed} {msg}");
    ProgressBar::new(troubles as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
