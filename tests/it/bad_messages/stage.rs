//! Queues, worker and witness; and what is found after they have run.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::ExchangeKind;
use sqlx::Row as _;
use testbed::{Corpus, Posting, RawConnection, RawMessage, eventually_within};

use crate::support::World;

/// One world with all consumers of the corpus.
pub(super) struct Stage {
    pub(super) world: World,
    consumers: Vec<String>,
}

/// What the handler was given.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) tenant: String,
    pub(super) key: String,
    pub(super) attempt: i64,
    pub(super) payload: Option<String>,
    /// None for good neighbours: there are many.
    pub(super) body: Option<Vec<u8>>,
    /// The other columns.
    pub(super) row: serde_json::Value,
}

/// What became of all messages; by consumer and routing key.
pub(super) struct Run {
    pub(super) effects: BTreeMap<(String, String), Vec<Seen>>,
    pub(super) letters: BTreeMap<(String, String), Vec<RawMessage>>,
    /// By consumer, outcome and reason.
    pub(super) audit: BTreeMap<(String, String, String), usize>,
    pub(super) problems: Vec<String>,
    pub(super) transactions: usize,
}

impl Stage {
    pub(super) async fn set(corpus: &Corpus, batch: usize) -> Self {
        let mut world = World::new().await;
        sqlx::raw_sql(include_str!("witness.sql")).execute(&mut world.sql).await.unwrap();
        world.configure("[audit]\nduplicates = true");
        for (name, consumer) in &corpus.consumers {
            let mut settings = consumer.settings.clone();
            if !settings.contains("handler =") {
                settings.push_str("\nhandler = { function = \"app.witness\" }");
            }
            settings.push_str(&format!("\nbatch = {batch}\nlanes = 1\n"));
            world.consumer(name, &settings);
        }
        world.apply_topology().await;
        let stage = Self { world, consumers: corpus.consumers.keys().cloned().collect() };
        // A fanout exchange leaves the routing key to us: it tells each message's name, whatever its properties are.
        for consumer in &stage.consumers {
            let exchange = stage.exchange(consumer);
            stage.world.broker.declare_exchange(&exchange, ExchangeKind::Fanout).await.unwrap();
            stage.world.broker.bind(&stage.world.queue(consumer), &exchange, "").await.unwrap();
        }
        stage
    }

    pub(super) fn exchange(&self, consumer: &str) -> String {
        format!("{}.in", self.world.queue(consumer))
    }

    /// Lets a worker decide about so many messages, and looks what became of them.
    pub(super) async fn run(&mut self, decisions: usize, witnesses: impl Fn(usize) -> Vec<Posting>) -> Run {
        let mut problems = Vec::new();
        let mut worker = self.world.start("worker");
        if let Err(problem) = self.decided(decisions, witnesses).await {
            problems.push(problem);
        }
        match worker.terminate(Duration::from_secs(30)).await {
            Ok(status) if status.success() => {}
            other => problems.push(format!("the worker ends: {other:?}; {}", worker.output())),
        }
        // A message that ends the client's connection would come again and again.
        if worker.output().contains("subscription lost") {
            problems.push(format!("a connection ended: {}", worker.output()));
        }
        let queues: Vec<(String, String)> =
            self.consumers.iter().map(|name| (name.clone(), self.world.queue(name))).collect();
        for (_, queue) in &queues {
            let left = self.world.broker.ready(queue).await.unwrap();
            if left > 0 {
                problems.push(format!("{left} messages are left in {queue}"));
            }
        }
        let url = self.world.urls.rabbitmq.clone();
        let letters = tokio::task::spawn_blocking(move || letters(&url, &queues)).await.unwrap();
        let transactions =
            self.world.count("select count(distinct (consumer, occurred_at)) from oncely.audit").await;
        Run {
            effects: self.effects().await,
            letters,
            audit: self.audit().await,
            problems,
            transactions: usize::try_from(transactions).unwrap(),
        }
    }

    /// Waits as long as there is progress. Where there is none, what has failed may wait for others that succeed.
    async fn decided(
        &mut self,
        wanted: usize,
        witnesses: impl Fn(usize) -> Vec<Posting>,
    ) -> Result<(), String> {
        let mut wanted = i64::try_from(wanted).unwrap();
        let mut rounds = 0;
        let query = "select count(*) from oncely.audit where outcome <> 'retried'";
        let mut decided = self.world.count(query).await;
        while decided < wanted {
            let sql = tokio::sync::Mutex::new(&mut self.world.sql);
            let progress = eventually_within(Duration::from_secs(4), "a decision", || async {
                let mut sql = sql.lock().await;
                match sqlx::query_scalar::<_, i64>(query).fetch_one(&mut **sql).await {
                    Ok(found) if found == decided => Err("none".to_owned()),
                    found => found.map_err(|error| error.to_string()),
                }
            });
            decided = match progress.await {
                Ok(decided) => decided,
                Err(_) if rounds < 8 => {
                    let good = witnesses(rounds);
                    rounds += 1;
                    wanted += i64::try_from(good.len()).unwrap();
                    let good: Vec<_> =
                        good.into_iter().map(|one| (self.exchange(&one.consumer), one)).collect();
                    let url = self.world.urls.rabbitmq.clone();
                    let published = tokio::task::spawn_blocking(move || {
                        let mut connection = RawConnection::open(&url).unwrap();
                        for (exchange, one) in good {
                            connection.publish(&exchange, &one.routing_key, &one.wire, &one.body).unwrap();
                        }
                        connection.wait_for_confirms().unwrap();
                    });
                    published.await.unwrap();
                    decided
                }
                Err(error) => {
                    return Err(format!(
                        "the worker decided about {decided} of {wanted} messages, then stood still: {error}"
                    ));
                }
            };
        }
        Ok(())
    }

    async fn effects(&mut self) -> BTreeMap<(String, String), Vec<Seen>> {
        let query = "select consumer, routing_key, tenant, key, attempt::bigint, payload::text,
                case when routing_key not like 'good %' then body end,
                case when routing_key not like 'good %' then to_jsonb(s) - 'body' - 'payload' end
            from app.seen as s";
        sqlx::raw_sql("set timezone = 'UTC'").execute(&mut self.world.sql).await.unwrap();
        let rows = sqlx::query(query).fetch_all(&mut self.world.sql).await.unwrap();
        let mut effects: BTreeMap<_, Vec<Seen>> = BTreeMap::new();
        for row in rows {
            effects.entry((row.get(0), row.get(1))).or_default().push(Seen {
                tenant: row.get(2),
                key: row.get(3),
                attempt: row.get(4),
                payload: row.get(5),
                body: row.get(6),
                row: row.get::<Option<serde_json::Value>, _>(7).unwrap_or_default(),
            });
        }
        effects
    }

    /// Who knew a duplicate does not matter here.
    async fn audit(&mut self) -> BTreeMap<(String, String, String), usize> {
        let query =
            "select consumer, outcome, case when outcome = 'dead_lettered' then reason else '' end, count(*)
            from oncely.audit where outcome <> 'retried' group by 1, 2, 3";
        let rows = sqlx::query(query).fetch_all(&mut self.world.sql).await.unwrap();
        let count = |row: &sqlx::postgres::PgRow| usize::try_from(row.get::<i64, _>(3)).unwrap();
        rows.iter().map(|row| ((row.get(0), row.get(1), row.get(2)), count(row))).collect()
    }
}

/// Takes all dead letters, byte by byte.
fn letters(url: &str, queues: &[(String, String)]) -> BTreeMap<(String, String), Vec<RawMessage>> {
    let mut connection = RawConnection::open(url).unwrap();
    let mut letters: BTreeMap<_, Vec<RawMessage>> = BTreeMap::new();
    for (consumer, queue) in queues {
        while let Some(letter) = connection.take(&format!("{queue}.dead")).unwrap() {
            let name = testbed::as_text(&letter.routing_key);
            letters.entry((consumer.clone(), name)).or_default().push(letter);
        }
    }
    letters
}
