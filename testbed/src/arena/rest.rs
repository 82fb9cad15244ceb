//! What a trial does between its faults: it rests, workers die twice with the same message, and a tenant comes back whose keys are forgotten.

use std::time::{Duration, Instant};

use super::Arena;
use crate::checker::{Act, Class, FORGOTTEN, Intent};

/// Messages of the tenant that comes back, each time.
const KEYS: usize = 10;
/// Longest wait for what workers take up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Sessions in which the gate's message is at work, and those of processes that have died, which end when they look for their client.
const AT_THE_GATE: &str = "select pid from pg_stat_activity
    where datname = current_database() and usename = 'arena_worker' and wait_event = 'advisory'";
/// Keys of a tenant that are remembered, and its effects.
const REMEMBERED: &str = "select (select count(*) from oncely.idempotency_keys where tenant = $1), (select count(*) from judge.log where tenant = $1)";

impl Arena {
    /// Publishes nothing for so long: sessions and connections rest.
    pub async fn rest(&mut self, time: Duration) -> anyhow::Result<()> {
        let since = Instant::now();
        while since.elapsed() < time {
            self.supervise()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// All workers die in the middle of a message, and once more when one of them is in the middle of it again. The third run is alone.
    pub async fn die_twice(&mut self, number: usize) -> anyhow::Result<()> {
        self.evidence.fairness.begin_fault();
        let gate = self.shut_gates().await?;
        self.publish(vec![Intent::new("tenant-00", &format!("gate-{number}"), Act::Gate, 0)]);
        for _ in 0..2 {
            let Some(sessions) = self.wait_at_gate().await? else { break };
            self.note_deaths(self.workers.len());
            self.workers.iter_mut().try_for_each(|worker| worker.process.kill_and_restart())?;
            // As soon as the server sees that nobody is at the other end.
            sqlx::query("select pg_terminate_backend(pid) from unnest($1) as pid")
                .bind(sessions)
                .execute(&mut self.connect().await?)
                .await?;
        }
        gate.open().await?;
        self.evidence.fairness.end_fault();
        self.evidence.fairness.run_one_by_one(self.started.elapsed());
        Ok(())
    }

    /// Waits until the message is at work; not for ever, because a bug may keep it from that.
    async fn wait_at_gate(&mut self) -> anyhow::Result<Option<Vec<i32>>> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            self.supervise()?;
            let sessions: Vec<i32> =
                sqlx::query_scalar(AT_THE_GATE).fetch_all(&mut self.connect().await?).await?;
            if !sessions.is_empty() {
                return Ok(Some(sessions));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(None)
    }

    /// Sends a tenant's keys again where all of them are forgotten that have taken effect.
    pub async fn send_what_is_forgotten(&mut self) -> anyhow::Result<()> {
        let (keys, effects): (i64, i64) =
            sqlx::query_as(REMEMBERED).bind(FORGOTTEN).fetch_one(&mut self.connect().await?).await?;
        // Before the books: then they know all that was sent.
        let is_sent = self.publisher.pending() == 0;
        let sent = self.sent();
        let versions = sent.keys().filter(|((tenant, _), _)| tenant == FORGOTTEN).flat_map(|(_, all)| all);
        let due = versions.filter(|version| version.class == Class::Confirmed).count();
        if keys == 0 && is_sent && usize::try_from(effects)? >= due {
            let version = self.forgotten;
            self.forgotten += 1;
            let message = |number| Intent::new(FORGOTTEN, &format!("key-{number}"), Act::Work, version);
            self.publish((0..KEYS).map(message).collect());
        }
        Ok(())
    }
}
