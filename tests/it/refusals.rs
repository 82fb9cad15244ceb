//! A business "no": recorded and answered like an effect, and no dead letter.

use oncely::handler::handler_fn;
use oncely::{BatchHandler, Context, HandlerError, Message, Worker};
use testbed::Redis;
use tokio_util::sync::CancellationToken;

use crate::support::{World, message};

const SOLD_OUT: &str = r#"{"do": "refuse"}"#;
const REFUSED: &str = "select count(*) from oncely.idempotency_keys
    where status = 'COMPLETED' and reason = 'refused' and response = '{\"refused\": \"sold out\"}'";

/// One refused message among good ones: what must have become of it and of them.
async fn books_are_right(world: &mut World, good: i64) {
    world.wait_for(REFUSED, 1).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'completed'", good).await;
    let trail = "select string_agg(outcome || ' ' || detail, ', ') from oncely.audit where key = 'no'";
    assert_eq!(world.text(trail).await.as_deref(), Some("refused sold out"));
    assert_eq!(world.count("select count(*) from app.effects where key = 'no'").await, 0, "rolled back");
    assert_eq!(world.count("select count(*) from app.effects").await, good);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
    assert_eq!(world.count("select count(*) from oncely.processed_keys where key = 'no'").await, 0);
}

async fn a_function_refuses(settings: &str) {
    let mut world = World::new().await;
    world.consumer("shop", settings);
    world.apply_topology().await;
    let mut messages: Vec<_> =
        (0..40).map(|n| (world.queue("shop"), message("acme", &format!("k-{n}")), b"{}".to_vec())).collect();
    messages.insert(20, (world.queue("shop"), message("acme", "no"), SOLD_OUT.into()));
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    books_are_right(&mut world, 40).await;
    world.wait_for_ready(&world.queue("shop"), 0).await;
    // It comes again: the answer stands, nothing runs.
    world.publish("shop", message("acme", "no"), SOLD_OUT).await;
    world.wait_for_ready(&world.queue("shop"), 0).await;
    world.wait_for_line(&worker, "refused 1, duplicates 1").await;
    world.stop(worker).await;
    books_are_right(&mut world, 40).await;
    assert_eq!(world.broker.ready(&format!("{}.dead", world.queue("shop"))).await.unwrap(), 0);
}

#[tokio::test]
async fn a_function_for_one_message_refuses_one_of_many() {
    a_function_refuses("").await;
}

#[tokio::test]
async fn a_function_for_a_batch_refuses_one_of_many() {
    a_function_refuses("handler = { function = \"app.handle_batch\", batch = true }").await;
}

#[tokio::test]
async fn a_message_alone_is_refused_and_a_silent_handler_refuses_too() {
    for handler in ["app.handle", "app.quiet"] {
        let mut world = World::new().await;
        world.consumer("shop", &format!("handler = {{ function = {handler:?} }}"));
        world.apply_topology().await;
        let worker = world.start("worker");
        for key in ["a", "b"] {
            world.publish("shop", message("acme", key), "{}").await;
            world.wait_for(&format!("select count(*) from app.effects where key = '{key}'"), 1).await;
        }
        world.publish("shop", message("acme", "no"), SOLD_OUT).await;
        books_are_right(&mut world, 2).await;
        world.stop(worker).await;
    }
}

/// Refuses only at COMMIT, when nothing of its batch can be taken back by a savepoint.
#[tokio::test]
async fn a_refusal_at_commit_strikes_its_message_alone() {
    let mut world = World::new().await;
    sqlx::raw_sql(
        "create function app.closed() returns trigger language plpgsql as $$
         begin perform oncely.refuse('sold out'); return null; end $$;
         create constraint trigger closed after insert on app.effects deferrable initially deferred
         for each row when (new.key = 'no') execute function app.closed()",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("shop", "");
    world.apply_topology().await;
    let messages: Vec<_> = ["a", "no", "b"]
        .map(|key| (world.queue("shop"), message("acme", key), b"{}".to_vec()))
        .into_iter()
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    books_are_right(&mut world, 2).await;
    world.wait_for_ready(&world.queue("shop"), 0).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_refusal_after_a_failure_and_its_duplicates_are_mirrored_and_answered() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "precheck = \"trust\"");
    world.configure("[relay]\npoll = \"20ms\"");
    sqlx::raw_sql(
        "create function app.late(message oncely.message) returns jsonb language plpgsql as $$
         begin
             insert into app.effects (tenant, consumer, key) values (message.tenant, message.consumer, message.key);
             if message.attempt = 1 then raise exception 'boom'; end if;
             perform oncely.refuse('sold out');
         end $$",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    world.consumer("shop", "handler = { function = \"app.late\" }\nreplies = true");
    world.apply_topology().await;
    let replies = world.queue("replies");
    world.broker.declare_queue(&replies, lapin::types::FieldTable::default()).await.unwrap();
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let question = || message("acme", "no").with_reply_to(replies.as_str().into());
    world.publish("shop", question(), "{}").await;
    let first = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
    assert_eq!(String::from_utf8_lossy(&first.data), r#"{"refused": "sold out"}"#);
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    world.publish("shop", question(), "{}").await;
    let again = world.broker.take_exactly(&replies, 1).await.unwrap().remove(0);
    assert_eq!(again.data, first.data);
    world.publish("shop", message("acme", "no"), "{}").await;
    world.wait_for_line(&worker, "(mirror 1, postgres 1, batch 0)").await;
    world.stop(worker).await;
    world.stop(relay).await;
    let trail = "select string_agg(outcome || attempt, ' ' order by attempt) from oncely.audit";
    assert_eq!(world.text(trail).await.as_deref(), Some("retried1 refused2"));
    let explained = world.oncely(&["explain", "no"]).await;
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("REFUSED: the handler said no") && text.contains("sold out"), "{text}");
    let rows = world.oncely(&["audit", "list", "--outcome", "refused", "--json"]).await;
    let rows: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 1);
}

/// Writes first, then refuses.
struct Shop;

impl BatchHandler for Shop {
    type Responses = ();

    async fn handle_batch(
        &self,
        mut context: Context<'_>,
        messages: &[Message<'_>],
    ) -> Result<(), HandlerError> {
        for message in messages {
            sell(context.reborrow(), *message).await?;
        }
        Ok(())
    }
}

/// An error of an application, which knows nothing of Oncely.
#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("sold out")]
    SoldOut,
    #[error("the shop's books")]
    Books(#[from] sqlx::Error),
}

impl ShopError {
    fn meant(self) -> HandlerError {
        match self {
            Self::SoldOut => HandlerError::refused("sold out"),
            books => books.into(),
        }
    }
}

async fn insert(mut context: Context<'_>, message: Message<'_>) -> Result<(), ShopError> {
    sqlx::query("insert into app.effects (tenant, consumer, key) values ($1, 'shop', $2)")
        .bind(message.tenant())
        .bind(message.key())
        .execute(context.connection())
        .await?;
    match message.key() {
        "no" => Err(ShopError::SoldOut),
        "bad" => {
            sqlx::query("select 'x'::integer").execute(context.connection()).await?;
            Ok(())
        }
        _ => Ok(()),
    }
}

async fn sell(context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
    insert(context, message).await.map_err(ShopError::meant)
}

/// A consumer without a function: the program brings the handler.
async fn rust_world() -> World {
    let mut world = World::new().await;
    world.configure("[[consumers]]\nname = \"shop\"");
    let queue = world.queue("shop");
    world.configure(&format!(
        "queue = {queue:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\n\
         key = {{ property = \"message_id\" }}\nretry = {{ delays = [\"20ms\"], max_attempts = 2 }}"
    ));
    world.apply_topology().await;
    world
}

async fn rust_refuses(with: impl FnOnce(oncely::worker::WorkerBuilder) -> oncely::worker::WorkerBuilder) {
    let mut world = rust_world().await;
    for key in ["a", "no", "b"] {
        world.publish("shop", message("acme", key), "{}").await;
    }
    let stop = CancellationToken::new();
    let worker = with(Worker::builder(world.config())).build().unwrap();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    books_are_right(&mut world, 2).await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_rust_handler_refuses() {
    rust_refuses(|builder| builder.handler("shop", handler_fn(sell))).await;
}

#[tokio::test]
async fn a_rust_handler_for_batches_refuses() {
    rust_refuses(|builder| builder.batch_handler("shop", Shop)).await;
}

/// A handler with an error type of its own: `?` takes it, and PostgreSQL's errors in it keep their class.
#[tokio::test]
async fn an_application_s_own_error_goes_through_the_question_mark() {
    let mut world = rust_world().await;
    for key in ["no", "bad", "fine"] {
        world.publish("shop", message("acme", key), "{}").await;
    }
    let handler =
        handler_fn(async |context: Context<'_>, message: Message<'_>| Ok(insert(context, message).await?));
    let stop = CancellationToken::new();
    let worker = Worker::builder(world.config()).handler("shop", handler).build().unwrap();
    let running = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    world.wait_for("select count(*) from oncely.dead_letters", 2).await;
    let reasons = "select string_agg(key || ' ' || reason || ' ' || attempt, ', ' order by key) from oncely.dead_letters";
    assert_eq!(world.text(reasons).await.as_deref(), Some("bad poison 1, no attempts_exhausted 2"));
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}
