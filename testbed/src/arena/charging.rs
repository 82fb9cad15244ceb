//! A consumer whose handler runs under leases and calls a provider: processes of its own, messages of its own, faults of its own.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::PgConnection;

use super::config::ArenaConfig;
use super::member::{Member, Server};
use super::publisher::Publisher;
use super::{Arena, start::oncely_command};
use crate::checker::{LEASED, Order, empty};
use crate::{Provider, Signal, eventually_within};

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
/// Messages in flight at once when they are published.
const WINDOW: usize = 20;

/// What strikes one of the processes, counted round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL; it is started again.
    Kill(usize),
    /// It stands still for so long; meanwhile all else goes on.
    Freeze(usize, Duration),
    /// SIGTERM; it is started again.
    Stop(usize),
    /// Its connections to PostgreSQL are reset.
    Cut(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Charging {
    members: Vec<Member>,
    provider: Provider,
    publisher: Publisher,
    queue: String,
    config: ArenaConfig,
    /// Whoever stands still: since when by the provider's clock, and until when.
    frozen: Vec<(usize, f64, Instant)>,
}

impl Charging {
    fn unpublished(&self) -> usize {
        self.publisher.pending()
    }

    /// Lets those go on whose time is over. Returns from when to when they stood still.
    fn thaw(&mut self) -> anyhow::Result<Vec<(f64, f64)>> {
        let (over, frozen) = std::mem::take(&mut self.frozen)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, _, until)| *until <= Instant::now());
        self.frozen = frozen;
        let mut stood = Vec::new();
        for (number, since, _) in over {
            self.member(number)?.process.signal(Signal::CONT)?;
            stood.push((since, clock()));
        }
        Ok(stood)
    }

    fn member(&mut self, number: usize) -> anyhow::Result<&mut Member> {
        let count = self.members.len().max(1);
        self.members.get_mut(number % count).context("no such process")
    }
}

/// As the provider's books have it: no days go by there.
fn clock() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
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
        let publisher = Publisher::start(vec![urls.rabbitmq], queue.clone(), WINDOW);
        self.charging = Some(Charging { members, provider, publisher, queue, config, frozen: Vec::new() });
        Ok(())
    }

    /// Publishes orders in the background.
    pub fn order(&self, orders: &[Order]) {
        if let Some(charging) = &self.charging {
            charging.publisher.publish(orders.iter().map(Order::intent).collect());
        }
    }

    /// Strikes a process that charges, in the middle of its calls. Nobody waits for what follows.
    pub async fn strike(&mut self, strike: Strike) -> anyhow::Result<()> {
        self.until_at_work().await;
        let now = self.moment();
        let Some(charging) = &mut self.charging else { return Ok(()) };
        match strike {
            // Whoever stands still is left alone: its signal is on its way.
            Strike::Kill(number) | Strike::Stop(number) | Strike::Freeze(number, _)
                if charging.frozen.iter().any(|(one, ..)| one % MEMBERS == number % MEMBERS) => {}
            Strike::Kill(number) => {
                let member = charging.member(number)?;
                member.process.kill()?;
                member.process.start_again()?;
                self.evidence.leases.interruptions.push(now);
            }
            Strike::Freeze(number, hold) => {
                charging.member(number)?.process.signal(Signal::STOP)?;
                charging.frozen.push((number, clock(), Instant::now() + hold));
                self.evidence.leases.interruptions.push(now);
            }
            Strike::Stop(number) => {
                let member = charging.member(number)?;
                let ended = member.process.terminate(Duration::from_secs(40)).await;
                let name = member.name.clone();
                member.process.start_again()?;
                self.evidence.leases.gave_back += 1;
                match ended {
                    Ok(status) if status.success() => {}
                    Ok(status) => self.exits.push(format!("{name} after SIGTERM: {status}")),
                    Err(error) => self.exits.push(format!("{name} after SIGTERM: {error:#}")),
                }
            }
            Strike::Cut(number) => {
                if let Some(link) = charging.member(number)?.link(Server::Postgres) {
                    link.cut();
                }
                self.evidence.leases.gave_back += 1;
            }
        }
        Ok(())
    }

    /// Waits, not for long, until some calls wait for their answers: where they do not, the strike meets fewer.
    async fn until_at_work(&self) {
        let Some(charging) = &self.charging else { return };
        let _ = eventually_within(AT_WORK.1, "calls are made", || async {
            let open = charging.provider.open();
            if open >= AT_WORK.0 { Ok(()) } else { Err(open) }
        })
        .await;
    }

    /// Waits until everything that was ordered has come to its end; not for ever, because a bug may keep it from that.
    pub async fn until_charged(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        while since.elapsed() < CHARGED && !self.is_charged().await.unwrap_or(false) {
            self.supervise()?;
            self.look_at_tenants().await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Lets go on what stood still long enough, and starts again what has ended by itself.
    pub(super) fn supervise_charging(&mut self) -> anyhow::Result<()> {
        let now = self.moment();
        let Some(charging) = &mut self.charging else { return Ok(()) };
        self.evidence.leases.freezes.extend(charging.thaw()?);
        for member in &mut charging.members {
            if let Some(status) = member.process.status() {
                self.exits.push(format!("{}: {status}", member.name));
                member.process.start_again()?;
                self.evidence.leases.interruptions.push(now);
            }
        }
        Ok(())
    }

    /// Looks whether a lease lasts too long.
    pub(super) async fn look_at_leases(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        if self.charging.is_some() {
            self.evidence.leases.look(connection, f64::from(LEASE), f64::from(MAX_RUN)).await?;
        }
        Ok(())
    }

    /// Has everything come to its end that was ordered? Notes what is there.
    pub(super) async fn is_charged(&mut self) -> anyhow::Result<bool> {
        let mut connection = match self.charging {
            None => return Ok(true),
            Some(_) => self.connect().await?,
        };
        let Some(charging) = &mut self.charging else { return Ok(true) };
        if charging.unpublished() > 0 || !charging.frozen.is_empty() {
            return Ok(false);
        }
        let leases = &mut self.evidence.leases;
        leases.sent = charging.publisher.sent();
        leases.read(&mut connection).await?;
        if leases.open() > 0 {
            return Ok(false);
        }
        let queue = charging.queue.clone();
        let mut left = 0;
        for queue in std::iter::once(queue.clone()).chain(RUNGS.map(|rung| format!("{queue}.retry.{rung}"))) {
            left += self.broker().await?.ready(&queue).await?;
        }
        Ok(left == 0)
    }

    /// Ends the processes, takes what the queues hold, and the provider's books.
    pub(super) async fn stop_charging(&mut self) -> anyhow::Result<()> {
        let Some(mut charging) = self.charging.take() else { return Ok(()) };
        for (_, _, until) in &mut charging.frozen {
            *until = Instant::now();
        }
        self.evidence.leases.freezes.extend(charging.thaw()?);
        for member in &mut charging.members {
            match member.process.terminate(Duration::from_secs(40)).await {
                Ok(status) if status.success() => {}
                Ok(status) => self.exits.push(format!("{} at the end: {status}", member.name)),
                Err(error) => self.exits.push(format!("{} at the end: {error:#}", member.name)),
            }
        }
        let url = self.servers.urls().rabbitmq.clone();
        let queue = &charging.queue;
        let quiet = charging.config.quiet() / 2;
        let mut connection = self.connect().await?;
        let leases = &mut self.evidence.leases;
        leases.dead.extend(empty(&url, &format!("{queue}.dead"), quiet / 2).await?);
        for rung in RUNGS {
            leases.queued.extend(empty(&url, &format!("{queue}.retry.{rung}"), quiet / 2).await?);
        }
        leases.queued.extend(empty(&url, queue, quiet).await?);
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
