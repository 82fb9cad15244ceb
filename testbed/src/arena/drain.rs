//! The end of a trial: until all that was confirmed has ended somewhere.

use std::time::{Duration, Instant};

use sqlx::Row as _;

use super::Arena;
use super::config::RUNGS;
use crate::checker::{Invariant, Letter, Violation, What, drain_queue, judge};

/// Longest wait for the end of all work.
const LIMIT: Duration = Duration::from_secs(150);
/// So long before the end no more witnesses are called.
const WITNESSES: Duration = Duration::from_secs(5);
/// Nothing moves for so long: nothing will, since each fault has ended.
const STUCK: Duration = Duration::from_secs(45);

/// Work that is not over.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
enum Undone {
    /// The publisher has some left.
    Unpublished,
    /// Messages of the work queue.
    Ready(u32),
    Events,
    /// Orders under leases, described.
    Charges(String),
    /// Messages without an end.
    Messages(Violation),
    MirrorQueue(i64),
}

impl Arena {
    /// Waits until everything published has ended, stops all processes, and takes what the queues still hold.
    pub async fn drain(&mut self) -> anyhow::Result<()> {
        self.drain_within(LIMIT).await
    }

    /// The same with another limit, for trials that are expected to leave something undone.
    pub async fn drain_within(&mut self, limit: Duration) -> anyhow::Result<()> {
        if let Some(neighbours) = self.neighbours.take() {
            self.junk.extend(neighbours.stop().await);
        }
        if let Some(watchers) = self.watchers.take() {
            self.evidence.watched = watchers.stop().await;
        }
        if let Some(application) = self.application.take() {
            self.rolled_back += application.stop().await;
        }
        let quiet = self.config.quiet();
        let start = Instant::now();
        let mut last = (Vec::new(), Instant::now());
        let mut done = false;
        let mut undone = Undone::Unpublished;
        loop {
            self.supervise()?;
            self.look_at_tenants().await?;
            if let Ok(counts) = self.read_counts().await
                && counts != last.0
            {
                last = (counts, Instant::now());
                done = false;
            }
            if self.unpublished() == 0 && !done && last.1.elapsed() > quiet / 2 {
                let found = self.find_undone().await?;
                done = found.is_none();
                undone = found.unwrap_or(undone);
                if !done && start.elapsed() + WITNESSES < limit {
                    self.publish_witnesses();
                }
            }
            if done && last.1.elapsed() > quiet {
                break;
            }
            if start.elapsed() > limit || last.1.elapsed() > STUCK {
                eprintln!("draining ended after {:.0?} with work undone: {undone:?}", start.elapsed());
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.stop_doors().await?;
        self.stop_gateways().await?;
        self.stop_observer().await?;
        self.stop_charging().await?;
        self.stop().await;
        self.take_dead_letters().await?;
        for rung in RUNGS {
            let queue = format!("{}.retry.{rung}", self.queue);
            // Not each ladder has each of them.
            if self.broker().await?.ready(&queue).await.is_ok() {
                let letters = self.take_all(&queue).await?;
                self.evidence.queued.extend(letters);
            }
        }
        // The work queue last, and not by its count: what waited for a retry may just be on its way back into it.
        let url = self.servers.urls().rabbitmq.clone();
        self.evidence.queued.extend(drain_queue(&url, &self.queue, quiet / 2).await?);
        if !self.config.plain {
            self.evidence.events.read(&mut self.connect().await?).await?;
            self.evidence.events.take(&url).await?;
        }
        self.sample_mirror().await
    }

    /// What moves while there is work.
    async fn read_counts(&mut self) -> anyhow::Result<Vec<i64>> {
        let mut connection = self.connect().await?;
        let row = sqlx::query(
            "select (select count(*) from judge.log), (select count(*) from oncely.audit),
                (select count(*) from oncely.mirror_queue), 
                (select count(*) from oncely.events where tenant <> 'stranger')",
        )
        .fetch_one(&mut connection)
        .await?;
        Ok(vec![row.get(0), row.get(1), row.get(2), row.get(3)])
    }

    /// Returns the first kind of work that is left.
    async fn find_undone(&mut self) -> anyhow::Result<Option<Undone>> {
        let ready = self.broker().await?.ready(&self.queue).await?;
        if ready > 0 {
            return Ok(Some(Undone::Ready(ready)));
        }
        if self.read_counts().await?.last().is_none_or(|events| *events > 0) {
            return Ok(Some(Undone::Events));
        }
        if self.config.watched {
            // A letter may be requeued before its copy has come to the queue: whoever sweeps then finds nothing of it. The next one does.
            self.oncely(&["failed", "sweep"]).await?;
        }
        self.take_dead_letters().await?;
        if let Some(left) = self.find_uncharged().await? {
            return Ok(Some(Undone::Charges(left)));
        }
        let mut connection = self.connect().await?;
        self.evidence.read_tables(&mut connection, &self.config.consumer).await?;
        // What is charged is not yet read.
        let lost = judge(&self.sent(), &self.evidence)
            .into_iter()
            .find(|violation| (violation.invariant, violation.what) == (Invariant::I2, What::Lost));
        if let Some(lost) = lost {
            return Ok(Some(Undone::Messages(lost)));
        }
        Ok((self.evidence.mirror_queue > 0).then_some(Undone::MirrorQueue(self.evidence.mirror_queue)))
    }

    async fn take_dead_letters(&mut self) -> anyhow::Result<()> {
        let letters = self.take_all(&format!("{}.dead", self.queue)).await?;
        self.evidence.dead.extend(letters);
        Ok(())
    }

    /// What lies in a queue that nobody reads.
    async fn take_all(&self, queue: &str) -> anyhow::Result<Vec<Letter>> {
        match self.broker().await?.ready(queue).await? {
            0 => Ok(Vec::new()),
            _ => drain_queue(&self.servers.urls().rabbitmq, queue, Duration::from_millis(500)).await,
        }
    }

    /// Sends SIGTERM to the workers, then to the relays, which have what the workers leave them; each must end in order.
    async fn stop(&mut self) {
        for members in [&mut self.workers, &mut self.relays] {
            let ends = members.iter_mut().map(|member| async {
                match member.process.terminate(Duration::from_secs(40)).await {
                    Ok(status) if status.success() => None,
                    Ok(status) => Some(format!("{} at the end: {status}", member.name)),
                    Err(error) => Some(format!("{} at the end: {error:#}", member.name)),
                }
            });
            self.exits.extend(futures::future::join_all(ends).await.into_iter().flatten());
        }
    }
}
