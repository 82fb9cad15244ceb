//! A place for trials and for the demo: servers, real workers and relays (in a trial behind proxies), a publisher with books, faults,
//! and the judge at the end.
//!
//! ```no_run
//! # async fn run() -> anyhow::Result<()> {
//! use testbed::checker::{Act, Intent};
//! use testbed::faults::{Fault, Kind};
//! use testbed::{Arena, ArenaConfig};
//!
//! let mut arena = Arena::start(ArenaConfig::new("target/debug".into()).set("consumer", "batch", "10")).await?;
//! arena.publish((0..1_000).map(|n| Intent::new("acme", &n.to_string(), Act::Work, 0)).collect());
//! arena.run_fault(&Fault::of(Kind::KillWorker)).await?;
//! arena.drain().await?;
//! assert_eq!(arena.check().await?, []);
//! # Ok(())
//! # }
//! ```

mod application;
mod calendar;
mod changes;
mod charging;
mod config;
mod controls;
mod crew;
mod doors;
mod drain;
mod gateways;
mod hosts;
mod member;
mod neighbour;
mod neighbours;
mod observer;
mod operator;
mod publisher;
mod rare;
mod requester;
mod rest;
mod returning;
mod settling;
mod shops;
mod start;
mod tenants;
mod watchers;
mod witnesses;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::{PgConnection, Row as _};

use application::Application;
pub use changes::Change;
use charging::Charging;
pub use config::ArenaConfig;
pub use controls::Gate;
pub use crew::Strike;
use doors::Doors;
use gateways::Gateways;
pub use hosts::Hosts;
use member::address;
pub use member::{Member, Server};
pub use neighbour::Neighbour;
use neighbours::Neighbours;
use observer::Observer;
pub use operator::Errand;
use publisher::Publisher;
pub use rare::Rare;
use rare::RareStates;
use start::oncely_command;
pub use tenants::Missing;
use watchers::Watchers;
use witnesses::Witnesses;

use crate::checker::mirror::{self, Entry};
use crate::checker::{self, Evidence, FRAGILE, Intent, Key, RECOVERY_LIMIT, Sent, UNCOUNTED, Violation};
use crate::{Database, Postgres, RabbitMq, Redis, Scratch, Servers};

/// From one look at the tenants to the next.
const LOOK: Duration = Duration::from_millis(1_000);
/// Longest wait for those who are behind, before days go by.
const CATCH_UP: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Arena {
    /// The workers.
    pub workers: Vec<Member>,
    /// The relays.
    pub relays: Vec<Member>,
    /// What has been found so far.
    pub evidence: Evidence,
    /// Processes that ended without being told to, or not as told.
    pub exits: Vec<String>,
    /// Effects that an earlier fault's wait did not see: they are not waited for again.
    missing: u64,
    /// Fields that the harness itself has put into the mirror.
    pub(crate) junk: BTreeSet<Vec<u8>>,
    /// Every completed key must be in the mirror at the end.
    complete_mirror: bool,
    /// Every row of the trail must be in the partition of its week at the end.
    partitions: bool,
    config: ArenaConfig,
    other_build: Option<std::path::PathBuf>,
    neighbours: Option<Neighbours>,
    watchers: Option<Watchers>,
    rare: Option<RareStates>,
    started: Instant,
    looked: Option<Instant>,
    /// Messages of shops that are decided.
    decided: BTreeSet<Key>,
    witnesses: Witnesses,
    /// How often the tenant that returns has sent its messages.
    returns: u32,
    /// How often the tenant whose keys are forgotten has sent its messages.
    forgotten: u32,
    publisher: Publisher,
    application: Option<Application>,
    charging: Option<Charging>,
    doors: Option<Doors>,
    gateways: Option<Gateways>,
    observer: Option<Observer>,
    /// Events that the application rolled back on purpose.
    pub rolled_back: u64,
    watch: Option<PgConnection>,
    queue: String,
    /// Of consumers that came later.
    more_queues: Vec<String>,
    database: Database,
    pub(crate) servers: Servers,
    scratch: Scratch,
}

impl Arena {
    /// What the servers say they are.
    pub async fn versions(&self) -> anyhow::Result<String> {
        self.servers.versions().await
    }

    /// Lets the neighbours know what is about to be published.
    pub fn overhear(&self, intents: &[Intent]) {
        if let Some(neighbours) = &self.neighbours {
            neighbours.overhear(intents);
        }
    }

    /// Publishes in the background.
    pub fn publish(&self, intents: Vec<Intent>) {
        self.overhear(&intents);
        self.publisher.publish(intents);
    }

    /// From now on, and until the drain, applications emit events: all from the seed but for the moments.
    pub fn emit(&mut self, seed: u64) -> anyhow::Result<()> {
        let server = address(&self.servers.urls().postgres)?;
        let url = format!("postgres://arena_application@{server}/{}", self.database.name());
        self.application = Some(Application::start(&url, seed));
        Ok(())
    }

    /// Messages that are not yet published, and requests whose clients do not yet know.
    #[must_use]
    pub fn unpublished(&self) -> usize {
        self.publisher.pending() + self.doors.as_ref().map_or(0, Doors::pending)
    }

    /// The publisher's books.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.publisher.sent()
    }

    /// Where the logs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// A connection of the harness, straight to the database.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        tokio::time::timeout(Duration::from_secs(5), self.database.connect()).await?
    }

    /// Effects so far, but for those of [`FRAGILE`] tenants and of [`UNCOUNTED`]; an error while PostgreSQL does not answer.
    pub async fn effects(&mut self) -> anyhow::Result<u64> {
        let asked = async {
            let mut watch = match self.watch.take() {
                Some(watch) => watch,
                None => self.database.connect().await?,
            };
            let row = sqlx::query("select count(*) from judge.log where tenant <> all ($1)")
                .bind([&FRAGILE[..], &UNCOUNTED].concat())
                .fetch_one(&mut watch)
                .await?;
            self.watch = Some(watch);
            anyhow::Ok(u64::try_from(row.get::<i64, _>(0))?)
        };
        tokio::time::timeout(Duration::from_secs(3), asked).await?
    }

    /// All processes.
    pub fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.workers.iter_mut().chain(&mut self.relays)
    }

    /// Starts again what has ended by itself, as a service manager does; notes memory.
    pub fn supervise(&mut self) -> anyhow::Result<()> {
        let mut exits = Vec::new();
        let mut most = self.evidence.memory.take();
        let mut deaths = 0;
        for member in self.members() {
            if let Some(status) = member.process.status() {
                exits.push(format!("{}: {status}", member.name));
                deaths += usize::from(member.name.starts_with("worker"));
                member.process.start_again()?;
            }
            if let Some(bytes) = member.process.peak_memory()
                && most.as_ref().is_none_or(|(_, before)| bytes > *before)
            {
                most = Some((member.name.clone(), bytes));
            }
        }
        self.evidence.memory = most;
        self.exits.extend(exits);
        self.note_deaths(deaths);
        self.supervise_charging()?;
        self.supervise_doors()?;
        self.supervise_gateways()?;
        self.supervise_observer()
    }

    /// So many workers have just died.
    pub(crate) fn note_deaths(&mut self, count: usize) {
        let now = self.moment();
        self.evidence.meanwhile.deaths.extend(std::iter::repeat_n(now, count));
    }

    /// Looks, now and then, how each tenant fares.
    pub async fn look_at_tenants(&mut self) -> anyhow::Result<()> {
        if self.looked.is_some_and(|last| last.elapsed() < LOOK) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let due = self.publisher.due_by_tenant();
        let asked = async {
            let mut watch = match self.watch.take() {
                Some(watch) => watch,
                None => self.database.connect().await?,
            };
            let rows = sqlx::query("select tenant, count(*) from judge.log group by tenant")
                .fetch_all(&mut watch)
                .await?;
            self.look_at_leases(&mut watch).await?;
            self.look_at_shops(&mut watch).await?;
            self.watch = Some(watch);
            anyhow::Ok(rows)
        };
        // Where it does not answer nothing is known; the fault that it is has said so.
        let Ok(Ok(rows)) = tokio::time::timeout(Duration::from_secs(3), asked).await else { return Ok(()) };
        let done = rows.iter().map(|row| (row.get(0), u64::try_from(row.get::<i64, _>(1)).unwrap_or(0)));
        let done: BTreeMap<String, u64> = done.collect();
        self.evidence.fairness.look(self.started.elapsed(), &due, &done);
        Ok(())
    }

    /// Nobody is owed anything for what was before.
    pub fn begin_window(&mut self) {
        self.evidence.fairness.restart();
    }

    fn oncely_command(&self, arguments: &[&str]) -> tokio::process::Command {
        oncely_command(&self.config, self.scratch.path(), &self.database_urls(), arguments)
    }

    /// Waits, after a fault, until `more` effects are there than `before`; notes how long it took.
    pub async fn wait_for_recovery(
        &mut self,
        fault: &str,
        before: u64,
        more: u64,
    ) -> anyhow::Result<Option<Duration>> {
        self.wait_while_working(fault, |_, effects| effects >= before + more).await
    }

    /// Waits, after a fault, until all is done that was published; notes how long it took.
    pub async fn wait_until_settled(&mut self, fault: &str) -> anyhow::Result<Option<Duration>> {
        let mut due = None;
        let mut there = 0;
        let settled = self
            .wait_while_working(fault, |arena, effects| {
                if due.is_none() && arena.unpublished() == 0 {
                    due = Some(arena.sent().due());
                }
                there = effects;
                due.is_some_and(|due| effects + arena.missing >= due)
            })
            .await?;
        if settled.is_none() {
            self.missing = due.map_or(self.missing, |due| due.saturating_sub(there));
        }
        Ok(settled)
    }

    async fn wait_while_working(
        &mut self,
        fault: &str,
        does: impl FnMut(&Self, u64) -> bool,
    ) -> anyhow::Result<Option<Duration>> {
        let took = self.wait_for(RECOVERY_LIMIT, does).await?;
        self.evidence.recoveries.push((fault.to_owned(), took));
        Ok(took)
    }

    /// Waits until `most` messages at the most have no effect yet that must have one; `false` where that takes too long. What waits in a
    /// queue while days go by must not get as old as what is forgotten: it would run again, and rightly.
    pub async fn wait_until_caught_up(&mut self, most: u64) -> anyhow::Result<bool> {
        let few = |arena: &Self, effects: u64| {
            arena.unpublished() == 0 && effects + arena.missing + most >= arena.sent().due()
        };
        Ok(self.wait_for(CATCH_UP, few).await?.is_some())
    }

    async fn wait_for(
        &mut self,
        limit: Duration,
        mut does: impl FnMut(&Self, u64) -> bool,
    ) -> anyhow::Result<Option<Duration>> {
        let start = Instant::now();
        while start.elapsed() <= limit {
            self.supervise()?;
            self.look_at_tenants().await?;
            self.publish_witnesses();
            if let Ok(effects) = self.effects().await
                && does(self, effects)
            {
                return Ok(Some(start.elapsed()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(None)
    }

    /// Looks at all entries of the mirror; those that no committed row explains are kept. In a Redis that is not ours others have
    /// theirs: nobody looks there.
    pub async fn sample_mirror(&mut self) -> anyhow::Result<()> {
        if self.servers.redis.is_none() {
            return Ok(());
        }
        let url = self.servers.urls().redis.clone();
        self.sample_mirror_at(&url).await
    }

    /// The same in this Redis.
    pub async fn sample_mirror_at(&mut self, url: &str) -> anyhow::Result<()> {
        let entries = mirror::read_entries(url).await?;
        if let Some(neighbours) = &self.neighbours {
            self.junk.extend(neighbours.junk());
        }
        let entries: Vec<Entry> =
            entries.into_iter().filter(|entry| !self.junk.contains(&entry.field)).collect();
        self.evidence.mirrored += entries.len() as u64;
        let mut connection = self.connect().await?;
        self.evidence.stale_mirror.extend(mirror::find_stale(&mut connection, None, entries).await?);
        Ok(())
    }

    /// Reads the tables and judges.
    pub async fn check(&mut self) -> anyhow::Result<Vec<Violation>> {
        let mut connection = self.connect().await?;
        self.evidence.read_tables(&mut connection, &self.config.consumer).await?;
        if self.partitions {
            self.evidence.unpartitioned = sqlx::query_scalar("select count(*) from oncely.audit_default")
                .fetch_one(&mut connection)
                .await?;
        }
        if self.complete_mirror {
            let entries = mirror::read_entries(&self.servers.urls().redis).await?;
            self.evidence.missing_mirror = mirror::find_missing(&mut connection, entries).await?;
        }
        Ok(checker::judge(&self.sent(), &self.evidence))
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) fn postgres(&mut self) -> anyhow::Result<&mut Postgres> {
        self.servers.postgres.as_mut().context("no PostgreSQL of our own")
    }

    pub(crate) fn rabbitmq(&mut self) -> anyhow::Result<&mut RabbitMq> {
        self.servers.rabbitmq.as_mut().context("no RabbitMQ of our own")
    }

    pub(crate) fn redis(&mut self) -> anyhow::Result<&mut Redis> {
        self.servers.redis.as_mut().context("no Redis of our own")
    }

    /// Keeps the logs when the arena goes; returns where.
    pub fn keep_logs(&self) -> anyhow::Result<std::path::PathBuf> {
        let kept = std::env::temp_dir().join(format!("oncely-faults-{}", std::process::id()));
        std::fs::create_dir_all(&kept)?;
        for entry in std::fs::read_dir(self.scratch.path())? {
            let path = entry?.path();
            if let Some(name) = path.file_name() {
                std::fs::copy(&path, kept.join(name))?;
            }
        }
        Ok(kept)
    }
}
