//! How soon an event is published after its transaction's COMMIT, and what a relay costs that has nothing to publish.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use testbed::eventually_within;

use super::case::find;
use super::job::{Job, Publisher};
use super::meter::Reading;
use super::outcome::{Figure, Outcome, rounded};
use super::round::Rounds;
use super::site::{ROUTING_KEY, Site};

/// The cases, by events a second.
pub(crate) const CASES: [(&str, u64); 3] =
    [("event_delay_1", 1), ("event_delay_100", 100), ("event_delay_1000", 1_000)];

/// The longest 99th percentile, in milliseconds.
const LONGEST: f64 = 10.0;
/// Seconds at the beginning that don't count, and those that do.
const WARM_UP: u64 = 3;
const SPAN: u64 = 20;
/// How long an idle relay is looked at.
const IDLE: Duration = Duration::from_secs(30);

fn job(events: u64) -> Job {
    Job::publisher(Publisher::Relay { ordering_keys: 0 }, events)
}

/// From the call of COMMIT to the event's arrival at a consumer, at a fixed rate.
pub(crate) async fn delays(
    rounds: &Rounds<'_>,
    name: &'static str,
    rate: u64,
) -> anyhow::Result<Vec<Outcome>> {
    let (mut medians, mut worst, mut cpu) = (Vec::new(), Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    for round in 0..rounds.rounds {
        rounds.say(name, round);
        let mut site = Site::prepare(rounds.stage, &job(rate * (WARM_UP + SPAN))).await?;
        site.settle().await?;
        let members = site.start()?;
        let mut watch = site.connect().await?;
        let before = Reading::take(site.stage, &members, &mut watch).await?;
        let (events, rate, warm_up) =
            (site.job.messages.to_string(), rate.to_string(), (rate * WARM_UP).to_string());
        let arguments = [
            "emit",
            "--exchange",
            &site.queue,
            "--routing-key",
            ROUTING_KEY,
            "--queue",
            &site.queue,
            "--events",
            &events,
            "--rate",
            &rate,
            "--warm-up",
            &warm_up,
        ];
        let told: Value =
            serde_json::from_str(&site.stage.ask("bench", &arguments, &site.environment()).await?)?;
        if rounds.stage.pids {
            eprintln!("{name}: {told}");
        }
        medians.push(told["p50_ms"].as_f64().context("no median")?);
        worst.push(told["p99_ms"].as_f64().context("no percentile")?);
        for (role, used) in Reading::take(site.stage, &members, &mut watch).await?.since(&before).cpu {
            cpu.entry(role.to_string())
                .or_default()
                .push(used.as_secs_f64() * 1e6 / site.job.messages as f64);
        }
        site.finish(members).await?;
        site.clear().await?;
    }
    let worst = Figure(worst).median();
    let cpu: BTreeMap<String, f64> =
        cpu.into_iter().map(|(role, used)| (role, rounded(Figure(used).median()))).collect();
    let outcome = find(name).map(|case| {
        Outcome::new(case, medians)
            .note("p99_ms", json!(rounded(worst)))
            .note("cpu_us", json!(cpu))
            .unless(worst > LONGEST, || format!("the 99th percentile is {worst:.1} ms; at most {LONGEST} ms"))
    });
    Ok(outcome.into_iter().collect())
}

/// Cores that a relay uses without work.
pub(crate) async fn idle(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    let (mut cores, mut postgres) = (Vec::new(), Vec::new());
    for round in 0..rounds.rounds {
        rounds.say("relay_idle", round);
        let mut site = Site::prepare(rounds.stage, &job(1)).await?;
        site.settle().await?;
        let members = site.start()?;
        let mut watch = site.connect().await?;
        // One event, so that its connection to the broker is open.
        let event = "select oncely.emit($1, $2, 'first'::text, tenant => 'shop')";
        sqlx::query(event).bind(&site.queue).bind(ROUTING_KEY).execute(&mut watch).await?;
        let broker = site.broker().await?;
        eventually_within(Duration::from_secs(30), "the event is published", || async {
            let (ready, _) = broker.depth(&site.queue).await?;
            anyhow::ensure!(ready == 1, "{ready} messages");
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (before, began) = (Reading::take(site.stage, &members, &mut watch).await?, Instant::now());
        tokio::time::sleep(IDLE).await;
        let usage = Reading::take(site.stage, &members, &mut watch).await?.since(&before);
        let seconds = began.elapsed().as_secs_f64();
        let of = |role: &str| usage.cpu.get(role).map_or(0.0, Duration::as_secs_f64) / seconds;
        cores.push(of("relay"));
        postgres.push(rounded(of("postgres")));
        broker.purge(&site.queue).await?;
        site.finish(members).await?;
        site.clear().await?;
    }
    let outcome =
        find("relay_idle").map(|case| Outcome::new(case, cores).note("postgres_cores", json!(postgres)));
    Ok(outcome.into_iter().collect())
}
