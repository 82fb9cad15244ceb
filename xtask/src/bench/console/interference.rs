//! What it costs the workers that people look at consoles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::super::case::find;
use super::super::job::{Handler, Job, Ours, QueueType};
use super::super::outcome::{Outcome, rounded};
use super::super::round::Rounds;
use super::super::site::Site;
use super::super::throughput::ratios;
use super::browser::Browser;
use super::pages::Console;

/// Consoles that are looked at.
const CONSOLES: usize = 3;
/// So many times the messages of a run: pages are asked for every five seconds, and a run of two would see hardly any.
const LONGER: u64 = 10;
/// As the pages' script does it.
const EVERY: Duration = Duration::from_secs(5);
/// What each of them keeps open, in windows of its own.
const OPEN: [&str; 3] = ["/", "/consumers", "/keys"];

/// Rate while three consoles are looked at / while nobody looks.
pub(crate) async fn interference(rounds: &Rounds<'_>) -> anyhow::Result<Vec<Outcome>> {
    const NAME: &str = "console_interference";
    let messages = rounds.messages * LONGER;
    let alone = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, messages);
    let watched = Ours { consoles: CONSOLES, ..Ours::full(Handler::Batch) };
    let watched = Job::ours(watched, QueueType::Classic, messages);
    let (us, them) = rounds.alternate(NAME, &watched, &alone).await?;
    let outcome = find(NAME).map(|case| {
        Outcome::new(case, ratios(&us, &them, |run| run.rate))
            .of(&us, &them)
            .note("pages_read_per_run", json!(us.figure(|run| run.pages as f64).median()))
            .note("seconds_per_run", json!(rounded(us.figure(|run| messages as f64 / run.rate).median())))
    });
    Ok(outcome.into_iter().collect())
}

/// Consoles, and browsers at them that go on looking.
#[derive(Debug)]
pub(crate) struct Looking {
    consoles: Vec<Console>,
    pages: Arc<AtomicU64>,
    windows: Vec<AbortOnDropHandle<anyhow::Result<()>>>,
}

impl Looking {
    /// Opens so many. One of those who look follows the trail, too.
    pub(crate) async fn begin(site: &mut Site<'_>, count: usize) -> anyhow::Result<Self> {
        let mut looking = Self { consoles: Vec::new(), pages: Arc::default(), windows: Vec::new() };
        for number in 0..count {
            let console = Console::start(site).await?;
            for path in OPEN {
                looking.window(poll(console.browser.clone(), path, Arc::clone(&looking.pages)));
            }
            if number == 0 {
                looking.window(follow(console.browser.clone()));
            }
            looking.consoles.push(console);
        }
        Ok(looking)
    }

    fn window(&mut self, looks: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.windows.push(AbortOnDropHandle::new(tokio::spawn(looks)));
    }

    /// Pages that were read so far.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Closes all; fails where somebody saw an error.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        for window in self.windows {
            if window.is_finished() {
                window.await??;
            }
        }
        for console in self.consoles {
            console.end().await?;
        }
        Ok(())
    }
}

/// A window with a page that stays current.
async fn poll(mut browser: Browser, path: &'static str, pages: Arc<AtomicU64>) -> anyhow::Result<()> {
    loop {
        let answer = browser.poll(path).await?;
        anyhow::ensure!(matches!(answer.status, 200 | 304), "{path}: {}\n{}", answer.status, answer.body);
        pages.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(EVERY).await;
    }
}

/// A window that follows the trail; it comes again where the stream ends.
async fn follow(browser: Browser) -> anyhow::Result<()> {
    loop {
        browser.follow("/keys/tail?q=", |_| {}).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}
