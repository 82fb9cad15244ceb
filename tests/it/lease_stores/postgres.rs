//! The store in PostgreSQL.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncely::HandlerError;
use oncely::identity::IdentityPart;
use oncely::lease::{
    Call, Claim, ClaimOutcome, LeaseRunner, LeaseStore as _, PostgresStore, Repeat, RunOutcome, Step,
    StepError, StoreError, fingerprint,
};
use oncely::reason::Reason;
use oncely_postgres::{HostState, PgSettings, SessionFactory, SessionPool, Timelines};
use sqlx::postgres::PgPoolOptions;
use testbed::eventually;
use testbed::proxy::{Mode, OneShot, Proxy};
use tokio::sync::{Barrier, Notify};

use super::clocks::PostgresClock;
use super::{claim, conforms, hold, identity};
use crate::support::{Login, World};

async fn pool(url: &str) -> sqlx::PgPool {
    PgPoolOptions::new().max_connections(12).connect(url).await.unwrap()
}

#[tokio::test]
async fn the_store_in_postgresql_conforms() {
    let world = World::new().await;
    let pool = pool(world.database.url()).await;
    conforms(&PostgresStore::new(pool.clone()), &PostgresClock(pool), 300).await;
}

/// Sessions as a gateway has them.
fn own_sessions(url: &str) -> SessionPool {
    let limit = Duration::from_secs(30);
    let settings = PgSettings {
        url: url.to_owned().into(),
        other_hosts: Vec::new(),
        url_file: None,
        tls: None,
        allow_plaintext: true,
        connect_timeout: limit,
        statement_timeout: limit,
        lock_timeout: limit,
        host_state: HostState::default(),
        citus: None,
        node: None,
    };
    let factory = SessionFactory::new(settings, "main".to_owned(), Timelines::default());
    SessionPool::new(factory, "test".to_owned(), 12, limit)
}

#[tokio::test]
async fn the_store_in_postgresql_conforms_on_sessions_of_its_own() {
    let world = World::new().await;
    let clock = PostgresClock(pool(world.database.url()).await);
    conforms(&PostgresStore::from_sessions(own_sessions(world.database.url())), &clock, 300).await;
}

#[tokio::test]
async fn a_key_is_one_key_for_a_store_and_for_the_sql_protocol() {
    let mut world = World::new().await;
    let store = PostgresStore::new(pool(world.database.url()).await);
    let key = identity("order 1");
    let held = hold(&store, &key, "the store").await;
    // The fingerprint is that of the body, so the protocol takes it for the same payload.
    let (outcome, token): (String, Option<i64>) = sqlx::query_as(
        "select outcome, token from oncely.claim_lease('acme', 'payments', 'order 1', sha256('{}'), 'somebody')",
    )
    .fetch_one(&mut world.sql)
    .await
    .unwrap();
    assert_eq!((outcome.as_str(), token), ("in_flight", None));
    store.complete(&held, Some(&"done".into())).await.unwrap();
    let response: serde_json::Value =
        sqlx::query_scalar("select response from oncely.claim('acme', 'payments', 'order 1', sha256('{}'))")
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
    assert_eq!(response, "done");
    let outcomes = "select count(*) from oncely.audit where key = 'order 1' and outcome = 'completed'";
    assert_eq!(world.count(outcomes).await, 1);
}

#[tokio::test]
async fn who_may_not_consume_holds_nothing_and_who_may_needs_no_table() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    let store = PostgresStore::new(pool(&login.url).await);
    let key = identity("order 1");
    let refused = store.claim(&claim(&key, "first")).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.to_string().contains("ONC16")),
        "{refused:?}"
    );
    let grant = "insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
        values ('acme', 'consume', 'payments', $1, now(), 'test')";
    sqlx::query(grant).bind(&login.name).execute(&mut world.sql).await.unwrap();
    let held = hold(&store, &key, "first").await;
    store.complete(&held, None).await.unwrap();
    assert_eq!(store.claim(&claim(&key, "second")).await.unwrap(), ClaimOutcome::Done(None));
    let looked = store.look_up(&key).await;
    assert!(looked.is_err(), "a consumer reads no table: {looked:?}");
    drop(store);
}

#[tokio::test]
async fn a_run_that_failed_as_often_as_it_may_is_given_up() {
    let mut world = World::new().await;
    let store = PostgresStore::new(pool(world.database.url()).await);
    let policies = [("delays", vec![std::time::Duration::ZERO], 2), ("none", vec![], 9)];
    for (name, delays, max_attempts) in policies {
        let runner = LeaseRunner::new(store.clone()).retry(delays, max_attempts, 3);
        let key = identity(name);
        let fail = async |_| Err(HandlerError::transient("away"));
        let mut ran = runner.run(&key, fingerprint(b"{}"), fail).await.unwrap();
        if name == "delays" {
            assert!(matches!(ran, RunOutcome::Failed { .. }), "{ran:?}");
            ran = runner.run(&key, fingerprint(b"{}"), fail).await.unwrap();
        }
        assert!(
            matches!(ran, RunOutcome::GivenUp { reason: Reason::AttemptsExhausted, .. }),
            "{name}: {ran:?}"
        );
        let again = runner.run(&key, fingerprint(b"{}"), async |_| panic!("it ran")).await.unwrap();
        assert!(
            matches!(again, RunOutcome::GivenUp { reason: Reason::AttemptsExhausted, .. }),
            "{name}: {again:?}"
        );
    }
    let given_up = "select count(*) from oncely.idempotency_keys where reason = 'attempts_exhausted'";
    assert_eq!(world.count(given_up).await, 2);
}

/// Refuses the first completion, with the SQLSTATE that the key names. What a sequence has counted is not rolled back.
const REFUSES: &str = "
    create sequence app.completions;
    create function app.refuse() returns trigger language plpgsql security definer as $$
    begin
        if nextval('app.completions') = 1 then
            raise exception 'not now' using errcode = new.key;
        end if;
        return new;
    end $$;
    create trigger refuse before update on oncely.idempotency_keys for each row
    when (new.status = 'COMPLETED') execute function app.refuse()";

#[tokio::test]
async fn no_sqlstate_that_an_argument_does_not_cause_gives_up_a_key() {
    let mut world = World::new().await;
    sqlx::raw_sql(REFUSES).execute(&mut world.sql).await.unwrap();
    let runner = LeaseRunner::new(PostgresStore::new(pool(world.database.url()).await));
    // Of sessions that stood still or had to end, of administrators' and triggers' mistakes, of the server's own defects.
    for code in [
        "25P03", "25P04", "25001", "2F003", "21000", "38000", "39P01", "40001", "42P01", "42501", "53200",
        "55P03", "57014", "57P05", "P0001", "XX000",
    ] {
        sqlx::query("alter sequence app.completions restart").execute(&mut world.sql).await.unwrap();
        let key = identity(code);
        let ran = runner.run(&key, fingerprint(b"{}"), async |_| Ok(None)).await;
        // Repeated, or left to the next run.
        assert!(matches!(ran, Ok(RunOutcome::Done(None)) | Err(StoreError::Failed(_))), "{code}: {ran:?}");
    }
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys where status = 'FAILED'").await, 0);
    assert!(world.count(COMPLETED).await > 0);
}

/// A pool through a proxy.
async fn proxied(world: &World) -> (Proxy, LeaseRunner<PostgresStore>) {
    let (proxy, [(_, through)]) = world.proxied_postgres().await;
    (proxy, LeaseRunner::new(PostgresStore::new(pool(&through).await)))
}

const FREE: &str = "select count(*) from oncely.idempotency_keys where owner is null and status = 'IN_PROGRESS' and crash_attempts = 0";
const COMPLETED: &str = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";

#[tokio::test]
async fn what_a_claim_was_granted_whose_answers_were_lost_is_given_back() {
    let mut world = World::new().await;
    let (proxy, runner) = proxied(&world).await;
    let key = identity("order 1");
    proxy.arm_times(OneShot::LoseCommitReply, 3);
    let ran = runner.run(&key, fingerprint(b"{}"), async |_| panic!("it ran")).await;
    assert!(matches!(ran, Err(StoreError::Unavailable(_))), "{ran:?}");
    assert_eq!(proxy.struck(), 3);
    world.wait_for(FREE, 1).await;
    let ran = runner.run(&key, fingerprint(b"{}"), async |_| Ok(None)).await.unwrap();
    assert_eq!(ran, RunOutcome::Done(None));
}

/// PostgreSQL records that a step is about to be called, and its reply is lost; then the run ends.
#[tokio::test]
async fn a_step_that_began_without_a_reply_was_not_called() {
    let mut world = World::new().await;
    let (proxy, runner) = proxied(&world).await;
    let runner = runner.retry(vec![Duration::ZERO], 3, 3);
    let (key, step) = (identity("order 1"), Step::new("mail", Repeat::Never));
    let not_called = async |_| panic!("it was called");
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
        proxy.arm_times(OneShot::LoseCommitReply, 4);
        let lost = || async { proxy.struck().checked_sub(1).ok_or("not lost yet") };
        tokio::select! {
            begun = run.step::<(), _, _>(&step, not_called) => panic!("{begun:?}"),
            lost = eventually("a lost reply", lost) => lost.unwrap(),
        };
        Err(HandlerError::transient("it gives up"))
    });
    assert!(matches!(ran.await.unwrap(), RunOutcome::Failed { .. }));
    proxy.arm(None);
    let began = "select count(*) from oncely.idempotency_keys where steps -> 'mail' ->> 'state' = 'refused'";
    assert_eq!(world.count(began).await, 1);
    let call = async |call: Call| Ok::<_, StepError>(call.round);
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| Ok(Some(run.step(&step, call).await?.into())));
    assert_eq!(ran.await.unwrap(), RunOutcome::Done(Some(1.into())));
}

#[tokio::test]
async fn a_result_that_is_not_stored_yet_answers_the_next_try() {
    let world = World::new().await;
    let (proxy, runner) = proxied(&world).await;
    let (key, step) = (identity("order 1"), Step::new("mail", Repeat::Never));
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
        let sent = async |_: Call| {
            proxy.arm_times(OneShot::CutBeforeCommit, 1_000);
            Ok::<_, StepError>("sent".to_owned())
        };
        let lost = || async { proxy.struck().checked_sub(1).ok_or("not lost yet") };
        tokio::select! {
            stored = run.step(&step, sent) => panic!("{stored:?}"),
            lost = eventually("a lost record", lost) => lost.unwrap(),
        };
        // This one is dropped, too, wherever it is.
        let struck = proxy.struck();
        let lost = || async { proxy.struck().checked_sub(struck + 1).ok_or("not lost yet") };
        let not_called = async |_: Call| panic!("it was called");
        tokio::select! {
            stored = run.step::<String, _, _>(&step, not_called) => panic!("{stored:?}"),
            lost = eventually("a lost record", lost) => lost.unwrap(),
        };
        proxy.arm(None);
        Ok(Some(run.step::<String, _, _>(&step, not_called).await?.into()))
    });
    assert_eq!(ran.await.unwrap(), RunOutcome::Done(Some("sent".into())));
}

async fn not_answered<T>(_: Call) -> Result<T, StepError> {
    Err(StepError::Unknown(anyhow::anyhow!("no answer")))
}

/// Makes a step twice at once.
async fn twice<F: Future<Output = Result<(), HandlerError>>>(
    once: impl Fn() -> F,
) -> Result<Option<serde_json::Value>, HandlerError> {
    let (first, second) = tokio::join!(once(), once());
    assert!(first.is_ok() || second.is_ok(), "{first:?}, {second:?}");
    Ok(None)
}

#[tokio::test]
async fn of_two_tries_at_once_one_calls() {
    let world = World::new().await;
    let runner = LeaseRunner::new(PostgresStore::new(pool(world.database.url()).await));
    let (step, calls) = (&Step::new("mail", Repeat::Never), &AtomicU32::new(0));
    let call = async |_: Call| {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok::<_, StepError>(())
    };
    for number in 1..=20 {
        let key = identity(&format!("order {number}"));
        let ran = runner.run(&key, fingerprint(b"{}"), async |run| twice(|| run.step(step, call)).await);
        ran.await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), number);
    }
}

#[tokio::test]
async fn of_two_tries_that_ask_at_once_one_calls() {
    let world = World::new().await;
    let runner = LeaseRunner::new(PostgresStore::new(pool(world.database.url()).await));
    let runner = runner.retry(vec![Duration::ZERO], 100, 3);
    let (step, calls) = (&Step::new("mail", Repeat::Ask), &AtomicU32::new(0));
    let call = async |_: Call| {
        calls.fetch_add(1, Ordering::Relaxed);
        Ok::<_, StepError>(())
    };
    for number in 1..=20 {
        let key = identity(&format!("order {number}"));
        let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
            run.step::<(), _, _>(step, not_answered).await?;
            Ok(None)
        });
        assert!(matches!(ran.await.unwrap(), RunOutcome::Failed { .. }));
        // Both have begun before one is told that nothing happened.
        let both = &Barrier::new(2);
        let not_there = async |_: Call| {
            both.wait().await;
            Ok(None)
        };
        let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
            twice(|| run.step_or_ask(step, not_there, call)).await
        });
        ran.await.unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), number);
    }
}

#[tokio::test]
async fn a_call_that_was_repeated_and_did_not_happen_is_made_by_the_next_run() {
    let world = World::new().await;
    let pool = pool(world.database.url()).await;
    let runner = LeaseRunner::new(PostgresStore::new(pool.clone()));
    let runner = runner.retry(vec![Duration::ZERO], 100, 3);
    let hour = Duration::from_secs(3_600);
    let (key, step) = (identity("order 1"), Step::new("mail", Repeat::Within(hour)));
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
        Ok(Some(run.step::<String, _, _>(&step, not_answered).await?.into()))
    });
    assert!(matches!(ran.await.unwrap(), RunOutcome::Failed { .. }));
    let call = async |_: Call| Ok::<_, StepError>("sent".to_owned());
    let not_there = async |_: Call| Ok(None);
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
        assert!(run.step_or_ask::<String, _, _, _, _>(&step, not_there, not_answered).await.is_err());
        let two_hours_later = "update oncely.idempotency_keys
            set steps = jsonb_set(steps, '{mail,started_at}', to_jsonb(clock_timestamp() - interval '2 hours'))";
        sqlx::query(two_hours_later).execute(&pool).await.unwrap();
        Ok(Some(run.step_or_ask(&step, not_there, call).await?.into()))
    });
    assert!(matches!(ran.await.unwrap(), RunOutcome::Failed { .. }));
    let ran = runner.run(&key, fingerprint(b"{}"), async |run| {
        Ok(Some(run.step_or_ask(&step, not_there, call).await?.into()))
    });
    assert_eq!(ran.await.unwrap(), RunOutcome::Done(Some("sent".into())));
}

#[tokio::test]
async fn a_server_that_refuses_a_client_is_not_away() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    let store = PostgresStore::new(pool(&login.url).await);
    let grant = "insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
        values ('acme', 'consume', 'payments', $1, now(), 'test')";
    sqlx::query(grant).bind(&login.name).execute(&mut world.sql).await.unwrap();
    let key = identity("order 1");
    let lease = Duration::from_secs(1);
    let first = Claim { lease, ..claim(&key, "first") };
    assert!(matches!(store.claim(&first).await.unwrap(), ClaimOutcome::Granted(_)));
    let mut foreign = key.clone();
    foreign.tenant = IdentityPart::new(b"globex").unwrap();
    let second = Claim { lease, ..claim(&key, "second") };
    let taken_over = || async {
        for _ in 0..2 {
            let refused = store.claim(&claim(&foreign, "second")).await;
            assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        }
        match store.claim(&second).await.unwrap() {
            ClaimOutcome::Granted(grant) => Ok(grant),
            other => Err(format!("{other:?}")),
        }
    };
    let grant = eventually("a takeover", taken_over).await.unwrap();
    assert!(grant.is_takeover);
}

#[tokio::test]
async fn what_is_done_is_recorded_though_its_caller_has_gone() {
    let mut world = World::new().await;
    let (proxy, runner) = proxied(&world).await;
    let key = identity("order 1");
    let away = Notify::new();
    let running = runner.run(&key, fingerprint(b"{}"), async |_| {
        proxy.set(Mode::Refuse);
        proxy.cut();
        away.notify_one();
        Ok(Some("done".into()))
    });
    let tried = async {
        away.notified().await;
        let before = proxy.accepted();
        let again = || async { proxy.accepted().checked_sub(before + 1).ok_or("it does not try") };
        eventually("it is said", again).await.unwrap();
    };
    tokio::select! {
        ran = running => panic!("{ran:?}"),
        () = tried => {}
    }
    proxy.set(Mode::Pass);
    world.wait_for(COMPLETED, 1).await;
    assert_eq!(world.count("select crash_attempts::bigint from oncely.idempotency_keys").await, 0);
}

#[tokio::test]
async fn a_silent_connection_costs_no_live_run_its_lease() {
    let mut world = World::new().await;
    let (proxy, runner) = proxied(&world).await;
    let lease = Duration::from_secs(12);
    let runner = runner.lease(lease);
    let key = identity("order 1");
    let (begun, go) = (Notify::new(), Notify::new());
    let running = runner.run(&key, fingerprint(b"{}"), async |run| {
        begun.notify_one();
        go.notified().await;
        assert!(run.is_believed());
        Ok(None)
    });
    let watching = async {
        begun.notified().await;
        let ends = "select extract(epoch from not_before)::bigint from oncely.idempotency_keys";
        let ends = world.count(ends).await;
        proxy.forget();
        let renewed = format!(
            "select count(*) from oncely.idempotency_keys where not_before > to_timestamp({ends} + 1)"
        );
        world.wait_within(lease - Duration::from_secs(1), &renewed, 1).await;
        go.notify_one();
    };
    let (ran, ()) = tokio::join!(running, watching);
    assert_eq!(ran.unwrap(), RunOutcome::Done(None));
}

#[tokio::test]
async fn a_session_that_was_left_in_a_transaction_grants_nothing_that_nobody_sees() {
    let mut world = World::new().await;
    let one = PgPoolOptions::new().max_connections(1).connect(world.database.url()).await.unwrap();
    sqlx::raw_sql("begin; create table app.strangers (n integer)")
        .execute(&mut *one.acquire().await.unwrap())
        .await
        .unwrap();
    let store = PostgresStore::new(one);
    let key = identity("order 1");
    let refused = store.claim(&claim(&key, "first")).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    // Another session.
    hold(&store, &key, "first").await;
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys where owner = 'first'").await, 1);
    let theirs = "select (to_regclass('app.strangers') is null)::integer::bigint";
    assert_eq!(world.count(theirs).await, 1, "what was not committed by whom it belongs to is not by us");
}
