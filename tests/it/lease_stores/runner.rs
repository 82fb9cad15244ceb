//! Runs under leases of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncely::HandlerError;
use oncely::lease::{
    Call, ClaimOutcome, LeaseRunner, LeaseStore as _, MemoryClock, MemoryStore, RenewOutcome, Repeat, Run,
    RunOutcome, Step, StepError, StepStore as _, fingerprint,
};
use oncely::reason::Reason;
use oncely::redis_store::{RedisSettings, RedisStore};
use testbed::{Redis, eventually};
use tokio::sync::Notify;

use super::{LEASE, claim, hold, identity};

const PRINT: &[u8] = b"{}";

fn runner() -> (LeaseRunner<MemoryStore>, MemoryClock) {
    let clock = MemoryClock::default();
    let runner = LeaseRunner::new(MemoryStore::in_memory(clock.clone()));
    (runner.retention(Duration::from_secs(86_400)), clock)
}

#[tokio::test]
async fn work_runs_once_and_copies_get_its_response() {
    let (runner, _) = runner();
    let runs = AtomicUsize::new(0);
    let work = async |_: Run<MemoryStore>| {
        runs.fetch_add(1, Ordering::Relaxed);
        Ok(Some("done".into()))
    };
    let key = identity("order 1");
    assert_eq!(
        runner.run(&key, fingerprint(PRINT), work).await.unwrap(),
        RunOutcome::Done(Some("done".into()))
    );
    assert_eq!(
        runner.run(&key, fingerprint(PRINT), work).await.unwrap(),
        RunOutcome::Duplicate(Some("done".into()))
    );
    assert_eq!(runner.run(&key, fingerprint(b"another"), work).await.unwrap(), RunOutcome::Conflict);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_run_can_be_spawned_and_a_copy_meanwhile_is_in_flight() {
    let (runner, _) = runner();
    let (runner, go) = (Arc::new(runner), Arc::new(Notify::new()));
    let begun = Arc::new(Notify::new());
    let running = tokio::spawn({
        let (runner, go, begun) = (Arc::clone(&runner), Arc::clone(&go), Arc::clone(&begun));
        async move {
            let work = async |_: Run<MemoryStore>| {
                begun.notify_one();
                go.notified().await;
                Ok(None)
            };
            runner.run(&identity("order 1"), fingerprint(PRINT), work).await
        }
    });
    begun.notified().await;
    let copy = runner.run(&identity("order 1"), fingerprint(PRINT), async |_| Ok(None)).await.unwrap();
    assert!(matches!(copy, RunOutcome::InFlight(left) if left <= Duration::from_secs(30)), "{copy:?}");
    go.notify_one();
    assert_eq!(running.await.unwrap().unwrap(), RunOutcome::Done(None));
}

const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(86_400)));
const MAIL: Step = Step::new("mail", Repeat::Never);

#[tokio::test]
async fn a_failed_run_goes_on_where_it_was_and_calls_no_stored_step_again() {
    let (runner, _) = runner();
    let runner = runner.retry(vec![Duration::ZERO], 3, 3);
    let calls = AtomicUsize::new(0);
    // ANCHOR: run
    let work = async |run: Run<MemoryStore>| {
        let charge = run.step(&CHARGE, async |call: Call| {
            calls.fetch_add(1, Ordering::Relaxed);
            Ok::<_, StepError>(call.key)
        });
        let key = charge.await?;
        match run.attempt() {
            1 => Err(HandlerError::transient("the mail server is away")),
            _ => Ok(Some(key.to_string().into())),
        }
    };
    // ANCHOR_END: run
    let key = identity("order 1");
    let first = runner.run(&key, fingerprint(PRINT), work).await.unwrap();
    assert!(matches!(first, RunOutcome::Failed { delay: Duration::ZERO, .. }), "{first:?}");
    let expected = oncely::lease::step_key(&key, "charge", 0).to_string();
    assert_eq!(
        runner.run(&key, fingerprint(PRINT), work).await.unwrap(),
        RunOutcome::Done(Some(expected.into()))
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_call_that_may_have_happened_and_must_not_be_repeated_gives_the_key_up() {
    let (runner, clock) = runner();
    let key = identity("order 1");
    // A process that dies in the call.
    let dead = hold(&**runner.store(), &key, "dead").await;
    runner.store().begin_step(&dead, &MAIL, uuid::Uuid::now_v7(), LEASE).await.unwrap();
    clock.advance(Duration::from_secs(31));
    let work = async |run: Run<MemoryStore>| {
        assert!(run.is_takeover());
        run.step(&MAIL, async |_: Call| -> Result<(), StepError> { panic!("called again") }).await?;
        Ok(None)
    };
    let next = runner.run(&key, fingerprint(PRINT), work).await.unwrap();
    assert!(matches!(next, RunOutcome::GivenUp { reason: Reason::OutcomeUnknown, .. }), "{next:?}");
    let last = runner.run(&key, fingerprint(PRINT), work).await.unwrap();
    assert!(matches!(last, RunOutcome::GivenUp { reason: Reason::OutcomeUnknown, .. }), "{last:?}");
}

#[tokio::test]
async fn a_refusal_is_the_answer_and_a_permanent_failure_gives_up() {
    let (runner, _) = runner();
    let (sold_out, bad) = (identity("sold out"), identity("bad"));
    let refuse = async |_: Run<MemoryStore>| Err(HandlerError::refused("sold out"));
    let answer = Some(serde_json::json!({ "refused": "sold out" }));
    assert_eq!(
        runner.run(&sold_out, fingerprint(PRINT), refuse).await.unwrap(),
        RunOutcome::Done(answer.clone())
    );
    assert_eq!(
        runner.run(&sold_out, fingerprint(PRINT), refuse).await.unwrap(),
        RunOutcome::Duplicate(answer)
    );
    let fail = async |_: Run<MemoryStore>| Err(HandlerError::permanent("no such account"));
    let ran = runner.run(&bad, fingerprint(PRINT), fail).await.unwrap();
    assert!(matches!(ran, RunOutcome::GivenUp { reason: Reason::HandlerRejected, .. }), "{ran:?}");
}

/// Real time, with the shortest lease there is.
#[tokio::test]
async fn the_heartbeat_keeps_a_long_run_and_ends_with_it() {
    let (runner, _) = runner();
    let runner = Arc::new(runner.lease(Duration::from_secs(1)).max_run(Duration::from_secs(600)));
    let key = identity("order 1");
    let (begun, go) = (Notify::new(), Notify::new());
    let running = runner.run(&key, fingerprint(PRINT), async |run| {
        begun.notify_one();
        go.notified().await;
        assert!(run.is_believed());
        Ok(None)
    });
    let watching = async {
        begun.notified().await;
        let began = std::time::Instant::now();
        // Three leases long nobody else gets it.
        while began.elapsed() < Duration::from_secs(3) {
            let claimed = runner.store().claim(&claim(&key, "another")).await.unwrap();
            assert!(matches!(claimed, ClaimOutcome::InFlight(_)), "{claimed:?} after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        go.notify_one();
    };
    let (ran, ()) = tokio::join!(running, watching);
    assert_eq!(ran.unwrap(), RunOutcome::Done(None));

    // A run that is dropped: its key is given back, and nobody has died.
    let other = identity("order 2");
    let begun = Notify::new();
    let dropped = runner.run(&other, fingerprint(PRINT), async |_| {
        begun.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        ran = dropped => panic!("{ran:?}"),
        () = begun.notified() => {}
    }
    eventually("the lease is given back", || async {
        match runner.store().claim(&claim(&other, "heir")).await.unwrap() {
            ClaimOutcome::Granted(grant) if !grant.is_takeover => Ok(()),
            claimed => Err(format!("{claimed:?}")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_run_beyond_its_time_is_told_dropped_and_has_failed() {
    let (runner, _) = runner();
    let runner = runner.lease(Duration::from_secs(1)).max_run(Duration::from_secs(1));
    let runner = runner.retry(vec![Duration::ZERO], 3, 3);
    let key = identity("order 1");
    let told = AtomicUsize::new(0);
    let ran = runner
        .run(&key, fingerprint(PRINT), async |run| {
            run.wait_until_lost().await;
            told.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        })
        .await
        .unwrap();
    assert!(
        matches!(&ran, RunOutcome::Failed { error, delay: Duration::ZERO } if error.contains("max_run")),
        "{ran:?}"
    );
    assert_eq!(told.load(Ordering::Relaxed), 1);
    hold(&**runner.store(), &key, "next").await;
}

#[tokio::test]
async fn a_run_that_takes_too_long_each_time_is_given_up() {
    let (runner, _) = runner();
    let runner = runner.lease(Duration::from_secs(1)).max_run(Duration::from_secs(1));
    let runner = runner.retry(vec![Duration::ZERO], 6, 3);
    let key = identity("order 1");
    for attempt in 1..=6 {
        let ran = runner
            .run(&key, fingerprint(PRINT), async |run| {
                assert_eq!(run.attempt(), attempt);
                run.wait_until_lost().await;
                Err(HandlerError::permanent("what it says then counts no more"))
            })
            .await
            .unwrap();
        match attempt {
            6 => assert!(
                matches!(ran, RunOutcome::GivenUp { reason: Reason::AttemptsExhausted, .. }),
                "{ran:?}"
            ),
            _ => assert!(matches!(ran, RunOutcome::Failed { .. }), "{attempt}: {ran:?}"),
        }
    }
}

#[tokio::test]
async fn callers_that_go_away_leave_no_death_behind() {
    let (runner, _) = runner();
    let runner = runner.retry(vec![Duration::ZERO], 6, 2);
    let key = identity("order 1");
    for _ in 0..3 {
        let begun = Notify::new();
        let dropped = runner.run(&key, fingerprint(PRINT), async |_| {
            begun.notify_one();
            std::future::pending().await
        });
        tokio::select! {
            ran = dropped => panic!("{ran:?}"),
            () = begun.notified() => {}
        }
        eventually("it is given back", || async {
            let known = runner.store().look_up(&key).await.unwrap().unwrap();
            if known.owner.is_none() { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await
        .unwrap();
    }
    let work = async |run: Run<MemoryStore>| {
        assert!(!run.is_takeover());
        Ok(None)
    };
    assert_eq!(runner.run(&key, fingerprint(PRINT), work).await.unwrap(), RunOutcome::Done(None));
}

#[tokio::test]
async fn whose_key_was_taken_over_records_nothing() {
    let (runner, clock) = runner();
    let key = identity("order 1");
    let mut heir = None;
    let ran = runner
        .run(&key, fingerprint(PRINT), async |run| {
            clock.advance(Duration::from_secs(31));
            heir = Some(hold(&**runner.store(), &key, "heir").await);
            let step = run.step(&CHARGE, async |_: Call| -> Result<(), StepError> { panic!("called") }).await;
            assert!(step.is_err());
            Ok(Some("mine".into()))
        })
        .await
        .unwrap();
    assert_eq!(ran, RunOutcome::Lost);
    let renewed = runner.store().renew(&[heir.unwrap()], Duration::from_secs(30)).await.unwrap();
    assert!(matches!(renewed[0], RenewOutcome::Until(_)), "the heir holds it still");
}

/// Redis is gone between the call and its result: what has happened is said until it is stored.
#[tokio::test]
async fn a_result_is_said_until_a_store_that_was_away_has_it() {
    let folder = testbed::Scratch::new("appendonly").unwrap();
    let dir = folder.path().to_str().unwrap();
    let durable = ["--appendonly", "yes", "--appendfsync", "always", "--dir", dir];
    let mut redis = Redis::start_with(&durable).await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let runner = LeaseRunner::new(store);
    let key = identity("order 1");
    let (called, calls) = (Notify::new(), AtomicUsize::new(0));
    let back = Notify::new();
    let running = runner.run(&key, fingerprint(PRINT), async |run| {
        let call = async |_: Call| {
            calls.fetch_add(1, Ordering::Relaxed);
            called.notify_one();
            back.notified().await;
            Ok::<_, StepError>("ch_1".to_owned())
        };
        Ok(Some(run.step(&MAIL, call).await?.into()))
    });
    let failing = async {
        called.notified().await;
        redis.kill().unwrap();
        back.notify_one();
        // It tries meanwhile.
        tokio::task::yield_now().await;
        redis.restart().await.unwrap();
    };
    let (ran, ()) = tokio::join!(running, failing);
    assert_eq!(ran.unwrap(), RunOutcome::Done(Some("ch_1".into())));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let again = runner.run(&key, fingerprint(PRINT), async |_| panic!("it ran")).await.unwrap();
    assert_eq!(again, RunOutcome::Duplicate(Some("ch_1".into())));
}

#[tokio::test]
async fn a_call_behind_a_question_is_in_progress_and_a_result_is_quoted_by_no_error() {
    let (runner, _) = runner();
    let ask = Step::new("charge", Repeat::Ask);
    let key = identity("order 1");
    let asking = async |run: Run<MemoryStore>| {
        let in_progress = run
            .step_or_ask(&ask, async |_| Ok(None), async |_: Call| Ok::<_, StepError>(run.is_calling()))
            .await?;
        assert!(!run.is_calling(), "it has ended");
        run.step(&MAIL, async |_| Ok::<_, StepError>("S3CR3T".to_owned())).await?;
        match run.step::<u64, _, _>(&MAIL, async |_| Ok::<u64, StepError>(1)).await.unwrap_err() {
            HandlerError::Permanent(text) => {
                assert!(text.contains("mail") && !text.contains("S3CR3T"), "{text}")
            }
            other => panic!("{other:?}"),
        }
        Ok(Some(in_progress.into()))
    };
    assert_eq!(
        runner.run(&key, fingerprint(PRINT), asking).await.unwrap(),
        RunOutcome::Done(Some(true.into()))
    );
}
