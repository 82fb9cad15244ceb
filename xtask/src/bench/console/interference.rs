//! What it costs the workers that people look at consoles.
//!
//! One run is drained as fast as it goes; in windows of five seconds people look, and in others they don't. What a message costs the broker
//! differs twofold from run to run and grows or falls with the backlog: windows of one run in the order without, with, with, without
//! leave that out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::PgConnection;
use tokio_util::task::AbortOnDropHandle;

use super::super::case::find;
use super::super::job::{Handler, Job, Ours, QueueType};
use super::super::measured::check;
use super::super::outcome::{Outcome, rounded};
use super::super::round::Rounds;
use super::super::run::{count_drawn, until};
use super::super::site::{Member, Site};
use super::super::stats::median;
use super::super::verify::verify;
use super::browser::Browser;
use super::pages::Console;

/// Consoles that are looked at.
const CONSOLES: usize = 3;
/// So many times the messages of a usual run: windows take time.
const LONGER: u64 = 30;
/// As the pages' script asks again: each page once a window.
const WINDOW: Duration = Duration::from_secs(5);
/// Is somebody looking? Windows are compared by fours.
const PATTERN: [bool; 4] = [false, true, true, false];
/// What each of them keeps open, in windows of its own.
const OPEN: [&str; 3] = ["/", "/consumers", "/keys"];

/// Rate while three consoles are looked at / while nobody looks.
pub(crate) async fn interference(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    const NAME: &str = "console_interference";
    let messages = rounds.messages * LONGER;
    let job = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, messages);
    let (mut ratios, mut rates, mut pages) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds.rounds {
        rounds.say(NAME, round);
        let mut site = Site::prepare(rounds.stage, &job).await?;
        site.fill(u64::from(round)).await?;
        let (windows, read) = measure_windows(&mut site).await?;
        site.clear().await?;
        pages += read;
        for four in windows.chunks_exact(PATTERN.len()) {
            let sum = |looked: bool| -> f64 {
                four.iter().zip(PATTERN).filter(|(_, pattern)| *pattern == looked).map(|(rate, _)| rate).sum()
            };
            ratios.push(sum(true) / sum(false));
        }
        rates.extend(windows);
    }
    anyhow::ensure!(!ratios.is_empty(), "the messages were gone before four windows: use more (--messages)");
    let outcome = find(NAME).map(|case| {
        Outcome::new(case, ratios)
            .note("pages_read", json!(pages))
            .note("windows", json!(rates.len()))
            .note("rate", json!(rounded(median(&rates))))
    });
    Ok(outcome.into_iter().collect())
}

/// Drains a filled site; the rates of its windows, and the pages that were read.
async fn measure_windows(site: &mut Site<'_>) -> anyhow::Result<(Vec<f64>, u64)> {
    let mut watch = site.connect().await?;
    let mut looking = Looking::begin(site).await?;
    let mut members = site.start()?;
    until(&mut watch, &mut members, 1).await?;
    let due = site.job.messages;
    let mut rates = Vec::new();
    for looked in PATTERN.into_iter().cycle() {
        if looked {
            looking.open();
        } else {
            looking.close().await?;
        }
        let (begun, began) = (count_drawn(&mut watch).await?, Instant::now());
        let done = wait_for_window(&mut watch, &mut members).await? - begun;
        // The last one has an end in it, when nothing is left.
        if begun + done + done / 2 >= due {
            break;
        }
        rates.push(done as f64 / began.elapsed().as_secs_f64());
    }
    looking.close().await?;
    until(&mut watch, &mut members, due).await?;
    site.wait_until_acknowledged().await?;
    let pages = looking.end().await?;
    site.finish(members).await?;
    verify(site, &mut watch, due).await?;
    Ok((rates, pages))
}

/// Waits for a window to end; how many effects there are then.
async fn wait_for_window(watch: &mut PgConnection, members: &mut [Member]) -> anyhow::Result<u64> {
    tokio::time::sleep(WINDOW).await;
    check(members)?;
    count_drawn(watch).await
}

/// Consoles, and browsers at them.
#[derive(Debug)]
struct Looking {
    consoles: Vec<Console>,
    pages: Arc<AtomicU64>,
    windows: Vec<AbortOnDropHandle<anyhow::Result<()>>>,
}

impl Looking {
    async fn begin(site: &mut Site<'_>) -> anyhow::Result<Self> {
        let mut consoles = Vec::new();
        for _ in 0..CONSOLES {
            consoles.push(Console::start(site).await?);
        }
        Ok(Self { consoles, pages: Arc::default(), windows: Vec::new() })
    }

    /// People look, where they don't yet. One of them follows the trail, too.
    fn open(&mut self) {
        if !self.windows.is_empty() {
            return;
        }
        for (number, console) in self.consoles.iter().enumerate() {
            let spawn = |looks| AbortOnDropHandle::new(tokio::spawn(looks));
            for path in OPEN {
                let looks = poll(console.browser.clone(), path, Arc::clone(&self.pages));
                self.windows.push(spawn(Box::pin(looks) as BoxFuture));
            }
            if number == 0 {
                self.windows.push(spawn(Box::pin(follow(console.browser.clone()))));
            }
        }
    }

    /// Nobody looks any more; fails where somebody saw an error.
    async fn close(&mut self) -> anyhow::Result<()> {
        for window in self.windows.drain(..) {
            if window.is_finished() {
                window.await??;
            }
        }
        Ok(())
    }

    /// Ends the consoles; how many pages were read.
    async fn end(self) -> anyhow::Result<u64> {
        for console in self.consoles {
            console.end().await?;
        }
        Ok(self.pages.load(Ordering::Relaxed))
    }
}

type BoxFuture = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A page that stays current.
async fn poll(mut browser: Browser, path: &'static str, pages: Arc<AtomicU64>) -> anyhow::Result<()> {
    loop {
        let answer = browser.poll(path).await?;
        anyhow::ensure!(matches!(answer.status, 200 | 304), "{path}: {}\n{}", answer.status, answer.body);
        pages.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(WINDOW).await;
    }
}

/// Somebody follows the trail, and comes again where the stream ends.
async fn follow(browser: Browser) -> anyhow::Result<()> {
    loop {
        browser.follow("/keys/tail?q=", |_| {}).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}
