//! `cargo xtask faults`: random traffic and random faults on real processes and real servers, then an independent check.
//!
//! The messages are cut into as many slices as there are faults. Of each slice a part is published, the fault strikes in
//! the middle of the work, more is published while it lasts, the rest after it: that shows how soon the work goes on. The
//! next slice starts when it does. Between two slices a day goes by at once, and at times somebody changes something, requeues or
//! discards, or a tenant loses its schema for a while; neighbours with few rights do what they may all the time, and consoles, `top`,
//! `doctor` and `status` watch. A part of the messages comes over HTTP, too, or there alone. Beside it a consumer under leases calls a
//! provider, and clients ask a slow service through gateways; all these processes are struck in each slice.

mod calendar;
mod orders;
mod report;
mod requests;
mod schedule;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use testbed::checker::Intent;
use testbed::{Arena, ArenaConfig, Errand, Neighbour, Rare, Strike};

use crate::process;
use crate::servers::Choice;
use calendar::{Day, calendar};
use orders::Orders;
use report::Report;
use requests::Requests;
use schedule::{Planned, schedule};
pub(crate) use traffic::Traffic;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Messages to publish, duplicates included
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: u32,
    /// Faults
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    faults: u32,
    /// The same seed gives the same messages and the same faults at the same progress
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run with each of these seeds, and fail where a rare state was reached with none
    #[arg(long, value_delimiter = ',', conflicts_with = "seed")]
    seeds: Vec<u64>,
    /// Spread messages and faults evenly over so many minutes. What does not fit into them is left out: --messages and
    /// --faults are then upper bounds
    #[arg(long)]
    minutes: Option<f64>,
    /// Only these kinds of faults, such as kill_worker
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Take worker and relay from this folder: builds with planted bugs, to see the judge at work
    #[arg(long)]
    binaries: Option<PathBuf>,
    /// Let workers of this folder join in mid-run and leave again: the release before, on this one's schema
    #[arg(long)]
    other_build: Option<PathBuf>,
    /// Leave out what goes on beside the faults: days, changes, errands, missing schemas, neighbours, consoles and who else watches
    #[arg(long)]
    quiet: bool,
    /// Violations of these names, such as unjustified_dead_letter, are told, and fail nothing
    #[arg(long, value_delimiter = ',')]
    tolerate: Vec<String>,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Workers, by the seed: their batches collide over hot rows.
const WORKERS: [usize; 3] = [3, 4, 2];
/// An event that no program can read, as from before the checks of `oncely.emit`: it is parked.
const UNREADABLE: &str =
    "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, headers, payload)
     values ('stranger', gen_random_uuid(), now(), now(), '', 'nowhere', '{\"n\": 1e400}', '')";
/// Messages that are published after a fault, in per cent of its slice.
const TAIL: usize = 25;
/// Days that a key is remembered, at first.
const RETENTION: i64 = 10;
/// While days go by this part of a slice may still wait.
const BEHIND: usize = 10;
/// For so many messages one that runs under a lease.
const SHARE: usize = 10;
/// Slices from one kill of the observer to the next.
const OBSERVER: usize = 3;
/// PostgreSQL ends sessions that rest for longer, and how long all rest at times.
const IDLE: Duration = Duration::from_secs(2);
/// PostgreSQL looks for a deadlock after this time, with most seeds.
const DEADLOCK: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_secs(5);
/// Messages after a rest.
const WAKE: usize = 20;
/// Faults from one look at the whole mirror to the next.
const SAMPLE: usize = 8;

/// Runs the trial. Fails when an invariant is broken.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let binaries = process::build_for_faults()?;
    let (mut reached, mut bad) = (BTreeSet::new(), Vec::new());
    let seeds = if arguments.seeds.is_empty() { vec![arguments.seed] } else { arguments.seeds.clone() };
    for seed in seeds {
        let report =
            trial(arguments, binaries.clone(), seed).await.with_context(|| format!("seed {seed}"))?;
        if !report.is_good(&arguments.tolerate) {
            bad.push(seed.to_string());
        }
        reached.extend(report.rare);
    }
    anyhow::ensure!(
        bad.is_empty(),
        "an invariant is broken: this is a bug; the seed is {}",
        bad.join(" and ")
    );
    if arguments.seeds.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> =
        Rare::ALL.iter().filter(|state| !reached.contains(state.name)).map(|state| state.name).collect();
    anyhow::ensure!(missing.is_empty(), "reached with none of the seeds: {}", missing.join(", "));
    Ok(())
}

/// Runs it with one seed.
async fn trial(arguments: &Arguments, binaries: PathBuf, seed: u64) -> anyhow::Result<Report> {
    let plan = schedule(seed, arguments.faults as usize, &arguments.only);
    anyhow::ensure!(!plan.is_empty(), "there is no such kind of fault");
    let mut config = ArenaConfig::new(binaries)
        .set("consumer", "retention", &format!("\"{RETENTION}d\""))
        .set("audit", "retention", "\"35d\"");
    config.encrypted = seed % 2 == 1;
    config.divided = seed % 5 < 2;
    config.workers = WORKERS[usize::try_from(seed % WORKERS.len() as u64)?];
    eprintln!(
        "starting PostgreSQL, RabbitMQ, Redis, {} workers, two that charge, two HTTP servers, two gateways, an observer, and two relays",
        config.workers
    );
    if !arguments.quiet {
        config.neighbours = Neighbour::ALL.to_vec();
        config.watched = true;
        config.sessions.push(("idle_session_timeout", IDLE));
        // Transactions that collide give way before the default, a second. Below their own limit they lose deadlocks instead.
        if seed % 3 != 2 {
            config.sessions.push(("deadlock_timeout", DEADLOCK));
        }
    }
    if let Some(folder) = &arguments.binaries {
        config.binaries.clone_from(folder);
    }
    let mut arena = Arena::start(config).await?;
    arena.sql(UNREADABLE).await.context("leaving an event that no program can read")?;
    eprintln!("{}", arena.versions().await?);
    arena.expect_retention(RETENTION, RETENTION);
    if let Some(folder) = &arguments.other_build {
        arena.set_other_build(folder.clone());
    }
    let days = match arguments.quiet {
        true => vec![Day::default(); plan.len()],
        false => calendar(seed, plan.len(), arguments.other_build.is_some()),
    };
    let trial = Trial {
        days,
        started: Instant::now(),
        slice: (arguments.messages as usize / plan.len()).max(1),
        minutes: arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0)),
        bar: bar(plan.len()),
        seed,
    };
    arena.emit(seed)?;
    arena.start_charging().await.context("starting what runs under leases")?;
    arena.start_observer().await.context("starting the observer")?;
    arena.start_doors(seed).await.context("starting the HTTP servers")?;
    arena.start_gateways(seed).await.context("starting the gateways")?;
    arena.watch_rare_states();
    let done = trial.run(&mut arena, &plan, Traffic::new(seed)).await;
    let Done { faults, missed, changes, .. } = match done {
        Ok(done) => done,
        Err(error) => {
            eprintln!("logs: {}", arena.keep_logs()?.display());
            return Err(error);
        }
    };
    arena.drain().await.context("draining")?;
    let seconds = trial.started.elapsed().as_secs_f64();
    trial.bar.finish_and_clear();
    let report = Report::collect(&mut arena, seed, seconds, faults, missed, changes).await?;
    report.print(arguments.json)?;
    if !report.is_good(&arguments.tolerate) {
        eprintln!("logs: {}", arena.keep_logs()?.display());
    }
    Ok(report)
}

/// What goes on between two slices.
async fn run_day(
    arena: &mut Arena,
    day: &Day,
    behind: u64,
    traffic: &mut Traffic,
    done: &mut Done,
) -> anyhow::Result<()> {
    if let Some(missing) = day.give {
        arena.give_back(missing).await.context("giving back")?;
    }
    if day.rests {
        arena.rest(REST).await.context("resting")?;
        let (intents, fresh) = traffic.take_tail(WAKE);
        let before = arena.effects().await.unwrap_or(0);
        arena.publish(intents);
        arena.wait_for_recovery("a rest", before, (fresh / 2).max(1)).await?;
    }
    if day.twice {
        arena.die_twice(done.dead).await.context("dying twice")?;
        done.dead += 1;
        // What was under way runs one by one: the next fault is not judged by that.
        arena.wait_until_caught_up(0).await?;
    }
    if let Some(missing) = day.take {
        arena.take_away(missing).await.context("taking away")?;
    }
    if let Some(errand) = day.errand {
        arena.run_errand(errand).await?;
    }
    if let Some(change) = &day.change {
        arena.change(change).await?;
        done.changes.push(change.name());
    }
    // A busy machine's worker may be at work on what it was given slices ago: that is days.
    if day.days > 0 && arena.wait_until_caught_up(behind).await? {
        arena.let_days_pass(day.days).await.context("letting days pass")?;
        arena.age_apart(day.days).await.context("letting days pass")?;
        (0..day.days).for_each(|_| traffic.end_of_day());
        arena.collect().await?;
        arena.send_what_is_forgotten().await.context("sending what is forgotten")?;
    }
    arena.begin_window();
    Ok(())
}

fn bar(faults: usize) -> ProgressBar {
    // Hidden by itself where stderr is no terminal.
    let style = ProgressStyle::with_template("faults {bar:30} {pos}/{len} {elapsed} {msg}");
    ProgressBar::new(faults as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

struct Trial {
    /// What happens after each slice.
    days: Vec<Day>,
    started: Instant,
    slice: usize,
    minutes: Option<Duration>,
    bar: ProgressBar,
    seed: u64,
}

/// What a trial has done.
#[derive(Default)]
struct Done {
    /// By kind.
    faults: BTreeMap<String, u64>,
    /// Faults that waited for a moment that did not come.
    missed: u64,
    changes: Vec<String>,
    /// Messages with which workers have died twice.
    dead: usize,
}

/// What goes on beside the messages, and what strikes it: nobody waits for what follows.
struct Beside {
    orders: Orders,
    requests: Requests,
    /// What goes through gateways, and what strikes these.
    through: Orders,
    at_gateways: Requests,
}

impl Beside {
    fn new(seed: u64) -> Self {
        Self {
            orders: Orders::new(seed),
            requests: Requests::new(seed),
            through: Orders::new(!seed),
            at_gateways: Requests::new(!seed),
        }
    }

    fn ask(&mut self, arena: &mut Arena, count: usize) {
        let (asked, sent) = self.requests.split_orders(self.orders.take(count));
        arena.order(&sent);
        arena.request_orders(&asked);
        arena.request_through(&self.through.take(count));
    }

    async fn strike(&mut self, arena: &mut Arena, slice: usize) -> anyhow::Result<()> {
        for strike in self.orders.strikes() {
            arena.strike(strike).await.with_context(|| format!("{strike:?}"))?;
        }
        let strike = self.requests.strike();
        arena.strike_door(strike).await.with_context(|| format!("{strike:?} at the door"))?;
        let strike = self.at_gateways.strike();
        arena.strike_gateway(strike).await.with_context(|| format!("{strike:?} at a gateway"))?;
        if slice % OBSERVER == 1 {
            arena.strike_observer(Strike::Kill(0)).await.context("striking the observer")?;
        }
        Ok(())
    }
}

impl Trial {
    async fn run(&self, arena: &mut Arena, plan: &[Planned], mut traffic: Traffic) -> anyhow::Result<Done> {
        let mut done = Done::default();
        let mut beside = Beside::new(self.seed);
        let slot = self.minutes.map(|all| all / u32::try_from(plan.len()).unwrap_or(u32::MAX));
        for (number, planned) in plan.iter().enumerate() {
            if self.minutes.is_some_and(|all| self.started.elapsed() >= all) {
                break;
            }
            let ends = slot.map(|slot| self.started + slot * u32::try_from(number + 1).unwrap_or(u32::MAX));
            let name = planned.name();
            self.bar.set_message(name.clone());
            let after = self.slice * TAIL / 100;
            let mut slice = traffic.take(self.slice.saturating_sub(after));
            let (tail, fresh) = traffic.take_tail(after.saturating_sub(3));
            let during = slice.split_off(slice.len() * planned.at / 100);
            let (asked, slice) = beside.requests.split(slice);
            let (asked_during, during) = beside.requests.split(during);
            arena.request(asked);
            beside.ask(arena, self.slice / SHARE);
            self.publish_lead(arena, slice, ends).await?;
            beside.strike(arena, number).await?;

            let before = arena.struck();
            arena.publish(during);
            arena.request(asked_during);
            arena.inject(&planned.fault).await.with_context(|| format!("injecting {name}"))?;
            if let Some(second) = &planned.second {
                arena.inject(second).await.with_context(|| format!("injecting {}", second.name()))?;
            }
            arena.hold(&planned.fault).await;
            // The second one first: healing the other may need a lock that a frozen process holds.
            if let Some(second) = &planned.second {
                arena.heal(second).await.with_context(|| format!("healing {}", second.name()))?;
                *done.faults.entry(second.kind.name()).or_insert(0) += 1;
            }
            arena.heal(&planned.fault).await.with_context(|| format!("healing {name}"))?;
            if planned.fault.kind.strikes_once() && arena.struck() == before {
                done.missed += 1;
            } else {
                *done.faults.entry(planned.fault.kind.name()).or_insert(0) += 1;
            }
            self.recover(arena, planned, tail, fresh).await?;
            if let Some(day) = self.days.get(number) {
                run_day(arena, day, (self.slice / BEHIND) as u64, &mut traffic, &mut done)
                    .await
                    .with_context(|| format!("after {name}: {day:?}"))?;
            }
            if number % SAMPLE == SAMPLE - 1 {
                arena.sample_mirror().await.context("looking at the mirror")?;
            }
            self.bar.inc(1);
        }
        if self.days.iter().any(|day| day.take.is_some()) {
            // What was given up meanwhile takes effect now; what was broken off is brought to its end.
            arena.run_errand(Errand::Requeue).await?;
            arena.run_errand(Errand::Settle).await?;
        }
        Ok(done)
    }

    /// Publishes what comes before the fault; where time is given, spread over the slot.
    async fn publish_lead(
        &self,
        arena: &mut Arena,
        slice: Vec<Intent>,
        ends: Option<Instant>,
    ) -> anyhow::Result<()> {
        /// About what a fault and its recovery take.
        const FAULT: Duration = Duration::from_secs(6);
        arena.supervise()?;
        let before = arena.effects().await.unwrap_or(0);
        if let Some(ends) = ends {
            let steps = 20;
            let span = ends.saturating_duration_since(Instant::now()).saturating_sub(FAULT);
            for piece in slice.chunks(slice.len().div_ceil(steps).max(1)) {
                arena.publish(piece.to_vec());
                tokio::time::sleep(span / u32::try_from(steps)?).await;
                arena.supervise()?;
            }
            return Ok(());
        }
        // The fault strikes in the middle of the work: when some of it is done.
        let some = slice.len() as u64 / 20;
        arena.publish(slice);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) && arena.effects().await.unwrap_or(0) < before + some {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Publishes what comes after the fault, and waits until all is done, or until half of this has taken effect (a third
    /// of what was unconfirmed may never come).
    async fn recover(
        &self,
        arena: &mut Arena,
        planned: &Planned,
        tail: Vec<Intent>,
        fresh: u64,
    ) -> anyhow::Result<()> {
        let name = planned.name();
        let before = arena.effects().await.unwrap_or(0);
        arena.publish(tail);
        if planned.settle {
            arena.wait_until_settled(&name).await?;
        } else {
            arena.wait_for_recovery(&name, before, (fresh / 2).max(1)).await?;
        }
        Ok(())
    }
}
