//! Who watches: consoles with their browsers, `top`, `doctor` and `status`, all the time. None of them may hold a message up, and each must
//! survive what befalls the servers, and say how it stands.

mod browsers;
mod console;
mod delays;
mod verbs;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::console::Console;
use self::delays::Lateness;
use self::verbs::Verbs;
use super::ArenaConfig;
use super::member::address;
use crate::checker::{Watched, What};
use crate::{Database, Urls};

/// Consoles at the same time. In the first one somebody acts.
const CONSOLES: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Watchers {
    stop: CancellationToken,
    notes: Notes,
    tasks: Vec<JoinHandle<()>>,
    lateness: JoinHandle<()>,
}

/// What is noted, by all of them.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Watched>>);

impl Notes {
    fn note(&self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn report(&self, what: What, text: String) {
        self.note(|watched| watched.wrong.push((what, text)));
    }
}

impl Watchers {
    /// Starts them; each console has let its browsers in.
    pub(super) async fn start(
        config: &ArenaConfig,
        folder: &Path,
        urls: &Urls,
        database: &Database,
    ) -> anyhow::Result<Self> {
        let server = address(&urls.postgres)?;
        let postgres = format!("postgres://arena_operator@{server}/{}", database.name());
        let urls = Urls { postgres, ..urls.clone() };
        let (stop, notes) = (CancellationToken::new(), Notes::default());
        let (lateness, watching) = Lateness::start();
        let mut tasks = Vec::new();
        for number in 1..=CONSOLES {
            let console = Console::start(config, folder, &urls, number, &lateness, &notes, &stop).await?;
            tasks.push(tokio::spawn(console.run()));
        }
        let verbs = Verbs::new(config, folder, &urls, &notes, &stop);
        tasks.push(tokio::spawn(verbs.clone().run_top()));
        tasks.push(tokio::spawn(verbs.run_in_turn()));
        Ok(Self { stop, notes, tasks, lateness: watching })
    }

    /// Lets them end; returns what they saw.
    pub(super) async fn stop(self) -> Watched {
        self.stop.cancel();
        for task in self.tasks {
            if let Err(error) = task.await {
                self.notes.report(What::WatcherWrong, format!("the harness: {error}"));
            }
        }
        self.lateness.abort();
        self.notes.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
