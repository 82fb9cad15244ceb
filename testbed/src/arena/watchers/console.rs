//! A console that runs all the time.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::browsers::Desk;
use super::delays::{Delays, Lateness};
use super::{ArenaConfig, Notes};
use crate::arena::member::environment;
use crate::checker::What;
use crate::{Browser, Process, Urls, eventually_within};

/// From the start to the link.
const START: Duration = Duration::from_secs(30);
/// From SIGTERM to the end.
const END: Duration = Duration::from_secs(40);

/// A console, and who sits before it.
pub(super) struct Console {
    name: String,
    process: Process,
    desk: Desk,
    notes: Notes,
    operates: bool,
}

impl Console {
    pub(super) async fn start(
        config: &ArenaConfig,
        folder: &Path,
        urls: &Urls,
        number: usize,
        lateness: &Lateness,
        notes: &Notes,
        stop: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let name = format!("console-{number}");
        let own = environment(folder, urls);
        let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let log = folder.join(format!("{name}.log"));
        let process = Process::start(&config.oncely, &["console", "--listen", "127.0.0.1:0"], &own, &log)?;
        let link = eventually_within(START, "a console's link", || async {
            let output = process.output();
            Browser::links(&output).last().map(str::to_owned).ok_or(output)
        });
        let browser = Browser::follow(&link.await?).await.with_context(|| name.clone())?;
        let desk = Desk {
            console: name.clone(),
            browser,
            consumer: config.consumer.clone(),
            delays: Delays { process: process.id(), ours: lateness.clone() },
            notes: notes.clone(),
            stop: stop.clone(),
        };
        Ok(Self { name, process, desk, notes: notes.clone(), operates: number == 1 })
    }

    /// Until all are told to stop, or the console ends.
    pub(super) async fn run(mut self) {
        let process = &mut self.process;
        let ended = async {
            loop {
                if let Some(status) = process.status() {
                    break status;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let desk = &self.desk;
        let watched = async {
            tokio::join!(desk.read(0), desk.read(3), desk.follow(), async {
                if self.operates {
                    desk.operate().await;
                }
            });
            desk.look_at_all().await;
        };
        let status = tokio::select! {
            status = ended => Some(status),
            () = watched => None,
        };
        let wrong = match status {
            Some(status) => Some(format!("{}: {status}", self.name)),
            None => match self.process.terminate(END).await {
                Ok(status) if status.success() => None,
                Ok(status) => Some(format!("{} at the end: {status}", self.name)),
                Err(error) => Some(format!("{} at the end: {error:#}", self.name)),
            },
        };
        if let Some(text) = wrong {
            self.notes.report(What::WatcherEnded, text);
        }
        if self.process.output().contains("panicked") {
            self.notes.report(What::WatcherPanicked, self.name);
        }
    }
}
