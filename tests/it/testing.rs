//! `oncely::testing`: what an embedding program's tests are told, and what they find.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncely::handler::Json;
use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::lease::{Call, Repeat};
use oncely::reason::Reason;
use oncely::testing::{Harness, HarnessError, IncomingMessage, KillPoint, TestOutcome};
use oncely::{BatchHandler, Config, Context, Handler, HandlerError, Message, Worker};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};
use testbed::proxy::{Mode, Proxy};

use crate::support::World;

#[path = "../../examples/testing/payments.rs"]
mod payments;

/// Does what the payload says, and counts its calls.
#[derive(Clone, Default)]
struct Obedient {
    calls: Arc<AtomicU32>,
    /// Where it writes behind the transaction's back.
    database: String,
}

impl Handler for Obedient {
    type Response = Json<Value>;

    async fn handle(
        &self,
        mut context: Context<'_>,
        message: Message<'_>,
    ) -> Result<Json<Value>, HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let payload: Value = message.json()?;
        let insert = "insert into app.effects (tenant, consumer, key, attempt) values ($1, 'rust', $2, $3)";
        let effect = sqlx::query(insert)
            .bind(message.tenant().to_owned())
            .bind(message.key().to_owned())
            .bind(i32::try_from(message.attempt()).unwrap_or(0));
        match payload["do"].as_str() {
            Some("elsewhere") => {
                effect.execute(&mut PgConnection::connect(&self.database).await?).await?;
            }
            Some("commit") => {
                effect.execute(context.connection()).await?;
                context.connection().execute("commit").await?;
            }
            Some("commit_and_begin") => {
                effect.execute(context.connection()).await?;
                context.connection().execute("commit").await?;
                context.connection().execute("begin; savepoint oncely_handler").await?;
            }
            _ => {
                effect.execute(context.connection()).await?;
            }
        }
        match payload["do"].as_str() {
            Some("fail") => return Err(HandlerError::transient("boom")),
            Some("fail_once") if message.attempt() == 1 => return Err(HandlerError::transient("boom")),
            Some("refuse") => return Err(HandlerError::refused("sold out")),
            Some("hang") => std::future::pending().await,
            Some("away") => return Err(HandlerError::environment("the warehouse is closed")),
            Some("end") => {
                context.connection().execute("select pg_terminate_backend(pg_backend_pid())").await?;
            }
            _ => {}
        }
        Ok(Json(json!({ "done": message.key() })))
    }
}

/// One row per message.
struct Together;

impl BatchHandler for Together {
    type Responses = ();

    async fn handle_batch(
        &self,
        mut context: Context<'_>,
        messages: &[Message<'_>],
    ) -> Result<(), HandlerError> {
        for message in messages {
            sqlx::query("insert into app.effects (tenant, consumer, key) values ($1, 'batch', $2)")
                .bind(message.tenant())
                .bind(message.key())
                .execute(context.connection())
                .await?;
        }
        Ok(())
    }
}

/// Three consumers, of each kind of handler one.
async fn world() -> World {
    let mut world = World::new().await;
    for name in ["rust", "batch"] {
        world.consumer(name, "handler = { function = \"app.handle\" }\nretry = { delays = [\"10s\", \"1m\"], max_attempts = 3 }");
        // The program brings it.
        world.reconfigure("handler = { function = \"app.handle\" }\n", "");
    }
    world.consumer("sql", "retry = { delays = [\"10s\", \"1m\"], max_attempts = 3 }");
    // Nobody listens there.
    world.urls.rabbitmq = "amqp://127.0.0.1:1".to_owned();
    world
}

fn worker(world: &World) -> (Worker, Obedient) {
    let handler = Obedient { database: world.database.url().to_owned(), ..Obedient::default() };
    let worker = Worker::builder(world.config())
        .handler("rust", handler.clone())
        .batch_handler("batch", Together)
        .build()
        .unwrap();
    (worker, handler)
}

async fn harness(world: &World) -> Harness {
    Harness::connect(worker(world).0).await.unwrap()
}

fn incoming(key: &str, what: &str) -> IncomingMessage {
    IncomingMessage::json(&json!({ "do": what })).message_id(key).header("x-tenant-id", "acme")
}

async fn effects(world: &mut World, key: &str) -> i64 {
    world.count(&format!("select count(*) from app.effects where key = '{key}'")).await
}

#[tokio::test]
async fn every_kind_of_handler_has_one_effect_wherever_its_process_dies() {
    let mut world = world().await;
    let mut test = harness(&world).await;
    for consumer in ["rust", "batch", "sql"] {
        for step in KillPoint::ALL {
            let key = format!("{consumer} {step:?}");
            let message = incoming(&key, "write");
            test.kill_at(step, consumer, &message).await.unwrap();
            let committed = i64::from(step == KillPoint::AfterCommit);
            assert_eq!(effects(&mut world, &key).await, committed, "{key}: what was not committed is gone");
            let outcome = test.redeliver(consumer, &message).await.unwrap();
            assert!(
                outcome.took_effect() && outcome.is_duplicate() == (committed == 1),
                "{key}: {outcome:?}"
            );
            assert_eq!(effects(&mut world, &key).await, 1, "{key}");
        }
    }
}

#[tokio::test]
async fn a_handler_that_writes_through_another_connection_is_found() {
    let mut world = world().await;
    let mut test = harness(&world).await;
    let message = incoming("k", "elsewhere");
    test.kill_at(KillPoint::BeforeCommit, "rust", &message).await.unwrap();
    assert!(test.redeliver("rust", &message).await.unwrap().took_effect());
    assert_eq!(effects(&mut world, "k").await, 2, "one of them is not of the message's transaction");
}

#[tokio::test]
async fn a_handler_that_commits_behind_our_back_is_found() {
    let world = world().await;
    let mut test = harness(&world).await;
    // The worker sees the first one itself, by its savepoint that is gone; the second covers its tracks.
    for what in ["commit", "commit_and_begin"] {
        let early = test.kill_at(KillPoint::BeforeCommit, "rust", &incoming(what, what)).await;
        assert!(
            matches!(&early, Err(HarnessError::CommittedByHandler { step: KillPoint::BeforeCommit })),
            "{what}: {early:?}"
        );
    }
}

#[tokio::test]
async fn the_handlers_of_the_book_keep_their_tests() {
    for rust in [true, false] {
        let mut world = World::new().await;
        let table = "create table app.payments (tenant text, order_id text, amount numeric)";
        sqlx::raw_sql(table).execute(&mut world.sql).await.unwrap();
        let url = world.database.url();
        match rust {
            true => payments::a_payment_is_made_once_wherever_the_worker_dies(url).await,
            false => payments::what_comes_twice_or_cannot_be_paid(url).await,
        }
        .unwrap();
    }
}

#[tokio::test]
async fn retries_go_by_the_harness_s_clock() {
    let world = world().await;
    let (worker, handler) = worker(&world);
    let mut test = Harness::connect(worker).await.unwrap();
    for consumer in ["rust", "sql"] {
        let message = incoming("k", "fail");
        for (attempt, seconds) in [(1, 10), (2, 60)] {
            match test.deliver(consumer, &message).await.unwrap() {
                TestOutcome::Retried { attempt: run, delay, detail, .. } => {
                    assert_eq!((run, delay), (attempt, Duration::from_secs(seconds)));
                    assert!(detail.starts_with("boom"), "{detail}");
                }
                other => panic!("{other:?}"),
            }
            let early = test.deliver(consumer, &message).await.unwrap();
            assert!(matches!(early, TestOutcome::Postponed { .. }), "{early:?}");
            test.advance(Duration::from_secs(seconds));
        }
        let last = test.deliver(consumer, &message).await.unwrap();
        assert_eq!(last.dead_lettered(), Some(Reason::AttemptsExhausted), "{last:?}");
        let again = test.deliver(consumer, &message).await.unwrap();
        assert!(
            matches!(again, TestOutcome::DeadLettered { attempt: 0, reason: Reason::AttemptsExhausted, .. }),
            "{again:?}"
        );
    }
    assert_eq!(handler.calls.load(Ordering::Relaxed), 6, "by itself each time, too");
    let once = incoming("once", "fail_once");
    assert!(matches!(test.deliver("rust", &once).await.unwrap(), TestOutcome::Retried { .. }));
    test.advance(Duration::from_secs(10));
    let done = test.deliver("rust", &once).await.unwrap();
    assert_eq!(done, TestOutcome::Completed { attempt: 2, response: Some(json!({ "done": "once" })) });
}

#[tokio::test]
async fn a_message_out_of_time_keeps_no_later_one_of_its_tenant_from_running() {
    let mut world = world().await;
    let queue = format!("queue = {:?}", world.queue("rust"));
    world.reconfigure(&queue, &format!("{queue}\ndeadline = \"2s\""));
    let mut test = harness(&world).await;
    let slow = test.deliver("rust", &incoming("slow", "hang")).await.unwrap();
    assert!(!slow.is_completed(), "{slow:?}");
    let next = test.deliver("rust", &incoming("next", "write")).await.unwrap();
    assert!(next.is_completed(), "{next:?}");
}

#[tokio::test]
async fn nobody_answers_for_a_closed_warehouse_until_another_message_succeeds() {
    let mut world = world().await;
    let mut test = harness(&world).await;
    for (consumer, what) in [("rust", "away"), ("sql", "missing_table")] {
        let bad = incoming("bad", what);
        for _ in 0..2 {
            let outcome = test.deliver(consumer, &bad).await.unwrap();
            assert!(matches!(outcome, TestOutcome::Waiting { .. }), "{outcome:?}");
        }
        assert!(test.deliver(consumer, &incoming("good", "write")).await.unwrap().is_completed());
        let outcome = test.deliver(consumer, &bad).await.unwrap();
        assert!(matches!(outcome, TestOutcome::Retried { attempt: 1, .. }), "{outcome:?}");
    }
    assert_eq!(effects(&mut world, "bad").await, 0);
}

#[tokio::test]
async fn a_batch_is_decided_message_by_message_where_one_fails() {
    let mut world = world().await;
    let mut test = harness(&world).await;
    let keys = [("a", "write"), ("b", "fail"), ("a", "write"), ("c", "refuse")];
    let messages = keys.map(|(key, what)| incoming(key, what));
    for consumer in ["rust", "sql"] {
        let outcomes = test.deliver_batch(consumer, &messages).await.unwrap();
        let [a, b, copy, c] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!(a, &TestOutcome::Completed { attempt: 1, response: Some(json!({ "done": "a" })) });
        assert!(matches!(b, TestOutcome::Retried { attempt: 1, .. }), "{b:?}");
        assert_eq!(copy, &TestOutcome::Duplicate);
        assert_eq!(c, &TestOutcome::Refused { attempt: 1, reason: "sold out".to_owned() });
    }
    assert_eq!(effects(&mut world, "a").await, 2, "one of each consumer");
    let done = test.deliver_batch("batch", &["x", "y"].map(|key| incoming(key, "write"))).await.unwrap();
    assert!(done.iter().all(TestOutcome::is_completed), "{done:?}");
    assert_eq!(effects(&mut world, "x").await + effects(&mut world, "y").await, 2);
}

/// Tests may be spawned.
fn on_any_thread<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn what_can_have_no_outcome_says_why() {
    let mut world = world().await;
    let mut test = harness(&world).await;
    let message = incoming("k", "write");
    let unknown = on_any_thread(test.deliver("nobody", &message)).await;
    assert!(matches!(&unknown, Err(HarnessError::NoConsumer(name)) if name == "nobody"), "{unknown:?}");
    let unfit = test.deliver("rust", &incoming(&"x".repeat(256), "write")).await;
    assert!(
        matches!(&unfit, Err(HarnessError::Unfit(why)) if why.contains("message_id has 256")),
        "{unfit:?}"
    );
    let gone = test.deliver("rust", &incoming("gone", "end")).await;
    assert!(matches!(&gone, Err(HarnessError::Away(_))), "{gone:?}");

    assert!(test.deliver("rust", &message).await.unwrap().is_completed());
    let over = test.kill_at(KillPoint::AfterHandler, "rust", &message).await;
    assert!(
        matches!(&over, Err(HarnessError::NotReached { step: KillPoint::AfterHandler, outcome }) if outcome.is_duplicate()),
        "{over:?}"
    );
    let nameless =
        test.deliver("rust", &IncomingMessage::new("{}").header("x-tenant-id", "acme")).await.unwrap();
    assert_eq!(nameless.dead_lettered(), Some(Reason::KeyMissing));

    world.reconfigure("app.handle", "app.not_there");
    let unfit = Harness::connect(worker(&world).0).await;
    assert!(
        matches!(&unfit, Err(HarnessError::Refused(error)) if error.to_string().contains("app.not_there")),
        "{unfit:?}"
    );
    let text = "[postgres]\nurl = \"postgres://u:tops3cret@127.0.0.1:1/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n\
                [[consumers]]\nname = \"rust\"\nqueue = \"q\"\ntenant = { fixed = \"t\" }\nkey = \"body_hash\"\n";
    let config = Config::parse(text).unwrap();
    let elsewhere = Worker::builder(config).handler("rust", Obedient::default()).build().unwrap();
    let away = Harness::connect(elsewhere).await;
    assert!(matches!(&away, Err(HarnessError::Away(why)) if !why.contains("tops3cret")), "{away:?}");
}

const CHARGE: oncely::lease::Step = oncely::lease::Step::new("charge", Repeat::Always);
const ONCE: oncely::lease::Step = oncely::lease::Step::new("once", Repeat::Never);

/// Calls outside, as the payload says, and notes it.
#[derive(Clone, Default)]
struct Charges(Arc<Mutex<Vec<(String, Call)>>>);

impl Charges {
    /// The calls of a message.
    fn of(&self, key: &str) -> Vec<Call> {
        self.0.lock().unwrap().iter().filter(|(other, _)| other == key).map(|(_, call)| *call).collect()
    }
}

impl LeasedHandler for Charges {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        let payload: Value = message.json()?;
        let what = payload["do"].as_str().unwrap_or_default();
        if what == "early" {
            return Err(HandlerError::permanent("no such account"));
        }
        let step = if what == "never" { &ONCE } else { &CHARGE };
        let (tenant, key) = (message.tenant().to_owned(), message.key().to_owned());
        let called = key.clone();
        let charge: usize = lease
            .step(step, async |call| {
                let mut calls = self.0.lock().unwrap();
                calls.push((called, call));
                Ok(calls.len())
            })
            .await?;
        if what == "fail_once" && lease.attempt() == 1 {
            return Err(HandlerError::transient("boom"));
        }
        Ok(Finish::response(json!({ "charge": charge }))?.with(move |connection| {
            let (tenant, key) = (tenant.clone(), key.clone());
            Box::pin(async move {
                sqlx::query("insert into app.effects (tenant, consumer, key) values ($1, 'charges', $2)")
                    .bind(tenant)
                    .bind(key)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        }))
    }
}

/// A consumer whose handler runs under leases, and what is between it and the database.
async fn leased() -> (World, Harness, Charges, Proxy) {
    let mut world = World::new().await;
    world.consumer(
        "charges",
        "handler = { function = \"app.handle\" }\nretry = { delays = [\"50ms\"], max_attempts = 3 }\n\
         lease = { time = \"5s\", max_run = \"20s\" }",
    );
    world.reconfigure("handler = { function = \"app.handle\" }\n", "");
    world.configure("[worker]\nshutdown = \"1s\"");
    world.urls.rabbitmq = "amqp://127.0.0.1:1".to_owned();
    let charges = Charges::default();
    let (proxy, [(_, through)]) = world.proxied_postgres().await;
    let mut config = world.config();
    config.postgres.url = through.into();
    let worker = Worker::builder(config).leased_handler("charges", charges.clone()).build().unwrap();
    let harness = Harness::connect(worker).await.unwrap();
    (world, harness, charges, proxy)
}

#[tokio::test]
async fn a_handler_that_runs_under_leases_gets_a_real_one_and_its_steps_are_not_repeated() {
    let (mut world, mut test, charges, _proxy) = leased().await;
    let done = TestOutcome::Completed { attempt: 1, response: Some(json!({ "charge": 1 })) };
    assert_eq!(test.deliver("charges", &incoming("k", "write")).await.unwrap(), done);
    let stored = "select concat_ws(' ', status, steps -> 'charge' ->> 'state', steps -> 'charge' ->> 'result', owner) from oncely.idempotency_keys";
    assert_eq!(world.text(stored).await.as_deref(), Some("COMPLETED done 1"));
    for _ in 0..2 {
        assert!(test.redeliver("charges", &incoming("k", "write")).await.unwrap().is_duplicate());
    }
    assert_eq!(charges.of("k").len(), 1);

    // What failed behind its call goes on behind it.
    let failed = test.deliver("charges", &incoming("again", "fail_once")).await.unwrap();
    assert!(matches!(failed, TestOutcome::Retried { attempt: 1, .. }), "{failed:?}");
    let again = loop {
        match test.deliver("charges", &incoming("again", "fail_once")).await.unwrap() {
            TestOutcome::Postponed { delay } => tokio::time::sleep(delay).await,
            outcome => break outcome,
        }
    };
    assert_eq!(again, TestOutcome::Completed { attempt: 2, response: Some(json!({ "charge": 2 })) });
    assert_eq!(charges.of("again").len(), 1, "its result was stored");

    let rejected = test.deliver("charges", &incoming("rejected", "early")).await.unwrap();
    assert_eq!(rejected.dead_lettered(), Some(Reason::HandlerRejected));
    // Somebody else is at work.
    let held = "select oncely.claim_lease('acme', 'charges', 'held', null, 'elsewhere')";
    sqlx::raw_sql(held).execute(&mut world.sql).await.unwrap();
    let waits = test.deliver("charges", &incoming("held", "write")).await.unwrap();
    assert!(matches!(waits, TestOutcome::Postponed { .. }), "{waits:?}");
    let both = [incoming("b1", "write"), incoming("b2", "write"), incoming("b1", "write")];
    let outcomes = test.deliver_batch("charges", &both).await.unwrap();
    assert_eq!(outcomes.iter().map(TestOutcome::is_completed).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(world.count("select count(*) from app.effects").await, 4);
}

#[tokio::test]
async fn a_run_under_a_lease_dies_at_every_step_and_the_next_one_goes_on() {
    let (mut world, mut test, charges, _proxy) = leased().await;
    for step in KillPoint::LEASED {
        let key = format!("{step:?}");
        let message = incoming(&key, "write");
        test.kill_at(step, "charges", &message).await.unwrap_or_else(|error| panic!("{step:?}: {error}"));
        let held =
            format!("select count(*) from oncely.idempotency_keys where owner is not null and key = '{key}'");
        assert_eq!(world.count(&held).await, i64::from(step != KillPoint::AfterCommit), "{step:?}");
        let outcome = test.redeliver("charges", &message).await.unwrap();
        assert_eq!(outcome.is_completed(), step != KillPoint::AfterCommit, "{step:?}: {outcome:?}");
        assert!(outcome.took_effect(), "{step:?}: {outcome:?}");
        let calls = charges.of(&key);
        assert_eq!(calls.len(), if step == KillPoint::AfterCall { 2 } else { 1 }, "{step:?}");
        assert!(calls.iter().all(|call| call.key == calls[0].key), "{step:?}");
        let is_repeat = [KillPoint::BeforeCall, KillPoint::AfterCall].contains(&step);
        assert_eq!(calls.last().unwrap().is_repeat, is_repeat, "{step:?}");
        let effects = format!("select count(*) from app.effects where key = '{key}'");
        assert_eq!(world.count(&effects).await, 1, "{step:?}");
    }
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'taken_over'").await, 5);

    // What must not be repeated is not.
    let message = incoming("never", "never");
    test.kill_at(KillPoint::AfterCall, "charges", &message).await.unwrap();
    let outcome = test.redeliver("charges", &message).await.unwrap();
    assert_eq!(outcome.dead_lettered(), Some(Reason::OutcomeUnknown), "{outcome:?}");
    assert_eq!(charges.of("never").len(), 1);

    // A step that it does not come to.
    let missed = test.kill_at(KillPoint::AfterCall, "charges", &incoming("early", "early")).await;
    assert!(matches!(missed, Err(HarnessError::NotReached { step: KillPoint::AfterCall, .. })), "{missed:?}");
    assert!(test.deliver("charges", &incoming("after", "write")).await.unwrap().is_completed());
    let lanes = self::world().await;
    let missed = harness(&lanes).await.kill_at(KillPoint::BeforeCall, "rust", &incoming("k", "write")).await;
    assert!(matches!(missed, Err(HarnessError::NotReached { .. })), "{missed:?}");
}

#[tokio::test]
async fn nothing_is_decided_under_a_lease_that_the_database_does_not_answer_for() {
    let (_world, mut test, charges, proxy) = leased().await;
    assert!(test.deliver("charges", &incoming("k", "write")).await.unwrap().is_completed());
    proxy.set(Mode::Refuse);
    proxy.cut();
    let away = test.deliver("charges", &incoming("away", "write")).await;
    assert!(matches!(away, Err(HarnessError::Away(_))), "{away:?}");
    proxy.set(Mode::Pass);
    assert!(test.deliver("charges", &incoming("away", "write")).await.unwrap().is_completed());
    assert_eq!(charges.of("away").len(), 1);
}
