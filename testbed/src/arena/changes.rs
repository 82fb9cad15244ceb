//! What is changed while messages are in flight: configuration, handler, tables, topology, build.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::config::RUNGS;
use super::{Arena, Member};
use crate::checker::Ladder;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What is compared when a key comes back.
    Fingerprint(&'static str),
    /// For how many days a key is remembered. Longer only: a shorter one is an operator's act.
    Retention(u32),
    /// When a failed message comes back: one of two ladders.
    Retry(usize),
    /// Batch, lanes, prefetch.
    Size(u32, u32),
    /// The handler's function is another one of the same name.
    Handler,
    /// A table that the handler writes to gets a column, or loses it again.
    Table,
    /// The dead-letter exchange and empty retry queues are deleted, and applied again.
    Topology,
    /// A worker runs from another folder, or from its own again.
    Build(usize),
}

/// The ladders, as TOML and as the judge reads them. They share their queues' names with no other delay.
const LADDERS: [(&str, &[f64]); 2] = [
    ("{ delays = [\"200ms\", \"1s\"], max_attempts = 5 }", &[0.2, 1.0]),
    ("{ delays = [\"200ms\", \"500ms\", \"1s\"], max_attempts = 5 }", &[0.2, 0.5, 1.0]),
];

impl Change {
    /// For reports.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Arena {
    /// Makes a change as a careful operator does: workers end in order, one after another, and begin with it.
    pub async fn change(&mut self, change: &Change) -> anyhow::Result<()> {
        match change {
            Change::Fingerprint(policy) => {
                // From now on two payloads of a key may be taken for the same: they can't be compared.
                self.evidence.alike = true;
                self.reconfigure(&[("consumer", "fingerprint", format!("{policy:?}"))]).await
            }
            Change::Retention(days) => {
                let kept = self.evidence.retention.map_or(i64::from(*days), |(kept, _)| kept);
                self.evidence.retention = Some((kept, i64::from(*days).max(kept)));
                self.reconfigure(&[("consumer", "retention", format!("\"{days}d\""))]).await
            }
            Change::Retry(number) => {
                let (text, delays) = LADDERS[number % LADDERS.len()];
                self.evidence.meanwhile.ladders.push(Ladder { delays: delays.to_vec(), ..Ladder::default() });
                self.config = self.config.clone().set("consumer", "retry", text);
                self.write_configuration()?;
                self.oncely(&["topology", "apply"]).await?;
                self.reconfigure(&[]).await
            }
            Change::Size(batch, lanes) => {
                let prefetch = 2 * batch * lanes;
                self.reconfigure(&[
                    ("consumer", "batch", batch.to_string()),
                    ("consumer", "lanes", lanes.to_string()),
                    ("consumer", "prefetch", prefetch.to_string()),
                ])
                .await
            }
            Change::Handler => {
                // The same words: what is prepared for the function it was is not for the one it is.
                self.sql(
                    "do $$ begin execute pg_get_functiondef('judge.take(oncely.message)'::regprocedure); end $$",
                )
                .await
            }
            Change::Table => {
                self.sql(
                    "do $$
                     begin
                         set local lock_timeout = '5s';
                         alter table judge.log add column note text;
                     exception when duplicate_column then
                         alter table judge.log drop column note;
                     end $$",
                )
                .await
            }
            Change::Topology => self.delete_topology().await,
            Change::Build(number) => self.swap_build(*number).await,
        }
    }

    /// Another folder of programs, for [`Change::Build`].
    pub fn set_other_build(&mut self, folder: PathBuf) {
        self.other_build = Some(folder);
    }

    fn write_configuration(&self) -> anyhow::Result<()> {
        std::fs::write(self.scratch.path().join("oncely.toml"), self.config.toml(&self.queue))?;
        Ok(())
    }

    async fn reconfigure(&mut self, settings: &[(&str, &str, String)]) -> anyhow::Result<()> {
        for (section, key, value) in settings {
            self.config = self.config.clone().set(section, key, value);
        }
        self.write_configuration()?;
        for number in 0..self.workers.len() {
            self.restart_worker(number, None).await?;
        }
        Ok(())
    }

    async fn restart_worker(&mut self, number: usize, program: Option<PathBuf>) -> anyhow::Result<()> {
        let worker = self.workers.get_mut(number).context("no such worker")?;
        self.exits.extend(restart(worker, program).await?);
        Ok(())
    }

    /// From now on `oncely` is this folder's; workers and relays go on as they are.
    pub fn release(&mut self, folder: &Path) {
        self.config.oncely = folder.join("oncely");
        self.config.binaries = folder.to_owned();
    }

    /// Ends a worker in order and starts this folder's in its place.
    pub async fn roll_worker(&mut self, number: usize, folder: &Path) -> anyhow::Result<()> {
        self.restart_worker(number, Some(folder.join("worker"))).await
    }

    /// Ends a relay in order and starts this folder's in its place.
    pub async fn roll_relay(&mut self, number: usize, folder: &Path) -> anyhow::Result<()> {
        let relay = self.relays.get_mut(number).context("no such relay")?;
        self.exits.extend(restart(relay, Some(folder.join("relay"))).await?);
        Ok(())
    }

    async fn swap_build(&mut self, number: usize) -> anyhow::Result<()> {
        let Some(other) = self.other_build.clone() else { return Ok(()) };
        let number = number % self.workers.len().max(1);
        let here = self.config.binaries.join("worker");
        let there = other.join("worker");
        let now = self.workers.get(number).context("no such worker")?.process.program().to_owned();
        self.restart_worker(number, Some(if now == here { there } else { here })).await
    }

    /// The way to the dead-letter queue goes, and retry queues in which nothing waits; then all is declared again. Never what messages
    /// come back through by themselves: the broker would drop them.
    async fn delete_topology(&mut self) -> anyhow::Result<()> {
        self.broker().await?.delete_exchange(&format!("{}.dlx", self.queue)).await?;
        for rung in RUNGS {
            // Where something waits the broker refuses, and ends the channel.
            let broker = self.broker().await?;
            let _ = broker.delete_queue_if_empty(&format!("{}.retry.{rung}", self.queue)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.oncely(&["topology", "apply"]).await
    }
}

/// Ends a process in order, and starts it again, perhaps as another program. What it said where it did not end in order.
async fn restart(member: &mut Member, program: Option<PathBuf>) -> anyhow::Result<Option<String>> {
    let exit = match member.process.terminate(Duration::from_secs(40)).await {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{} for a change: {status}", member.name)),
        Err(error) => Some(format!("{} for a change: {error:#}", member.name)),
    };
    if let Some(program) = program {
        member.process.become_program(program);
    }
    member.process.start_again()?;
    Ok(exit)
}
