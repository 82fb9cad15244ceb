//! Handlers in Rust that run under leases, against a provider with books of its own.

mod blame;
mod outages;
mod renewals;
mod waiting;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oncely::handler::{Finish, Lease, LeasedHandler};
use oncely::lease::{Call, Repeat, Step, StepError};
use oncely::worker::StopOutcome;
use oncely::{HandlerError, Message, Worker};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::http::wait_for;
use crate::support::{World, message};

const CHARGE: Step = Step::new("charge", Repeat::Within(std::time::Duration::from_secs(86_400)));
const MAIL: Step = Step::new("mail", Repeat::Always);
const ONCE: Step = Step::new("once", Repeat::Never);
const ASKED: Step = Step::new("asked", Repeat::Ask);

/// A provider: which calls came, by their keys.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<HashMap<Uuid, Vec<Call>>>>);

impl Provider {
    fn call(&self, call: Call) -> usize {
        let mut books = self.0.lock().unwrap();
        let calls = books.entry(call.key).or_default();
        calls.push(call);
        calls.len()
    }

    /// Effects, where it knows a key again; and calls.
    fn counts(&self) -> (usize, usize) {
        let books = self.0.lock().unwrap();
        (books.len(), books.values().map(Vec::len).sum())
    }
}

#[derive(Clone, Default)]
struct Charges {
    provider: Provider,
    mails: Provider,
    /// A run that hangs is in its call.
    hangs: Arc<Notify>,
    lost: Arc<Notify>,
    /// The answer of a call comes.
    answer: Arc<Notify>,
}

impl LeasedHandler for Charges {
    async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
        let payload: Value = message.json()?;
        let what = payload["do"].as_str().unwrap_or_default().to_owned();
        match what.as_str() {
            "reject" => return Err(HandlerError::permanent("no such account")),
            "refuse" => return Err(HandlerError::refused("sold out")),
            "panic" => panic!("out of luck"),
            "away" if lease.attempt() == 1 && !lease.is_takeover() => {}
            _ => {}
        }
        let mails = self.mails.clone();
        lease.step(&MAIL, async |call| Ok(mails.call(call))).await?;
        let attempt = lease.attempt();
        let provider = self.provider.clone();
        match what.as_str() {
            "never" => {
                lease
                    .step(&ONCE, async |call| {
                        provider.call(call);
                        Err::<Value, _>(StepError::Unknown(anyhow::anyhow!("timed out")))
                    })
                    .await?;
            }
            "late" => {
                let (hangs, answer) = (Arc::clone(&self.hangs), Arc::clone(&self.answer));
                lease
                    .step(&ONCE, async |call| {
                        hangs.notify_one();
                        answer.notified().await;
                        Ok(provider.call(call))
                    })
                    .await?;
            }
            "linger" => {
                let declined = HandlerError::transient("declined");
                let refused = lease.step(&CHARGE, async |_| Err::<(), _>(StepError::Refused(declined))).await;
                self.hangs.notify_one();
                lease.wait_until_lost().await;
                refused?;
            }
            "ask" => {
                let asked = provider.clone();
                let found = lease
                    .step_or_ask(
                        &ASKED,
                        async |call| Ok(Some(asked.0.lock().unwrap()[&call.key].len())),
                        async |call| {
                            provider.call(call);
                            Err::<usize, _>(StepError::Unknown(anyhow::anyhow!("timed out")))
                        },
                    )
                    .await?;
                assert_eq!(found, 1);
            }
            "declined" => {
                lease
                    .step(&CHARGE, async |call| match attempt {
                        1 => Err(StepError::Refused(HandlerError::transient("declined"))),
                        _ => Ok(provider.call(call)),
                    })
                    .await?;
            }
            _ => {
                let (hangs, lost) = (Arc::clone(&self.hangs), Arc::clone(&self.lost));
                lease
                    .step(&CHARGE, async |call| {
                        let calls = provider.call(call);
                        match what.as_str() {
                            "tear" if attempt == 1 => Err(StepError::Unknown(anyhow::anyhow!("torn"))),
                            "hang" if calls == 1 => {
                                hangs.notify_one();
                                lease.wait_until_lost().await;
                                lost.notify_one();
                                std::future::pending().await
                            }
                            _ => Ok(call.round),
                        }
                    })
                    .await?;
            }
        }
        let (tenant, key) = (message.tenant().to_owned(), message.key().to_owned());
        Ok(Finish::response(json!({ "charged": key }))?.with(move |connection| {
            let (tenant, key, what) = (tenant.clone(), key.clone(), what.clone());
            Box::pin(async move {
                match what.as_str() {
                    // Goes on as if nothing had happened.
                    "swallow" if attempt == 1 => {
                        let _ = sqlx::query("select 1 / 0").execute(&mut *connection).await;
                        return Ok(());
                    }
                    "burst" if attempt == 1 => panic!("out of luck"),
                    "end" if attempt == 1 => {
                        sqlx::query("rollback").execute(&mut *connection).await?;
                        return Ok(());
                    }
                    _ => {}
                }
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

struct Running(CancellationToken, JoinHandle<StopOutcome>);

impl Running {
    fn start(world: &World, handler: &(impl LeasedHandler + Clone)) -> Self {
        let worker =
            Worker::builder(world.config()).leased_handler("charges", handler.clone()).build().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        Self(stop, tokio::spawn(async move { worker.run(token.cancelled_owned()).await.expect("worker") }))
    }

    async fn end(self) {
        self.0.cancel();
        assert_eq!(self.1.await.unwrap(), StopOutcome::Clean);
    }
}

async fn world() -> World {
    world_with("", "retry = { delays = [\"50ms\"], max_attempts = 3 }", "").await
}

/// `lease`: what stands in its table besides; `retry`: the setting.
async fn world_with(lease: &str, retry: &str, tables: &str) -> World {
    let lease = format!("time = \"5s\", max_run = \"60s\", concurrency = 8{lease}");
    world_of(&lease, retry, tables).await
}

/// `lease`: what stands in its table.
async fn world_of(lease: &str, retry: &str, tables: &str) -> World {
    world_on(World::new().await, lease, retry, tables).await
}

async fn world_on(mut world: World, lease: &str, retry: &str, tables: &str) -> World {
    world.configure(tables);
    world.configure(
        "[worker]\nshutdown = \"6s\"\n[audit]\nduplicates = true\n[[consumers]]\nname = \"charges\"",
    );
    let text = format!(
        "queue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
         lease = {{ {lease} }}\n{retry}",
        world.queue("charges")
    );
    world.configure(&text);
    world.apply_topology().await;
    world
}

const COMPLETED: &str =
    "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and owner is null";

/// Publishes messages that succeed until `query` counts `count`: messages that fail at the same time are judged by the next success.
async fn others_succeed_until(world: &mut World, payload: &str, query: &str, count: i64) {
    let since = std::time::Instant::now();
    for good in 1.. {
        // By the clock: a fast machine is through with many before the others are tried again.
        if since.elapsed() > testbed::DEADLINE {
            break;
        }
        world.publish("charges", message("acme", &format!("good{good}")), payload).await;
        let succeeded =
            "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and key like 'good%'";
        world.wait_for(succeeded, good).await;
        if world.count(query).await == count {
            return;
        }
    }
    panic!("{query}: {} instead of {count}", world.count(query).await);
}

#[tokio::test]
async fn what_is_called_outside_is_called_once_and_written_with_the_key() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    for round in 0..2 {
        for number in 0..20 {
            world.publish("charges", message("acme", &format!("k{number}")), "{}").await;
        }
        if round == 0 {
            world.wait_for(COMPLETED, 20).await;
        }
    }
    world.wait_for_ready(&world.queue("charges"), 0).await;
    running.end().await;
    assert_eq!(charges.provider.counts(), (20, 20));
    assert_eq!(charges.mails.counts(), (20, 20));
    assert_eq!(world.count("select count(*) from app.effects").await, 20);
    assert_eq!(world.count("select count(*) from oncely.processed_keys").await, 20);
    assert_eq!(world.count("select count(*) from oncely.mirror_queue").await, 20);
    let response = world.text("select response::text from oncely.idempotency_keys where key = 'k7'").await;
    assert_eq!(response.as_deref(), Some(r#"{"charged": "k7"}"#));
}

#[tokio::test]
async fn the_next_run_goes_on_where_the_one_before_has_failed() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "torn"), r#"{"do": "tear"}"#).await;
    world.publish("charges", message("acme", "declined"), r#"{"do": "declined"}"#).await;
    world.publish("charges", message("acme", "asked"), r#"{"do": "ask"}"#).await;
    world.wait_for(COMPLETED, 3).await;
    running.end().await;
    // Mails once each; the torn charge by the same key again, the declined one by another, the third was asked for.
    assert_eq!(charges.mails.counts(), (3, 3));
    let (keys, calls) = charges.provider.counts();
    // A run that no message answers for yet is made again, with the same keys.
    assert!(keys == 3 && calls >= 4, "{keys} keys, {calls} calls");
    let books = charges.provider.0.lock().unwrap().clone();
    let again: Vec<&Call> = books.values().flatten().filter(|call| call.is_repeat).collect();
    assert!(!again.is_empty());
    let refused: Vec<&Call> = books.values().flatten().filter(|call| call.round >= 1).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(world.count("select count(*) from app.effects").await, 3);
    // A failure that others had, too, spends no attempt.
    assert!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await <= 3);
}

#[tokio::test]
async fn what_can_not_or_must_not_run_again_is_a_dead_letter_or_an_answer() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    for (key, what) in
        [("rejected", "reject"), ("refused", "refuse"), ("panics", "panic"), ("unknown", "never")]
    {
        world.publish("charges", message("acme", key), &format!("{{\"do\": \"{what}\"}}")).await;
    }
    world.publish("charges", message("acme", "fine"), "{}").await;
    let successful = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and key in ('fine', 'refused')";
    world.wait_for(successful, 2).await;
    // A refusal is a success that calls nothing.
    others_succeed_until(&mut world, r#"{"do": "refuse"}"#, "select count(*) from oncely.dead_letters", 3)
        .await;
    world.publish("charges", message("acme", "fine"), "[]").await;
    world.publish("charges", message("acme", ""), "{}").await;
    world.wait_for("select count(*) from oncely.dead_letters", 5).await;
    running.end().await;
    let reasons = "select string_agg(key || ' ' || reason || case key when 'unknown' then '' else ' ' || attempt end, ', '
        order by key) from oncely.dead_letters";
    assert_eq!(
        world.text(reasons).await.as_deref(),
        Some(
            " key_invalid 0, fine key_conflict 0, panics attempts_exhausted 3, rejected handler_rejected 1, unknown outcome_unknown"
        )
    );
    assert_eq!(charges.provider.counts(), (2, 2), "what may have happened was not called again");
    let refused =
        world.text("select response::text from oncely.idempotency_keys where key = 'refused'").await;
    assert_eq!(refused.as_deref(), Some(r#"{"refused": "sold out"}"#));
    let trail = "select string_agg(distinct key || ' ' || outcome, ', ') from oncely.audit where outcome = 'dead_lettered'";
    assert!(world.text(trail).await.is_some());
    assert_eq!(
        world.count("select count(*) from oncely.audit where outcome = 'dead_lettered'").await,
        5,
        "one each"
    );
}

#[tokio::test]
async fn a_run_that_lost_its_key_ends_and_its_message_comes_to_whoever_has_it() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "hangs"), r#"{"do": "hang"}"#).await;
    charges.hangs.notified().await;
    let held = "select count(*) from oncely.idempotency_keys where owner is not null and not_before > clock_timestamp() + interval '1 second'";
    world.wait_for(held, 1).await;
    // Longer than its lease: renewed meanwhile.
    let renewed = "select count(*) from oncely.idempotency_keys where owner is not null and not_before > created_at + interval '8 seconds'";
    world.wait_for(renewed, 1).await;
    let revoke = "set role oncely_operator; select oncely.revoke_lease('acme', 'charges', 'hangs', 'it hangs'); reset role";
    sqlx::raw_sql(revoke).execute(&mut world.sql).await.unwrap();
    charges.lost.notified().await;
    world.wait_for(COMPLETED, 1).await;
    running.end().await;
    assert_eq!(charges.provider.counts(), (1, 2), "called again by the same key");
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'fenced'").await, 1);
}

#[tokio::test]
async fn a_call_goes_on_without_its_message_when_another_run_has_the_key() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "late"), r#"{"do": "late"}"#).await;
    charges.hangs.notified().await;
    let revoke = "select oncely.revoke_lease('acme', 'charges', 'late', 'it hangs')";
    sqlx::raw_sql(revoke).execute(&mut world.sql).await.unwrap();
    let given_up =
        "select count(*) from oncely.idempotency_keys where status = 'FAILED' and reason = 'outcome_unknown'";
    world.wait_for(given_up, 1).await;
    assert_eq!(charges.provider.counts(), (0, 0), "it is still in its call");
    charges.answer.notify_one();
    let known = "select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS' and owner is null
        and steps -> 'once' ->> 'state' = 'done'";
    world.wait_for(known, 1).await;
    running.end().await;
    assert_eq!(charges.provider.counts(), (1, 1));
}

#[tokio::test]
async fn takeovers_and_runs_that_come_back_too_late_are_counted() {
    let mut world = world().await;
    let port = testbed::free_port().unwrap();
    world.reconfigure("shutdown = \"6s\"", &format!("shutdown = \"6s\"\nlisten = \"127.0.0.1:{port}\""));
    // A run elsewhere has died.
    let claimed = "select oncely.claim_lease('acme', 'charges', 'orphan', null, 'elsewhere')";
    sqlx::raw_sql(claimed).execute(&mut world.sql).await.unwrap();
    crate::leases::let_it_run_out(&mut world.sql, "orphan").await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    let counted = async |name: &str, count: u32| {
        let line = format!("{name}{{consumer=\"charges\"}} {count}\n");
        wait_for(&format!("127.0.0.1:{port}"), "/metrics", 200, &line).await;
    };
    counted("oncely_leases_taken_over_total", 0).await;
    counted("oncely_leases_fenced_total", 0).await;
    world.publish("charges", message("acme", "orphan"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    counted("oncely_leases_taken_over_total", 1).await;
    world.publish("charges", message("acme", "hangs"), r#"{"do": "hang"}"#).await;
    charges.hangs.notified().await;
    let revoke = "select oncely.revoke_lease('acme', 'charges', 'hangs', 'it hangs')";
    sqlx::raw_sql(revoke).execute(&mut world.sql).await.unwrap();
    world.wait_for(COMPLETED, 2).await;
    counted("oncely_leases_fenced_total", 1).await;
    counted("oncely_leases_taken_over_total", 1).await;
    running.end().await;
}

#[tokio::test]
async fn a_finish_that_hides_its_failure_completes_nothing() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "swallows"), r#"{"do": "swallow"}"#).await;
    world.publish("charges", message("acme", "ends"), r#"{"do": "end"}"#).await;
    world.publish("charges", message("acme", "bursts"), r#"{"do": "burst"}"#).await;
    let decided = "select count(*) from app.effects where key in ('bursts', 'swallows')";
    others_succeed_until(&mut world, "{}", decided, 2).await;
    world.wait_for("select count(*) from oncely.dead_letters", 1).await;
    running.end().await;
    assert_eq!(
        world.text("select key || ' ' || reason from oncely.dead_letters").await.as_deref(),
        Some("ends handler_rejected")
    );
    let (keys, calls) = charges.provider.counts();
    assert_eq!(keys, calls, "no call is repeated");
}

#[tokio::test]
async fn a_key_of_a_worker_is_kept_as_long_as_its_consumer_says() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "done"), "{}").await;
    world.publish("charges", message("acme", "torn"), r#"{"do": "tear"}"#).await;
    world.wait_for(COMPLETED, 2).await;
    let kept = "select count(*) from oncely.idempotency_keys where expires_at is null";
    assert_eq!(world.count(kept).await, 2);
    let mirrored =
        "select count(*) from oncely.mirror_queue where expires_at > clock_timestamp() + interval '6 days'";
    assert_eq!(world.count(mirrored).await, 2);
    sqlx::query("delete from oncely.mirror_queue").execute(&mut world.sql).await.unwrap();
    let collected = world.oncely(&["gc", "run"]).await;
    assert!(collected.status.success(), "{collected:?}");
    world.publish("charges", message("acme", "done"), "{}").await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    running.end().await;
    assert_eq!(world.count("select count(*) from app.effects").await, 2);
}

#[tokio::test]
async fn a_worker_that_stops_gives_its_keys_back() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "hangs"), r#"{"do": "hang"}"#).await;
    charges.hangs.notified().await;
    running.0.cancel();
    charges.lost.notified().await;
    let free = "select count(*) from oncely.idempotency_keys where owner is null and status = 'IN_PROGRESS' and attempts = 0";
    world.wait_for(free, 1).await;
    assert_eq!(running.1.await.unwrap(), StopOutcome::Clean);
    let running = Running::start(&world, &charges);
    world.wait_for(COMPLETED, 1).await;
    running.end().await;
    assert_eq!(charges.provider.counts(), (1, 2));
    assert_eq!(charges.mails.counts(), (1, 1));
    assert_eq!(world.count("select count(*) from app.effects").await, 1);
}

#[tokio::test]
async fn a_step_that_is_refused_makes_no_lease_longer_than_the_consumer_says() {
    let mut world = world().await;
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "lingers"), r#"{"do": "linger"}"#).await;
    charges.hangs.notified().await;
    let short = "select count(*) from oncely.idempotency_keys where owner is not null and not_before < clock_timestamp() + interval '6 seconds'";
    assert_eq!(world.count(short).await, 1);
    running.end().await;
}

#[tokio::test]
async fn a_copy_of_a_message_that_is_at_work_elsewhere_waits_and_spends_nothing() {
    let mut world = world().await;
    let claimed = "select token from oncely.claim_lease('acme', 'charges', 'k', null, 'elsewhere')";
    let token: i64 = sqlx::query_scalar(claimed).fetch_one(&mut world.sql).await.unwrap();
    let charges = Charges::default();
    let running = Running::start(&world, &charges);
    world.publish("charges", message("acme", "k"), "{}").await;
    world.publish("charges", message("acme", "other"), "{}").await;
    world.wait_for(COMPLETED, 1).await;
    let done = "select oncely.complete_lease('acme', 'charges', 'k', $1)";
    sqlx::query(done).bind(token).execute(&mut world.sql).await.unwrap();
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    running.end().await;
    assert_eq!(charges.provider.counts(), (1, 1), "only the other one");
    let attempts = "select attempts::bigint from oncely.idempotency_keys where key = 'k'";
    assert_eq!(world.count(attempts).await, 1);
    assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0);
}
