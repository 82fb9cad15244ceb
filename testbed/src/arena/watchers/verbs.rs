//! `oncely top`, which never ends; `oncely doctor` and `oncely status`, one after the other.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::super::start::oncely_command;
use super::{ArenaConfig, Notes};
use crate::Urls;
use crate::checker::What;

/// For one program.
const PATIENCE: Duration = Duration::from_secs(60);
/// From one line of `top` to the next: it waits four seconds for a server, and the machine is busy.
const SILENCE: Duration = Duration::from_secs(30);
/// From one program to the next.
const PAUSE: Duration = Duration::from_secs(3);
/// What they say by their exit code: all is well, something needs a look, a server does not answer, messages stand still.
const CODES: [i32; 4] = [0, 1, 3, 5];
/// A server does not answer.
const AWAY: i32 = 3;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Verbs {
    config: ArenaConfig,
    folder: PathBuf,
    urls: Urls,
    notes: Notes,
    stop: CancellationToken,
}

impl Verbs {
    pub(super) fn new(
        config: &ArenaConfig,
        folder: &Path,
        urls: &Urls,
        notes: &Notes,
        stop: &CancellationToken,
    ) -> Self {
        let (config, folder, urls) = (config.clone(), folder.to_owned(), urls.clone());
        Self { config, folder, urls, notes: notes.clone(), stop: stop.clone() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = oncely_command(&self.config, &self.folder, &self.urls, arguments);
        command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// All the time; started again when it ends.
    pub(super) async fn run_top(self) {
        while !self.stop.is_cancelled() {
            match self.command(&["top", "--json"]).spawn() {
                Ok(child) => self.read_top(child).await,
                Err(error) => self.notes.report(What::WatcherEnded, format!("oncely top: {error}")),
            }
            self.pause(Duration::from_millis(500)).await;
        }
    }

    async fn read_top(&self, mut child: Child) {
        if let Some(stdout) = child.stdout.take() {
            let mut lines = BufReader::new(stdout).lines();
            loop {
                let line = tokio::select! {
                    line = tokio::time::timeout(SILENCE, lines.next_line()) => line,
                    () = self.stop.cancelled() => break,
                };
                match line {
                    Ok(Ok(Some(line))) if is_json(&line, "top") => {
                        self.notes.note(|watched| watched.lines += 1);
                    }
                    Ok(Ok(Some(line))) => {
                        self.notes.report(What::WatcherWrong, format!("oncely top: {} bytes", line.len()));
                    }
                    Ok(Ok(None) | Err(_)) => break,
                    Err(_) => {
                        self.notes.report(What::WatcherSlow, format!("oncely top: silent for {SILENCE:?}"));
                        break;
                    }
                }
            }
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::TERM);
            }
            // While its output is open: it may be about to write a line.
            self.end("top", child).await;
            drop(lines);
        }
    }

    /// `doctor` and `status`, again and again.
    pub(super) async fn run_in_turn(self) {
        while !self.stop.is_cancelled() {
            for verb in ["doctor", "status"] {
                match self.command(&[verb, "--json"]).spawn() {
                    Ok(child) => {
                        if let Some(output) = self.end(verb, child).await {
                            self.judge(verb, &output);
                        }
                    }
                    Err(error) => self.notes.report(What::WatcherEnded, format!("oncely {verb}: {error}")),
                }
                self.pause(PAUSE).await;
            }
        }
    }

    /// Waits for a program's end.
    async fn end(&self, verb: &str, child: Child) -> Option<Output> {
        let output = match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                self.notes.report(What::WatcherEnded, format!("oncely {verb}: {error}"));
                return None;
            }
            Err(_) => {
                self.notes.report(What::WatcherEnded, format!("oncely {verb}: no end within {PATIENCE:?}"));
                return None;
            }
        };
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(code) if CODES.contains(&code) => {
                self.notes.note(|watched| watched.record_end(&format!("{verb} {code}")))
            }
            _ => self
                .notes
                .report(What::WatcherEnded, format!("oncely {verb}: {} {}", output.status, said.trim())),
        }
        if said.contains("panicked") {
            self.notes.report(What::WatcherPanicked, format!("oncely {verb}: {}", said.trim()));
        }
        Some(output)
    }

    /// It says how it stands, or, in one sentence, which server does not answer.
    fn judge(&self, verb: &str, output: &Output) {
        let text = String::from_utf8_lossy(&output.stdout);
        let is_away = text.is_empty() && output.status.code() == Some(AWAY) && !output.stderr.is_empty();
        if !is_away && !is_json(&text, verb) {
            let said = String::from_utf8_lossy(&output.stderr);
            let text = format!("oncely {verb}: {}, {} bytes, {}", output.status, text.len(), said.trim());
            self.notes.report(What::WatcherWrong, text);
        }
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// One object of this verb's schema.
fn is_json(text: &str, verb: &str) -> bool {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let schema = value.as_ref().and_then(|value| value.get("schema")).and_then(Value::as_str);
    schema.is_some_and(|schema| schema.starts_with(&format!("oncely.{verb}/")))
}
