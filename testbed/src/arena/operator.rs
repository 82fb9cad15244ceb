//! What an operator does in the meantime: collects, requeues, discards, sweeps, settles, erases; and is broken off in the middle of it.

use std::pin::pin;
use std::time::{Duration, Instant};

use super::Arena;
use crate::checker::FRAGILE;

/// For one command.
const PATIENCE: Duration = Duration::from_secs(180);
/// From one look at the others to the next, while it runs.
const LOOK: Duration = Duration::from_millis(200);

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Requeues what was given up while a schema was missing.
    Requeue,
    /// The same, and dies so many milliseconds after it began.
    RequeueBrokenOff(u64),
    /// Discards what handlers have rejected.
    Discard,
    /// Goes through the dead-letter queue.
    Sweep,
    /// Collects with a file that knows another retention.
    CollectWithAnotherFile,
    /// Settles what was given up because nobody knows what it has called, or lets it be repeated.
    Settle,
    /// Erases the tenant that returns ([`RETURNING`](crate::checker::RETURNING)).
    Erase {
        /// Its rows of the trail, too, which stay under a pseudonym otherwise.
        deletes_trail: bool,
    },
}

impl Arena {
    /// What the schedule would do each day.
    pub async fn collect(&mut self) -> anyhow::Result<()> {
        self.run_operator_verb(&["gc", "run"], None).await
    }

    /// Does an errand. That the servers are away, or that there is nothing to do, is no reason to stop.
    pub async fn run_errand(&mut self, errand: Errand) -> anyhow::Result<()> {
        match errand {
            Errand::Requeue => self.requeue(None).await,
            Errand::RequeueBrokenOff(after) => self.requeue(Some(Duration::from_millis(after))).await,
            Errand::Discard => {
                let discard =
                    ["failed", "discard", "--reason", "handler_rejected", "--yes", "--max", "100000"];
                self.run_operator_verb(&discard, None).await?;
                self.run_sql("select judge.note()".to_owned()).await
            }
            Errand::Settle => self.settle().await,
            Errand::Erase { deletes_trail } => self.erase_returning(deletes_trail).await,
            Errand::Sweep => self.run_operator_verb(&["failed", "sweep"], None).await,
            Errand::CollectWithAnotherFile => {
                let text = self.config.clone().set("consumer", "retention", "\"2d\"").toml(&self.queue);
                std::fs::write(self.scratch.path().join("another.toml"), text)?;
                self.run_operator_verb(
                    &["--config", &self.scratch.path().join("another.toml").to_string_lossy(), "gc", "run"],
                    None,
                )
                .await
            }
        }
    }

    async fn requeue(&mut self, break_off: Option<Duration>) -> anyhow::Result<()> {
        for tenant in FRAGILE {
            let all = ["failed", "requeue", "--tenant", tenant, "--reason", "attempts_exhausted"];
            let arguments: Vec<&str> = all.into_iter().chain(["--yes", "--max", "100000"]).collect();
            self.run_operator_verb(&arguments, break_off).await?;
        }
        Ok(())
    }

    /// Runs `oncely`; its exit code is a matter of the servers' state. It must come to an end, and not by a panic.
    pub(super) async fn run_operator_verb(
        &mut self,
        arguments: &[&str],
        break_off: Option<Duration>,
    ) -> anyhow::Result<()> {
        let mut command = self.oncely_command(arguments);
        command.kill_on_drop(true).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        let child = command.spawn()?;
        // Dropped, it is killed.
        let mut ended = pin!(child.wait_with_output());
        let (begun, limit) = (Instant::now(), break_off.unwrap_or(PATIENCE));
        let output = loop {
            let left = limit.saturating_sub(begun.elapsed());
            match tokio::time::timeout(left.min(LOOK), &mut ended).await {
                Ok(output) => break output,
                Err(_) if begun.elapsed() < limit => {
                    self.supervise()?;
                    self.look_at_tenants().await?;
                    self.publish_witnesses();
                }
                Err(_) => {
                    if break_off.is_none() {
                        self.exits
                            .push(format!("oncely {}: no end within {PATIENCE:?}", arguments.join(" ")));
                    }
                    return Ok(());
                }
            }
        };
        let output = output?;
        if output.status.code().is_none_or(|code| code == 101) {
            let text = String::from_utf8_lossy(&output.stderr);
            self.exits.push(format!("oncely {}: {} {text}", arguments.join(" "), output.status));
        }
        Ok(())
    }
}
