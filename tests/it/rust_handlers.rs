//! Handlers written in Rust, embedded with `Worker::builder()`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt as _;
use oncely::handler::{Json, handler_fn};
use oncely::worker::StopOutcome;
use oncely::{BatchHandler, Context, Handler, HandlerError, Message, Worker};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{World, message};

/// Does what the payload says, and counts its calls.
#[derive(Clone, Default)]
struct Obedient {
    calls: Arc<AtomicU32>,
}

impl Handler for Obedient {
    type Response = Value;

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<Value, HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let payload: Value = message.json()?;
        let insert = "insert into app.effects (tenant, consumer, key, attempt) values ($1, 'rust', $2, $3)";
        sqlx::query(insert)
            .bind(message.tenant())
            .bind(message.key())
            .bind(i32::try_from(message.attempt()).unwrap_or(0))
            .execute(context.connection())
            .await?;
        match payload["do"].as_str() {
            Some("fail") => return Err(HandlerError::transient("boom")),
            Some("fail_once") if message.attempt() == 1 => return Err(HandlerError::transient("boom")),
            Some("reject") => return Err(HandlerError::permanent("no such account")),
            Some("panic") => panic!("out of luck"),
            Some("hang") => std::future::pending().await,
            Some("divide") => {
                sqlx::query("select 1 / 0").execute(context.connection()).await?;
            }
            Some("swallow") => {
                let _ = sqlx::query("select 1 / 0").execute(context.connection()).await;
            }
            Some("commit") => {
                context.connection().execute("commit").await?;
            }
            Some("rollback") => {
                context.connection().execute("rollback").await?;
            }
            _ => {}
        }
        Ok(json!({ "done": message.key() }))
    }
}

fn run(worker: Worker) -> (CancellationToken, JoinHandle<StopOutcome>) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    (stop, tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }))
}

async fn end((stop, task): (CancellationToken, JoinHandle<StopOutcome>)) {
    stop.cancel();
    assert_eq!(task.await.unwrap(), StopOutcome::Clean);
}

async fn world() -> World {
    let mut world = World::new().await;
    world.configure("[[consumers]]\nname = \"rust\"");
    let text = format!(
        "queue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
         retry = {{ delays = [\"50ms\"], max_attempts = 2 }}",
        world.queue("rust")
    );
    world.configure(&text);
    world.apply_topology().await;
    world
}

async fn dead(world: &World, count: usize) -> Vec<(String, String)> {
    let letters = world.broker.take_exactly(&format!("{}.dead", world.queue("rust")), count).await.unwrap();
    let mut found: Vec<(String, String)> = letters
        .iter()
        .map(|letter| {
            let header = letter.properties.headers().as_ref().unwrap().inner().get("x-oncely-reason");
            let Some(lapin::types::AMQPValue::LongString(reason)) = header else { panic!("no reason") };
            (letter.properties.message_id().as_ref().unwrap().to_string(), reason.to_string())
        })
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn a_rust_handler_writes_in_the_transaction_of_the_key() {
    let mut world = world().await;
    let handler = Obedient::default();
    let worker = Worker::builder(world.config()).handler("rust", handler.clone()).build().unwrap();
    let running = run(worker);
    for key in ["a", "b", "a"] {
        world.publish("rust", message("acme", key), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for_ready(&world.queue("rust"), 0).await;
    end(running).await;
    assert_eq!(handler.calls.load(Ordering::Relaxed), 2, "a duplicate calls no handler");
    let response =
        world.text("select response ->> 'done' from oncely.idempotency_keys where key = 'a'").await;
    assert_eq!(response.as_deref(), Some("a"));
}

#[tokio::test]
async fn each_bad_ending_is_that_messages_alone() {
    let mut world = world().await;
    let running = run(Worker::builder(world.config()).handler("rust", Obedient::default()).build().unwrap());
    let cases = ["divide", "fail", "fail_once", "fine", "panic", "reject", "swallow"];
    for case in cases {
        world.publish("rust", message("acme", case), &format!(r#"{{"do": {case:?}}}"#)).await;
    }
    world.publish("rust", message("acme", "not json"), "oops").await;
    let found = dead(&world, 6).await;
    world.wait_for("select count(*) from app.effects", 2).await;
    end(running).await;
    let expected = [
        ("divide", "poison"),
        ("fail", "attempts_exhausted"),
        ("not json", "handler_rejected"),
        ("panic", "attempts_exhausted"),
        ("reject", "handler_rejected"),
        ("swallow", "attempts_exhausted"),
    ];
    assert_eq!(found, expected.map(|(key, reason)| (key.to_owned(), reason.to_owned())));
    let keys = "select string_agg(key, ' ' order by key) from app.effects";
    assert_eq!(world.text(keys).await.as_deref(), Some("fail_once fine"));
}

#[tokio::test]
async fn a_handler_that_never_returns_is_dropped_with_its_connection_and_costs_its_neighbours_nothing() {
    let mut world = world().await;
    // The last lines of the configuration are its only consumer's.
    world.configure("deadline = \"200ms\"");
    let running = run(Worker::builder(world.config()).handler("rust", Obedient::default()).build().unwrap());
    for case in ["fine", "hang", "well"] {
        world.publish("rust", message("acme", case), &format!(r#"{{"do": {case:?}}}"#)).await;
    }
    assert_eq!(dead(&world, 1).await, [("hang".to_owned(), "attempts_exhausted".to_owned())]);
    world.wait_for("select count(*) from app.effects", 2).await;
    end(running).await;
    let open =
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'";
    assert_eq!(world.count(open).await, 0, "its transaction is not left in the server");
}

#[tokio::test]
async fn a_handler_that_swallows_an_error_never_gets_a_message_acknowledged_as_done() {
    let mut world = world().await;
    let running = run(Worker::builder(world.config()).handler("rust", Obedient::default()).build().unwrap());
    // COMMIT of an aborted transaction reports success: without a guard this effect would be lost.
    world.publish("rust", message("acme", "k"), r#"{"do": "swallow"}"#).await;
    assert_eq!(dead(&world, 1).await, [("k".to_owned(), "attempts_exhausted".to_owned())]);
    end(running).await;
    assert_eq!(
        world.count("select count(*) from oncely.idempotency_keys where status = 'COMPLETED'").await,
        0
    );
}

#[tokio::test]
async fn a_handler_that_ends_its_transaction_is_noticed() {
    let mut world = world().await;
    let running = run(Worker::builder(world.config()).handler("rust", Obedient::default()).build().unwrap());
    world.publish("rust", message("acme", "rollback"), r#"{"do": "rollback"}"#).await;
    assert_eq!(dead(&world, 1).await, [("rollback".to_owned(), "attempts_exhausted".to_owned())]);
    // What a handler commits on its own is committed with its key: it is not run again, whatever follows.
    world.publish("rust", message("acme", "commit"), r#"{"do": "commit"}"#).await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_ready(&world.queue("rust"), 0).await;
    end(running).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'commit'").await, 1);
    assert_eq!(world.broker.ready(&world.queue("rust")).await.unwrap(), 0);
}

/// Drops a nested `begin()` for one message, and waits at a gate with another one.
struct Dropping {
    inside: Arc<Notify>,
    opened: Arc<Notify>,
}

impl Handler for Dropping {
    type Response = ();

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
        match message.key() {
            "gate" => {
                self.inside.notify_one();
                self.opened.notified().await;
            }
            // The SAVEPOINT is on its way; sqlx takes back everything.
            "culprit" => {
                assert!(context.connection().begin().now_or_never().is_none());
            }
            _ => {}
        }
        if message.key() != "culprit" {
            insert(context, message).await?;
        }
        Ok(())
    }
}

async fn insert(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
    let insert = "insert into app.effects (tenant, consumer, key) values ('acme', 'rust', $1)";
    sqlx::query(insert).bind(message.key()).execute(context.connection()).await?;
    Ok(())
}

#[tokio::test]
async fn a_handler_that_drops_a_nested_transaction_half_way_doubles_no_neighbour() {
    let mut world = world().await;
    world.configure("lanes = 1");
    let (entered, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (inside, opened) = (Arc::clone(&entered), Arc::clone(&gate));
    let handler = Dropping { inside, opened };
    let running = run(Worker::builder(world.config()).handler("rust", handler).build().unwrap());
    world.publish("rust", message("acme", "gate"), "{}").await;
    entered.notified().await;
    world.publish("rust", message("acme", "culprit"), "{}").await;
    for number in 0..9 {
        world.publish("rust", message("acme", &format!("k{number}")), "{}").await;
    }
    // All of them are with the worker: one batch.
    world.wait_for_ready(&world.queue("rust"), 0).await;
    gate.notify_one();
    assert_eq!(dead(&world, 1).await, [("culprit".to_owned(), "attempts_exhausted".to_owned())]);
    world.wait_for("select count(*) from oncely.idempotency_keys where status = 'COMPLETED'", 10).await;
    end(running).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 10, "one each");
    assert_eq!(world.count("select count(distinct key) from app.effects").await, 10);
}

/// Writes all messages with one statement; forgets to answer for those that say so.
struct Batched;

impl BatchHandler for Batched {
    type Responses = Vec<()>;

    async fn handle_batch(
        &self,
        mut context: Context<'_>,
        messages: &[Message<'_>],
    ) -> Result<Vec<()>, HandlerError> {
        let keys: Vec<String> = messages.iter().map(|m| m.key().to_owned()).collect();
        let insert = "insert into app.effects (tenant, consumer, key) select 'acme', 'rust', key from unnest($1::text[]) as key";
        sqlx::query(insert).bind(&keys).execute(context.connection()).await?;
        Ok(messages.iter().filter(|m| m.body() != b"forget").map(|_| ()).collect())
    }
}

#[tokio::test]
async fn a_batch_handler_answers_for_every_message() {
    let mut world = world().await;
    for number in 0..20 {
        world.publish("rust", message("acme", &format!("k{number:02}")), "{}").await;
    }
    world.publish("rust", message("acme", "bad"), "forget").await;
    let running = run(Worker::builder(world.config()).batch_handler("rust", Batched).build().unwrap());
    assert_eq!(dead(&world, 1).await, [("bad".to_owned(), "attempts_exhausted".to_owned())]);
    world.wait_for("select count(*) from app.effects", 20).await;
    end(running).await;
    assert_eq!(world.count("select count(*) from app.effects where key = 'bad'").await, 0);
}

/// Comes back from the key "slow" only once the server has ended its session (idle_in_transaction_session_timeout).
struct Dawdling {
    watcher: Mutex<PgConnection>,
}

impl Handler for Dawdling {
    type Response = ();

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
        if message.key() == "slow" {
            let session = sqlx::query_scalar("select pg_backend_pid()");
            let pid: i32 = session.fetch_one(context.connection()).await?;
            testbed::eventually("the server has ended the session", || async {
                let is_there =
                    sqlx::query_scalar("select exists (select from pg_stat_activity where pid = $1)");
                match is_there.bind(pid).fetch_one(&mut *self.watcher.lock().await).await {
                    Ok(false) => Ok(()),
                    answer => Err(answer),
                }
            })
            .await
            .unwrap();
        }
        insert(context, message).await
    }
}

#[tokio::test]
async fn a_handler_that_dawdles_in_its_transaction_uses_up_its_attempts() {
    let mut world = world().await;
    world.configure("[postgres]\nstatement_timeout = \"1s\"\nlock_timeout = \"1s\"");
    let handler = Dawdling { watcher: Mutex::new(world.database.connect().await.unwrap()) };
    let running = run(Worker::builder(world.config()).handler("rust", handler).build().unwrap());
    world.publish("rust", message("acme", "slow"), "{}").await;
    world.publish("rust", message("acme", "quick"), "{}").await;
    assert_eq!(dead(&world, 1).await, [("slow".to_owned(), "attempts_exhausted".to_owned())]);
    world.wait_for("select count(*) from app.effects", 1).await;
    end(running).await;
    assert_eq!(world.text("select key from app.effects").await.as_deref(), Some("quick"));
}

/// Sleeps in PostgreSQL for as many seconds as the key says, and counts the messages of "acme" that it gets.
#[derive(Clone, Default)]
struct Sleeping {
    of_acme: Arc<AtomicU32>,
}

impl Handler for Sleeping {
    type Response = ();

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
        let (kind, seconds) = message.key().split_once('-').unwrap();
        self.of_acme.fetch_add(u32::from(message.tenant() == "acme"), Ordering::Relaxed);
        if kind == "bad" {
            return Err(HandlerError::transient("boom"));
        }
        let seconds: f64 = seconds.parse().unwrap();
        sqlx::query("select pg_sleep($1)").bind(seconds).execute(context.connection()).await?;
        insert(context, message).await
    }
}

/// A batch that one message fails at once, with others behind it that use up their time.
#[tokio::test]
async fn handlers_that_use_up_their_time_keep_another_tenants_messages_waiting_for_one_of_them() {
    those_out_of_time_keep_others_waiting_for_one("first-0.05", "quick-0.00").await;
}

/// Batches of one message, since the first one took long; those from aside come back while some still wait.
#[tokio::test]
async fn handlers_that_use_up_their_time_keep_small_batches_of_another_tenant_waiting_for_one_of_them() {
    those_out_of_time_keep_others_waiting_for_one("first-1", "quick-0.30").await;
}

async fn those_out_of_time_keep_others_waiting_for_one(first: &str, quick: &str) {
    let mut world = world().await;
    let settings = format!("queue = {:?}", world.queue("rust"));
    world.reconfigure(&settings, &format!("{settings}\nlanes = 1\nfair = true\ndeadline = \"2s\""));
    let handler = Sleeping::default();
    let messages = [("initech", first.to_owned()), ("initech", "bad-0".to_owned())]
        .into_iter()
        .chain((600..610).map(|seconds| ("acme", format!("slow-{seconds}"))))
        .chain((0..10).map(|n| ("globex", format!("{quick}{n}"))));
    let queue = world.queue("rust");
    let messages = messages.map(|(tenant, key)| (queue.clone(), message(tenant, &key), b"{}".to_vec()));
    world.broker.publish_all("", messages.collect()).await.unwrap();
    // All others are there when the lane has done the first one.
    let running = run(Worker::builder(world.config()).handler("rust", handler.clone()).build().unwrap());
    world.wait_for("select count(*) from app.effects", 11).await;
    let of_acme = handler.of_acme.load(Ordering::Relaxed);
    end(running).await;
    // In a batch, by itself, and once more for each time as long of the others.
    assert!(of_acme <= 6, "{of_acme} times a message used up its time before the others were done");
}

/// A limit of statements is none of COMMIT's, and a commit that is waited for no longer may happen all the same.
#[tokio::test]
async fn a_commit_that_takes_longer_than_a_statement_may_is_no_failure_within_its_deadline() {
    let mut world = world().await;
    world.configure("[postgres]\nstatement_timeout = \"1s\"\nlock_timeout = \"1s\"");
    sqlx::raw_sql(
        "create function app.take_a_while() returns trigger language plpgsql as $$
         begin
             perform pg_sleep(9);
             return null;
         end $$;
         create constraint trigger takes_a_while after insert on app.effects deferrable initially deferred
             for each row execute function app.take_a_while()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let handler =
        handler_fn(async |context: Context<'_>, message: Message<'_>| insert(context, message).await);
    let running = run(Worker::builder(world.config()).handler("rust", handler).build().unwrap());
    world.publish("rust", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from oncely.audit", 1).await;
    end(running).await;
    assert_eq!(world.text("select outcome::text from oncely.audit").await.as_deref(), Some("completed"));
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

/// Panics before its future exists.
struct Hasty;

impl Handler for Hasty {
    type Response = ();

    #[allow(clippy::manual_async_fn)]
    fn handle(
        &self,
        _: Context<'_>,
        message: Message<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        assert!(message.key() != "bad", "out of luck");
        async { Ok(()) }
    }
}

#[tokio::test]
async fn a_panic_before_the_handlers_future_is_that_messages_failure_too() {
    let mut world = world().await;
    let running = run(Worker::builder(world.config()).handler("rust", Hasty).build().unwrap());
    world.publish("rust", message("acme", "bad"), "{}").await;
    world.publish("rust", message("acme", "good"), "{}").await;
    assert_eq!(dead(&world, 1).await, [("bad".to_owned(), "attempts_exhausted".to_owned())]);
    world.wait_for("select count(*) from oncely.processed_keys where key = 'good'", 1).await;
    end(running).await;
}

#[tokio::test]
async fn functions_and_closures_are_handlers() {
    let mut world = world().await;
    let closure = handler_fn(async |mut context: Context<'_>, message: Message<'_>| {
        let insert = "insert into app.effects (tenant, consumer, key) values ('acme', 'rust', $1)";
        sqlx::query(insert).bind(message.key()).execute(context.connection()).await?;
        Ok(Json(vec![message.key().to_owned()]))
    });
    let running = run(Worker::builder(world.config()).handler("rust", closure).build().unwrap());
    world.publish("rust", message("acme", "1"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    end(running).await;
    let function = Worker::builder(world.config()).handler("rust", handler_fn(insert));
    let running = run(function.build().unwrap());
    world.publish("rust", message("acme", "2"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    end(running).await;
    let responses = "select string_agg(key || coalesce(response::text, '-'), ' ' order by key) from oncely.idempotency_keys";
    assert_eq!(world.text(responses).await.as_deref(), Some("1[\"1\"] 2-"));
}

#[tokio::test]
async fn a_builder_refuses_consumers_without_handlers_and_handlers_without_consumers() {
    let world = world().await;
    let missing = Worker::builder(world.config()).build().unwrap_err().to_string();
    assert!(missing.contains("consumers.rust.handler: is missing"), "{missing}");
    let unknown = Worker::builder(world.config())
        .handler("rust", Obedient::default())
        .handler("rsut", Obedient::default());
    let unknown = unknown.build().unwrap_err().to_string();
    assert!(unknown.contains("consumers.rsut: the program brings a handler"), "{unknown}");
}

/// Reads a table whose columns may change.
struct Reader;

impl Handler for Reader {
    type Response = ();

    async fn handle(&self, mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
        sqlx::query("select * from app.wide").fetch_all(context.connection()).await?;
        sqlx::query("insert into app.effects (tenant, consumer, key, attempt) values ($1, 'rust', $2, $3)")
            .bind(message.tenant())
            .bind(message.key())
            .bind(i32::try_from(message.attempt()).unwrap_or(0))
            .execute(context.connection())
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_table_that_changes_under_a_handlers_prepared_statement_spends_no_attempt() {
    let mut world = world().await;
    world.sql.execute("create table app.wide (a integer); insert into app.wide values (1)").await.unwrap();
    let running = run(Worker::builder(world.config()).handler("rust", Reader).build().unwrap());
    // Enough for both lanes to have prepared it.
    for round in 0..6 {
        for number in 0..10 {
            world.publish("rust", message("acme", &format!("before{round}-{number}")), "{}").await;
        }
        world.wait_for("select count(*) from app.effects", (round + 1) * 10).await;
    }
    world.sql.execute("alter table app.wide add column b integer").await.unwrap();
    for number in 0..20 {
        world.publish("rust", message("acme", &format!("after{number}")), "{}").await;
    }
    world.wait_for("select count(*) from app.effects where attempt = 1", 80).await;
    end(running).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}
