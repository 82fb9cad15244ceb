//! States that a message seldom meets, and what shows that a run has reached them: a trial that never saw one says nothing about it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::Arena;
use crate::Database;

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(1);
/// For one answer: a process may stand still.
const PATIENCE: Duration = Duration::from_millis(500);

/// A state, for reports.
#[derive(Clone, Copy, Debug)]
pub struct Rare {
    /// A short name.
    pub name: &'static str,
    /// What happens in it.
    pub what: &'static str,
    sign: Sign,
}

/// What shows that it was reached.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// What a worker says of itself at `/metrics`.
    Metrics(fn(&Metrics<'_>) -> bool),
    /// A query that says yes at some moment.
    Query(&'static str),
    /// A process whose name begins so has logged it.
    Said(&'static str, &'static str),
}

const fn rare(name: &'static str, what: &'static str, sign: Sign) -> Rare {
    Rare { name, what, sign }
}

impl Rare {
    /// All of them.
    pub const ALL: [Self; 29] = [
        rare(
            "commit_decided_late",
            "the reply to a COMMIT is lost, and the key says whether it was done",
            Sign::Metrics(|said| said.sum("oncely_commit_unknown_total", "") > 0.0),
        ),
        rare(
            "batch_in_parts",
            "a batch fails as a whole, and its messages run in parts",
            Sign::Metrics(|said| said.sum("oncely_batch_fallbacks_total", "") > 0.0),
        ),
        rare(
            "turn_taken",
            "batches collide, and run one at a time over all processes",
            Sign::Metrics(|said| said.sum("oncely_consumer_contended", "") > 0.0),
        ),
        rare(
            "deadlock",
            "two transactions wait for each other until PostgreSQL ends one",
            Sign::Query("select deadlocks > 0 from pg_stat_database where datname = current_database()"),
        ),
        rare(
            "stall",
            "no message succeeds, and those that fail wait for a witness",
            Sign::Metrics(|said| said.sum("oncely_consumer_paused", "environment") > 0.0),
        ),
        rare(
            "witness_after_a_stall",
            "the first message succeeds after a stall, and those that waited come back",
            Sign::Said("worker", "consuming continues"),
        ),
        rare(
            "aside_is_full",
            "half of the prefetch waits aside",
            Sign::Metrics(|said| {
                said.sum("oncely_aside_messages", "") * 2.0 >= said.sum("oncely_prefetch_messages", "").max(1.0)
            }),
        ),
        rare(
            "run_that_died",
            "a redelivered message is counted as one that its process may have died of",
            Sign::Metrics(|said| said.sum("oncely_crash_attempts_total", "") > 0.0),
        ),
        rare(
            "stale_acknowledgement",
            "a message is decided when its channel is gone, and comes again",
            Sign::Metrics(|said| said.sum("oncely_acknowledgements_total", "stale") > 0.0),
        ),
        rare(
            "known_to_the_mirror",
            "a duplicate is acknowledged by what Redis says",
            Sign::Metrics(|said| said.sum("oncely_duplicates_total", "mirror") > 0.0),
        ),
        rare(
            "mirror_given_up",
            "Redis does not answer, and is not asked for a while",
            Sign::Metrics(|said| said.sum("oncely_mirror_breaker_open", "") > 0.0),
        ),
        rare(
            "copy_waits",
            "a copy for a retry or dead-letter queue does not arrive, and its original waits",
            Sign::Metrics(|said| said.sum("oncely_unsettled_messages", "") > 0.0),
        ),
        rare(
            "key_conflict",
            "a key comes back with another payload",
            Sign::Query("select exists (select from judge.trail where reason = 'key_conflict')"),
        ),
        rare(
            "requeue_under_way",
            "dead letters are decided to be requeued and not yet known to be published, while workers run",
            Sign::Query("select exists (select from oncely.dead_letters where state = 'requeueing')"),
        ),
        rare(
            "came_back",
            "a message is dead-lettered again after its requeue",
            Sign::Query("select exists (select from oncely.dead_letters where generation > 1)"),
        ),
        rare(
            "event_parked",
            "an event is given up until a person decides",
            Sign::Query("select exists (select from oncely.events where state = 'parked')"),
        ),
        rare(
            "key_collected",
            "a key is forgotten after its retention",
            Sign::Query(
                "select exists (
                     select from judge.log as l
                     where l.day < judge.today() - 5 and not exists (
                         select from oncely.idempotency_keys as i where i.tenant = l.tenant and i.consumer = 'faults' and i.key = l.key
                     )
                 )",
            ),
        ),
        rare(
            "forgotten_and_returned",
            "a key is forgotten after its retention, and takes effect again",
            Sign::Query(
                "select exists (select from judge.log where tenant = 'forgotten' group by key having count(*) > 1)",
            ),
        ),
        rare(
            "erased_and_returned",
            "a tenant is erased with its keys, and they take effect again",
            Sign::Query(
                "select exists (select from judge.log where tenant = 'returning' group by key having count(*) > 1)",
            ),
        ),
        rare(
            "lease_taken_over",
            "a lease runs out, and another run takes its key over",
            Sign::Query("select exists (select from judge.lease_trail where outcome = 'taken_over')"),
        ),
        rare(
            "taken_over_dead",
            "another process takes over what one that died held",
            Sign::Query(
                "select exists (
                     select from judge.lease_trail as t
                     where t.outcome = 'taken_over' and not exists (
                         select from judge.lease_trail as f where f.tenant = t.tenant and f.key = t.key and f.outcome = 'fenced'
                     )
                 )",
            ),
        ),
        rare(
            "taken_over_alive",
            "a process loses its lease to another one, and comes back",
            Sign::Query(
                "select exists (
                     select from judge.lease_trail as t join judge.lease_trail as f using (tenant, key)
                     where t.outcome = 'taken_over' and f.outcome = 'fenced' and f.worker <> t.worker
                 )",
            ),
        ),
        rare(
            "grace_after_an_outage",
            "a lease runs out while nobody could reach the server, and is given another one",
            Sign::Query(
                "select exists (select from oncely.idempotency_keys where consumer = 'charges' and grace_ends_at is not null)",
            ),
        ),
        rare(
            "outcome_unknown",
            "a run is given up because nobody knows what it has done",
            Sign::Query("select exists (select from judge.lease_trail where reason = 'outcome_unknown')"),
        ),
        rare(
            "gateway_takes_over",
            "a gateway takes over a request that another one held",
            Sign::Query("select exists (select from oncely.audit where consumer = 'proxied' and outcome = 'taken_over')"),
        ),
        rare(
            "gateway_does_not_know",
            "a gateway answers that nobody knows what became of a request",
            Sign::Metrics(|said| said.sum("oncely_gateway_requests_total", "outcome-unknown") > 0.0),
        ),
        rare(
            "settled",
            "a person says that a call did not happen, and its message runs again",
            Sign::Query(
                "select exists (
                     select from oncely.operator_actions
                     where verb = 'settle_claim' and filter @> '{\"consumer\": \"charges\", \"took_effect\": false}'
                 )",
            ),
        ),
        rare(
            "unknown_requeued",
            "a message that was given up because nobody knew is requeued",
            Sign::Query(
                "select exists (select from oncely.dead_letters where consumer = 'charges' and state = 'requeued')",
            ),
        ),
        rare(
            "late_result",
            "a result comes after its key was given up, and resolves it",
            Sign::Query(
                "select exists (select from judge.lease_trail where outcome = 'fenced' and detail like '%knows what became of its call%')",
            ),
        ),
    ];
}

/// What one process says at `/metrics`.
struct Metrics<'a>(&'a str);

impl Metrics<'_> {
    /// The sum of a metric's series with this value of a label; of all, where it is empty.
    fn sum(&self, metric: &str, label: &str) -> f64 {
        let series = self.0.lines().filter_map(|line| {
            let (labels, value) = line.strip_prefix(metric)?.rsplit_once(' ')?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            let has_label = label.is_empty() || labels.contains(&format!("=\"{label}\""));
            (is_it && has_label).then(|| value.parse::<f64>().ok())?
        });
        series.sum()
    }
}

/// Looks all the time. Ends with this value.
#[derive(Debug)]
pub(super) struct RareStates {
    reached: Arc<Mutex<BTreeSet<&'static str>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl RareStates {
    fn start(database: &Database, ports: &[u16]) -> Self {
        let reached = Arc::new(Mutex::new(BTreeSet::new()));
        let scrapes = ports.iter().map(|port| tokio::spawn(scrape(*port, Arc::clone(&reached))));
        let mut tasks: Vec<_> = scrapes.collect();
        tasks.push(tokio::spawn(ask(database.clone(), Arc::clone(&reached))));
        Self { reached, tasks }
    }
}

impl Drop for RareStates {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn mark_reached(reached: &Mutex<BTreeSet<&'static str>>, state: &Rare) {
    reached.lock().unwrap_or_else(PoisonError::into_inner).insert(state.name);
}

fn unreached(reached: &Mutex<BTreeSet<&'static str>>) -> Vec<Rare> {
    let reached = reached.lock().unwrap_or_else(PoisonError::into_inner);
    Rare::ALL.into_iter().filter(|state| !reached.contains(state.name)).collect()
}

async fn scrape(port: u16, reached: Arc<Mutex<BTreeSet<&'static str>>>) {
    loop {
        if let Ok(Ok(text)) = tokio::time::timeout(PATIENCE, read_metrics(port)).await {
            for state in unreached(&reached) {
                if matches!(state.sign, Sign::Metrics(shows) if shows(&Metrics(&text))) {
                    mark_reached(&reached, &state);
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn read_metrics(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn ask(database: Database, reached: Arc<Mutex<BTreeSet<&'static str>>>) {
    loop {
        // A server that is away is asked again.
        if let Ok(mut connection) = database.connect().await {
            while ask_once(&mut connection, &reached).await.is_ok() {
                tokio::time::sleep(LOOK).await;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn ask_once(
    connection: &mut PgConnection,
    reached: &Mutex<BTreeSet<&'static str>>,
) -> Result<(), sqlx::Error> {
    for state in unreached(reached) {
        if let Sign::Query(query) = state.sign
            && sqlx::query_scalar(query).fetch_one(&mut *connection).await?
        {
            mark_reached(reached, &state);
        }
    }
    Ok(())
}

/// Has a process whose name begins so said this, by its log?
fn has_logged(folder: &Path, program: &str, text: &str) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(program) && String::from_utf8_lossy(&std::fs::read(&path)?).contains(text) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Arena {
    /// From now on it is noted which of [`Rare::ALL`] are reached.
    pub fn watch_rare_states(&mut self) {
        let charging = self.charging.iter().flat_map(|charging| charging.members());
        let gateways = self.gateways.iter().flat_map(|gateways| gateways.members());
        let observer = self.observer.iter().flat_map(|observer| observer.members());
        let members = self.workers.iter().chain(charging).chain(gateways).chain(observer);
        let ports = members.filter_map(|member| member.metrics);
        let ports: Vec<u16> = ports.collect();
        self.rare = Some(RareStates::start(&self.database, &ports));
    }

    /// Names of those of [`Rare::ALL`] that were reached since.
    pub async fn rare_states(&mut self) -> anyhow::Result<BTreeSet<&'static str>> {
        let Some(rare) = self.rare.take() else { return Ok(BTreeSet::new()) };
        ask_once(&mut self.connect().await?, &rare.reached).await?;
        for state in unreached(&rare.reached) {
            if let Sign::Said(program, text) = state.sign
                && has_logged(self.folder(), program, text)?
            {
                mark_reached(&rare.reached, &state);
            }
        }
        Ok(rare.reached.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}
