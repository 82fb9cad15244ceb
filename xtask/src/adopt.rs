//! `cargo xtask adopt`: an existing queue and its consumer, taken over as docs/src/how-to/adopt.md says.

use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use testbed::{AdoptionReport, RabbitMq, Servers, Sightings};

use crate::servers::Choice;
use crate::{judgement, process};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Messages to publish: the backlog
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(500..=10_000_000))]
    messages: u32,
    /// The same seed gives the same messages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Runs the trial. Fails where something was lost or doubled, or the observer saw something else than there was.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let programs = process::build_binaries()?;
    let root = process::root();
    let python =
        testbed::python(&root.join("examples/python"), &programs.with_file_name("examples").join("python"))?;
    eprintln!("starting PostgreSQL, RabbitMQ and Redis");
    let servers = Servers::start().await?;
    eprintln!("{}", servers.versions().await?);
    eprintln!("{} messages; an old consumer, an observer, two workers", arguments.messages);
    let began = Instant::now();
    let messages = usize::try_from(arguments.messages)?;
    // One that says what a queue is bound to.
    let broker = RabbitMq::start_with_management().await?;
    let mut urls = servers.urls().clone();
    urls.rabbitmq = broker.url();
    let management = broker.management_url().context("no HTTP API")?;
    let report =
        testbed::adopt(&programs, &root, python, &urls, &management, messages, arguments.seed).await?;
    print(&report, began.elapsed().as_secs(), arguments.json)?;
    anyhow::ensure!(report.is_good(), "this is a bug; the seed is {}", arguments.seed);
    Ok(())
}

fn print(report: &AdoptionReport, seconds: u64, as_json: bool) -> anyhow::Result<()> {
    let seen = |what: &Sightings| {
        let Sightings { first, duplicates, conflicts, unidentified, unsure } = what;
        json!({
            "first": first, "duplicates": duplicates, "conflicts": conflicts, "unidentified": unidentified, "unsure": unsure,
        })
    };
    let AdoptionReport { sent, observed, verdict, effects, seeded, kills, lost, doubled, odd, dead_letters } =
        report;
    let figures = [
        ("sent", seen(sent)),
        ("observed", seen(observed)),
        ("verdict", json!(verdict)),
        ("effects", json!(effects)),
        ("keys_seeded", json!(seeded)),
        ("dead_letters", json!(dead_letters)),
        ("killed", json!(kills)),
        ("lost", json!(lost.len())),
        ("doubled", json!(doubled.len())),
        ("odd", json!(odd.len())),
        ("seconds", json!(seconds)),
    ];
    let rows = figures.iter().map(|(what, value)| {
        (what.replace('_', " "), value.to_string().replace(['{', '}', '"'], "").replace(',', ", "))
    });
    let found = [("lost", lost), ("doubled", doubled), ("odd", odd)];
    let lines = found
        .iter()
        .flat_map(|(what, names)| names.iter().take(10).map(move |name| format!("\n  {what}: {name}")));
    let text = judgement::table(rows) + &lines.collect::<String>();
    let object = figures.iter().map(|(name, value)| (*name, value.clone())).collect();
    judgement::print(&text, as_json.then_some(&object))
}
