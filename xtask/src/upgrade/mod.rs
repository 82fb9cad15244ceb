//! `cargo xtask upgrade --from COMMIT`: the programs of a commit are at work under load while those of this checkout migrate, roll, and for a
//! while go back; then the judge.

mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use testbed::checker::mirror;
use testbed::{Arena, ArenaConfig};

use crate::faults::Traffic;
use crate::servers::Choice;
use crate::source_copy::{CopyLane, SourceCopy, files_of};
use report::{Report, Step};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// The release before: a tag or another commit whose migrations this checkout has, unchanged
    #[arg(long)]
    from: String,
    /// Messages to publish, duplicates included
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    messages: u32,
    /// So many keys of others are there before
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    keys: u32,
    /// The same seed gives the same messages
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// What an upgrade adds where this checkout has no migration that the commit does not have.
const TRIAL: [(&str, &str); 2] = [
    ("99990101000001_upgrade_trial.up.sql", include_str!("expand.up.sql")),
    ("99990101000002_upgrade_trial_index.up.sql", include_str!("index.up.sql")),
];
/// Longest time for a step of an upgrade.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs the trial. Fails when an invariant is broken.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.servers.apply()?;
    let added = added_migrations(&arguments.from)?;
    eprintln!("building {}", arguments.from);
    let before =
        SourceCopy::of_commit(&arguments.from)?.build("upgrade-from", &[]).context("the release before")?;
    let here = SourceCopy::of_here(CopyLane::First)?;
    if added.is_empty() {
        for (name, text) in TRIAL {
            std::fs::write(here.tree().join("migrations").join(name), text)?;
        }
        eprintln!("no migration is new: two are added for the trial");
    }
    eprintln!("building what it is upgraded to");
    let after = here.build("upgrade-to", &[]).context("what it is upgraded to")?;

    eprintln!("starting PostgreSQL, RabbitMQ, Redis, three workers and two relays");
    let mut arena = Arena::start(ArenaConfig::new(before.clone())).await?;
    eprintln!("{}", arena.versions().await?);
    if arguments.keys > 0 {
        eprintln!("filling the table of keys");
        fill(&arena, arguments.keys).await?;
    }
    arena.emit(arguments.seed)?;
    let mut trial = Trial {
        slice: arguments.messages as usize / STEPS,
        traffic: Traffic::new(arguments.seed),
        steps: Vec::new(),
    };
    let upgraded = trial.upgrade(&mut arena, &before, &after).await;
    if let Err(error) = upgraded {
        eprintln!("logs: {}", arena.keep_logs()?.display());
        return Err(error);
    }
    arena.drain().await.context("draining")?;
    let report = Report::collect(&mut arena, trial.steps).await?;
    report.print(arguments.json)?;
    if !report.is_good() {
        eprintln!("logs: {}", arena.keep_logs()?.display());
    }
    anyhow::ensure!(
        report.is_good(),
        "an invariant is broken: this is a bug; the seed is {}",
        arguments.seed
    );
    Ok(())
}

/// Keys of a consumer that is not ours.
async fn fill(arena: &Arena, keys: u32) -> anyhow::Result<()> {
    let mut connection = arena.connect().await?;
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'tenant-' || n % 1000, $2, gen_random_uuid(), 'COMPLETED', 1, now(), now() from generate_series(1, $1) as n",
    )
    .bind(i64::from(keys))
    .bind(mirror::BALLAST)
    .execute(&mut connection)
    .await?;
    sqlx::query("vacuum analyze oncely.idempotency_keys").execute(&mut connection).await?;
    Ok(())
}

/// The migrations that this checkout has and the commit has not. One that was edited since is no upgrade.
fn added_migrations(commit: &str) -> anyhow::Result<Vec<String>> {
    let before: BTreeMap<String, Vec<u8>> = files_of(Some(commit), "migrations")?.into_iter().collect();
    let mut added = Vec::new();
    let here = files_of(None, "migrations")?;
    for (name, text) in here.into_iter().filter(|(name, _)| name.ends_with(".up.sql")) {
        match before.get(&name) {
            None => added.push(name),
            Some(found) => anyhow::ensure!(
                *found == text,
                "{name} was edited since {commit}: a database of that commit can't be upgraded. Until the first release migrations are \
                 edited in place: choose a commit that has them as they are here"
            ),
        }
    }
    Ok(added)
}

/// In which something is published.
const STEPS: usize = 6;

struct Trial {
    slice: usize,
    traffic: Traffic,
    steps: Vec<Step>,
}

impl Trial {
    async fn upgrade(&mut self, arena: &mut Arena, before: &Path, after: &Path) -> anyhow::Result<()> {
        self.step(arena, "the release before", async |_| Ok(())).await?;
        self.step(arena, "plan and migrate", async |arena| {
            arena.release(after);
            plan(arena).await?;
            arena.oncely(&["migrate", "--wait", "1m"]).await?;
            arena.oncely(&["topology", "apply"]).await
        })
        .await?;
        self.step(arena, "the release before, on the new schema", async |_| Ok(())).await?;
        self.step(arena, "relays and workers roll, one by one", async |arena| roll(arena, after).await)
            .await?;
        self.step(arena, "back to the release before", async |arena| roll(arena, before).await).await?;
        self.step(arena, "and to the new one again", async |arena| roll(arena, after).await).await
    }

    /// Publishes, does something as soon as some of it is done, and waits until most of it is.
    async fn step(
        &mut self,
        arena: &mut Arena,
        name: &'static str,
        does: impl AsyncFnOnce(&mut Arena) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        eprintln!("{name}");
        let from = report::database_time(arena).await?;
        let before = arena.effects().await?;
        let slice = self.slice as u64;
        arena.publish(self.traffic.take(self.slice));
        arena.wait_for_recovery(name, before, slice / 20).await?;
        let start = Instant::now();
        does(arena).await.with_context(|| name.to_owned())?;
        let took = start.elapsed();
        // Half of it has an effect, whatever there is of duplicates and of what fails.
        arena.wait_for_recovery(name, before, slice / 2).await?;
        self.steps.push(Step { name, from, took });
        Ok(())
    }
}

/// Shows what the migrations lock.
async fn plan(arena: &Arena) -> anyhow::Result<()> {
    let mut plan = arena.start_oncely(&["migrate", "plan"], "plan")?;
    let status = plan.wait_for_end(LIMIT).await?;
    eprintln!("{}", plan.output().trim_end());
    anyhow::ensure!(status.code() == Some(1), "oncely migrate plan: {status}");
    Ok(())
}

async fn roll(arena: &mut Arena, folder: &Path) -> anyhow::Result<()> {
    let folder: PathBuf = folder.to_owned();
    for number in 0..arena.relays.len() {
        arena.roll_relay(number, &folder).await?;
    }
    for number in 0..arena.workers.len() {
        arena.roll_worker(number, &folder).await?;
    }
    Ok(())
}
