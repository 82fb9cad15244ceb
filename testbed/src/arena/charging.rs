//! A consumer whose handler runs under leases and calls a provider: processes of its own, messages of its own, faults of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::config::ArenaConfig;
use super::crew::{Crew, Strike};
use super::doors::Doors;
use super::member::Member;
use super::publisher::{Address, Publisher};
use super::{Arena, start::oncely_command};
use crate::checker::{Call, Key, LEASED, Leases, Order, Sent, drain_queue};
use crate::{Provider, eventually_within};

/// Processes.
const MEMBERS: usize = 2;
/// A lease in seconds: the shortest that can be configured.
const LEASE: u32 = 5;
/// A run in seconds.
const MAX_RUN: u32 = 60;
/// Runs without a word after which a message is given up.
const MAX_CRASHES: usize = 3;
/// The retry queues.
const RUNGS: [&str; 2] = ["200ms", "1s"];
/// So many calls wait for their answers when a process is struck, or so long has been waited for them.
const AT_WORK: (usize, Duration) = (12, Duration::from_secs(4));
/// Longest wait for the end of all runs.
const CHARGED: Duration = Duration::from_secs(30);
/// Messages that wait for an operator.
pub(super) const LETTERS: &str =
    "select tenant, key from oncely.dead_letters where consumer = $1 and state = 'waiting'";
/// Messages in flight at once when they are published.
const WINDOW: usize = 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Charging {
    crew: Crew,
    provider: Provider,
    publisher: Publisher,
    queue: String,
    config: ArenaConfig,
}

impl Charging {
    fn unpublished(&self) -> usize {
        self.publisher.pending()
    }

    /// The provider's books.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.provider.calls()
    }

    pub(super) fn stands_still(&self) -> bool {
        self.crew.stands_still()
    }

    pub(super) fn members(&self) -> &[Member] {
        self.crew.members()
    }

    /// Where the provider is.
    pub(super) fn provider(&self) -> SocketAddr {
        self.provider.address()
    }

    /// Its queue.
    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Keys that were published, and those of them of which the broker has a message.
    pub(super) fn published(&self) -> (BTreeSet<Key>, BTreeSet<Key>) {
        self.publisher.own()
    }

    /// The publisher's books, for others who send the same.
    pub(super) fn books(&self) -> Arc<Mutex<Sent>> {
        self.publisher.books()
    }
}

impl Leases {
    /// A process that holds leases was struck: they may run out, or have been given back.
    pub(super) fn note_strike(&mut self, strike: Strike, now: f64) {
        match strike {
            Strike::Kill(_) | Strike::Freeze(..) => self.interruptions.push(now),
            Strike::Stop(_) | Strike::Cut(_) => self.gave_back += 1,
        }
    }
}

/// Returns the key of each run that a process has logged as failed without a verdict.
fn undecided(log: &str) -> impl Iterator<Item = Key> {
    let field =
        |line: &str, name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)).map(str::to_owned);
    log.lines()
        .filter(|line| line.contains("no attempt is spent"))
        .filter_map(move |line| Some((field(line, "tenant=")?, field(line, "key=")?)))
}

impl Arena {
    /// Starts the consumer, its provider and its publisher.
    pub async fn start_charging(&mut self) -> anyhow::Result<()> {
        let provider = Provider::start().await?;
        let queue = format!("{LEASED}-{}", uuid::Uuid::new_v4().simple());
        let file = self.folder().join("charging.toml");
        let mut config = self
            .config
            .clone()
            .set("consumer", "handler", "")
            .set("consumer", "batch", "")
            .set("consumer", "lanes", "")
            .set("consumer", "prefetch", "")
            .set("consumer", "retention", "\"30d\"")
            .set(
                "consumer",
                "lease",
                &format!("{{ time = \"{LEASE}s\", max_run = \"{MAX_RUN}s\", concurrency = 16 }}"),
            )
            .set(
                "consumer",
                "retry",
                &format!("{{ delays = {RUNGS:?}, max_attempts = 8, max_crashes = {MAX_CRASHES} }}"),
            );
        config.consumer = LEASED.to_owned();
        std::fs::write(&file, config.toml(&queue))?;
        let more = [
            ("ONCELY_CONFIG".to_owned(), file.display().to_string()),
            ("PROVIDER".to_owned(), provider.address().to_string()),
        ];
        config.environment.extend(more);
        let urls = self.database_urls();
        let output = oncely_command(&config, self.folder(), &urls, &["topology", "apply"]).output().await?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "oncely topology apply: {text}");
        let mut members = Vec::new();
        for number in 1..=MEMBERS {
            let member = Member::start(&config, self.folder(), "charging", number, &urls, &self.database);
            members.push(member.await?);
        }
        self.evidence.leases.max_crashes = MAX_CRASHES;
        self.evidence.leases.lease = f64::from(LEASE);
        // As producers do it whom others may listen to: by an exchange.
        let to = Address { exchange: format!("{queue}.in"), routing_key: String::new() };
        let broker = self.broker().await?;
        broker.declare_exchange(&to.exchange, lapin::ExchangeKind::Fanout).await?;
        broker.bind(&queue, &to.exchange, "").await?;
        let publisher = Publisher::start(vec![urls.rabbitmq], &to, WINDOW);
        self.charging = Some(Charging { crew: Crew::new(members), provider, publisher, queue, config });
        Ok(())
    }

    /// Are orders about to be published?
    pub(super) fn is_ordering(&self) -> bool {
        self.charging.as_ref().is_some_and(|charging| charging.unpublished() > 0)
    }

    /// Publishes orders in the background.
    pub fn order(&self, orders: &[Order]) {
        if let Some(charging) = &self.charging {
            charging.publisher.publish(orders.iter().map(Order::intent).collect());
        }
    }

    /// Strikes a process that charges, in the middle of its calls. Nobody waits for what follows.
    pub async fn strike(&mut self, strike: Strike) -> anyhow::Result<()> {
        self.wait_for_calls().await;
        let now = self.moment();
        let Some(charging) = &mut self.charging else { return Ok(()) };
        if let Some(exits) = charging.crew.strike(strike).await? {
            self.exits.extend(exits);
            self.evidence.leases.note_strike(strike, now);
        }
        Ok(())
    }

    /// Waits, not for long, until some calls wait for their answers: where they do not, the strike meets fewer.
    async fn wait_for_calls(&self) {
        let Some(charging) = &self.charging else { return };
        let _ = eventually_within(AT_WORK.1, "calls are made", || async {
            let open = charging.provider.open();
            if open >= AT_WORK.0 { Ok(()) } else { Err(open) }
        })
        .await;
    }

    /// Waits until everything that was ordered has come to its end; not for ever, because a bug may keep it from that.
    pub async fn wait_until_charged(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        while since.elapsed() < CHARGED && !matches!(self.find_uncharged().await, Ok(None)) {
            self.supervise()?;
            self.look_at_tenants().await?;
            self.publish_witnesses();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Lets go on what stood still long enough, and starts again what has ended by itself.
    pub(super) fn supervise_charging(&mut self) -> anyhow::Result<()> {
        let now = self.moment();
        let Some(charging) = &mut self.charging else { return Ok(()) };
        self.evidence.leases.freezes.extend(charging.crew.thaw()?);
        let exits = charging.crew.supervise()?;
        self.evidence.leases.interruptions.extend(exits.iter().map(|_| now));
        self.exits.extend(exits);
        Ok(())
    }

    /// Looks whether a lease lasts too long.
    pub(super) async fn look_at_leases(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        if self.charging.is_some() {
            self.evidence.leases.look(connection, f64::from(LEASE), f64::from(MAX_RUN)).await?;
        }
        Ok(())
    }

    /// Returns the orders that have no end yet, if any, as a text. Records the state of all.
    pub(super) async fn find_uncharged(&mut self) -> anyhow::Result<Option<String>> {
        let mut connection = match self.charging {
            None => return Ok(None),
            Some(_) => self.connect().await?,
        };
        let Some(charging) = &mut self.charging else { return Ok(None) };
        let unknown = self.doors.as_ref().map_or(0, Doors::pending_orders);
        let unpublished = charging.unpublished();
        if unpublished + unknown > 0 || charging.crew.stands_still() {
            let stands = charging.crew.stands_still();
            return Ok(Some(format!(
                "{unpublished} unpublished, {unknown} not known, a process stands still: {stands}"
            )));
        }
        let leases = &mut self.evidence.leases;
        leases.sent = charging.publisher.sent();
        leases.read(&mut connection).await?;
        // What became known late runs again when an operator requeues its letter.
        let letters: Vec<Key> = sqlx::query_as(LETTERS).bind(LEASED).fetch_all(&mut connection).await?;
        let mut open = leases.open();
        open.retain(|key| !letters.contains(key));
        if !open.is_empty() {
            return Ok(Some(format!("{} keys without an end, first {:?}", open.len(), open[0])));
        }
        let queue = charging.queue.clone();
        let mut left = Vec::new();
        for queue in std::iter::once(queue.clone()).chain(RUNGS.map(|rung| format!("{queue}.retry.{rung}"))) {
            let ready = self.broker().await?.ready(&queue).await?;
            if ready > 0 {
                left.push(format!("{ready} in {queue}"));
            }
        }
        Ok((!left.is_empty()).then(|| left.join(", ")))
    }

    /// Ends the processes, takes what the queues hold, and the provider's books.
    pub(super) async fn stop_charging(&mut self) -> anyhow::Result<()> {
        let Some(mut charging) = self.charging.take() else { return Ok(()) };
        let (stood, exits) = charging.crew.end().await?;
        self.evidence.leases.freezes.extend(stood);
        self.exits.extend(exits);
        for member in charging.crew.members() {
            for key in undecided(&member.process.output()) {
                *self.evidence.leases.undecided.entry(key).or_insert(0) += 1;
            }
        }
        // A letter may have been requeued before its copy came to the queue.
        let file = self.folder().join("charging.toml").display().to_string();
        self.run_operator_verb(&["--config", &file, "failed", "sweep"], None).await?;
        let url = self.servers.urls().rabbitmq.clone();
        let queue = &charging.queue;
        let quiet = charging.config.quiet() / 2;
        let mut connection = self.connect().await?;
        let leases = &mut self.evidence.leases;
        leases.dead.extend(drain_queue(&url, &format!("{queue}.dead"), quiet / 2).await?);
        for rung in RUNGS {
            leases.queued.extend(drain_queue(&url, &format!("{queue}.retry.{rung}"), quiet / 2).await?);
        }
        leases.queued.extend(drain_queue(&url, queue, quiet).await?);
        leases.sent = charging.publisher.sent();
        leases.calls = charging.provider.calls();
        leases.read(&mut connection).await
    }

    /// Something happened to all that leases rest on: a server that was away, a clock.
    pub(crate) fn note_interruption(&mut self, is_of_clock: bool) {
        let now = self.moment();
        self.evidence.leases.gave_back += 1;
        if is_of_clock {
            self.evidence.leases.interruptions.push(now);
            self.evidence.leases.clocks.push(now);
        }
    }
}
