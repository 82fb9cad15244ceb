//! What is retried and given up, as the worker decides it.

use oncely::reason::Reason;
use oncely_core::decide::{KeyDecision, KeyRecord, KeyStatus, OnConflict, decide_on_key};
use oncely_core::fault::FaultClass;
use oncely_core::fingerprint::{Fingerprint, FingerprintPolicy};
use oncely_postgres::classify_sqlstate;
use sqlx::Connection as _;

use crate::support::World;

use super::{claim, code, fail, once, status};

#[tokio::test]
async fn sql_decides_as_rust_does() {
    let mut world = World::new().await;
    let print = |byte: Option<u8>| byte.map(|byte| Fingerprint::new([byte / 2; 4], [byte; 12]));
    let mut cases = 0;
    for (status, is_leased) in [
        (KeyStatus::InProgress, false),
        (KeyStatus::InProgress, true),
        (KeyStatus::Completed, false),
        (KeyStatus::Completed, true),
        (KeyStatus::Failed, true),
    ] {
        // 2 and 3 are of one policy, 1 of another.
        for known in [None, Some(1), Some(2)] {
            for new in [None, Some(1), Some(2), Some(3)] {
                for on_conflict in [OnConflict::DeadLetter, OnConflict::Duplicate] {
                    let record = KeyRecord {
                        status,
                        fingerprint: print(known),
                        attempts: 1,
                        crash_attempts: 0,
                        reason: (status == KeyStatus::Failed).then_some(Reason::Poison),
                        last_error: None,
                        error_code: None,
                        not_before: None,
                        is_running: false,
                        is_leased,
                    };
                    let rust = match decide_on_key(&record, print(new).as_ref(), on_conflict) {
                        KeyDecision::Retake => "retake",
                        KeyDecision::Leased => "leased",
                        KeyDecision::Duplicate => "duplicate",
                        KeyDecision::Reject(rejection) if rejection.reason == Reason::KeyConflict => {
                            "conflict"
                        }
                        KeyDecision::Reject(_) => "given_up",
                    };
                    let name = match on_conflict {
                        OnConflict::DeadLetter => "dead_letter",
                        OnConflict::Duplicate => "duplicate",
                    };
                    let sql: String = sqlx::query_scalar(
                        "select oncely.decide($1::text::oncely.key_status, $2, $3, $4, $5)",
                    )
                    .bind(status.as_str())
                    .bind(print(known).map(|print| print.0.to_vec()))
                    .bind(print(new).map(|print| print.0.to_vec()))
                    .bind(is_leased)
                    .bind(name)
                    .fetch_one(&mut world.sql)
                    .await
                    .unwrap();
                    assert_eq!(sql, rust, "{status:?}, {is_leased}, {known:?}, {new:?}, {on_conflict:?}");
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 120);
    // Both make the same fingerprint of a body.
    let sql: Vec<u8> = sqlx::query_scalar("select oncely.stored_fingerprint(sha256('{\"a\": 1}'))")
        .fetch_one(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(FingerprintPolicy::Body.fingerprint(b"{\"a\": 1}").unwrap().0.to_vec(), sql);
    // What a client passes of another kind is compared with its like, and with no worker's.
    let sql = "select concat_ws(' ', oncely.same_payload(a, a), oncely.same_payload(a, b), oncely.same_payload(a, c), octet_length(a))
        from (
            select oncely.stored_fingerprint(decode(md5('a'), 'hex')), oncely.stored_fingerprint(decode(md5('b'), 'hex')),
                oncely.stored_fingerprint(sha256('a'))
        ) as p (a, b, c)";
    assert_eq!(world.text(sql).await.as_deref(), Some("t f t 16"));
}

#[tokio::test]
async fn sql_reads_errors_as_the_worker_does() {
    let mut world = World::new().await;
    let known = [
        "", "00000", "08006", "2200H", "22012", "22P02", "26000", "0A000", "23505", "25006", "28000",
        "3D000", "3F000", "40001", "40P01", "42501", "42P01", "53100", "54001", "55006", "55P03", "57014",
        "57P01", "58030", "F0000", "XX000", "HV00N", "P0001",
    ];
    // Ours, those of tomorrow included.
    let ours = (1..=40).map(|number| format!("ONC{number:02}"));
    for code in known.into_iter().map(str::to_owned).chain(ours) {
        let code = code.as_str();
        let rust = match classify_sqlstate(code) {
            None | Some(FaultClass::Environment | FaultClass::Contention) => "environment",
            Some(FaultClass::Transient | FaultClass::Session) => "transient",
            Some(FaultClass::Poison) => "poison",
            Some(FaultClass::Rejected | FaultClass::Refused) => "handler_rejected",
            Some(FaultClass::NotJson) => "invalid_json",
            Some(FaultClass::Crashed) => "crash",
        };
        let sql: String = sqlx::query_scalar("select oncely.error_class($1)")
            .bind(code)
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
        assert_eq!(sql, rust, "{code}");
    }
    // What is not the message's fault is not counted, and a claim of the same transaction is given back.
    let mut sql = world.database.connect().await.unwrap();
    let mut transaction = sql.begin().await.unwrap();
    claim(&mut transaction, "k", "{}").await.unwrap();
    let fails = "select outcome || ' ' || attempts from oncely.fail('acme', 'payments', 'k', sha256('{}'), 1, 'x', error_code => $1)";
    for (code, outcome) in [("42P01", "retry 0"), ("22012", "given_up 1")] {
        let found: String = sqlx::query_scalar(fails).bind(code).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(found, outcome, "{code}");
        if code == "42P01" {
            transaction.commit().await.unwrap();
            assert_eq!(status(&mut world, "k").await.as_deref(), Some("IN_PROGRESS 0"));
            transaction = sql.begin().await.unwrap();
        }
    }
    transaction.commit().await.unwrap();
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("FAILED 1"));
    assert_eq!(claim(&mut sql, "k", "{}").await.unwrap().reason.as_deref(), Some("poison"));
}

#[tokio::test]
async fn other_isolation_levels_are_refused_before_anything_is_done() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for level in ["repeatable read", "serializable"] {
        for call in [
            "select oncely.claim('acme', 'payments', 'k', null)",
            "select oncely.fail('acme', 'payments', 'k', null, 1, 'boom')",
        ] {
            let begin = format!("begin isolation level {level}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut sql).await.unwrap();
            assert_eq!(code(sqlx::query(call).execute(&mut sql).await.unwrap_err()), "ONC10", "{level}");
            sqlx::raw_sql("rollback").execute(&mut sql).await.unwrap();
        }
    }
    assert_eq!(status(&mut world, "k").await, None);
}

#[tokio::test]
async fn what_is_no_identity_or_no_fingerprint_is_refused_by_code() {
    let mut world = World::new().await;
    let long = "x".repeat(256);
    for (tenant, consumer, key) in [
        (None, Some("c"), Some("k")),
        (Some("t"), None, Some("k")),
        (Some("t"), Some("c"), None),
        (Some(""), Some("c"), Some("k")),
        (Some("t"), Some(""), Some("k")),
        (Some("t"), Some("c"), Some("")),
        (Some("t"), Some("c"), Some(long.as_str())),
    ] {
        for call in ["select oncely.claim($1, $2, $3, null)", "select oncely.fail($1, $2, $3, null, 1, 'x')"]
        {
            let refused =
                sqlx::query(call).bind(tenant).bind(consumer).bind(key).execute(&mut world.sql).await;
            assert_eq!(code(refused.unwrap_err()), "ONC11", "{tenant:?} {consumer:?} {key:?}");
        }
    }
    for call in [
        "select oncely.claim('t', 'c', 'k', '')",
        "select oncely.claim('t', 'c', 'k', sha512('') || 'x')",
        "select oncely.claim('t', 'c', 'k', null, retention => null)",
        "select oncely.claim('t', 'c', 'k', null, retention => interval '-1 day')",
        "select oncely.claim('t', 'c', 'k', null, on_conflict => 'ignore')",
        "select oncely.fail('t', 'c', 'k', null, null, 'x')",
        "select oncely.fail('t', 'c', 'k', null, 1, 'x', max_attempts => 0)",
        "select oncely.fail('t', 'c', 'k', null, 1, 'x', 'because')",
    ] {
        assert_eq!(code(sqlx::query(call).execute(&mut world.sql).await.unwrap_err()), "ONC11", "{call}");
    }
    let large = "do $$ begin perform oncely.claim('t', 'c', 'k', null); perform oncely.complete('t', 'c', 'k', to_jsonb(repeat('x', 65535))); end $$";
    assert_eq!(code(sqlx::raw_sql(large).execute(&mut world.sql).await.unwrap_err()), "ONC15");
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 0);
    // The longest of all, and bytes that are odd and allowed.
    let odd = format!("{}\u{1}\u{202e} ", "x".repeat(250));
    let claimed = claim(&mut world.sql, &odd, "{}").await.unwrap();
    assert_eq!(claimed.outcome, "granted");
    let version: i32 =
        sqlx::query_scalar("select oncely.protocol_version()").fetch_one(&mut world.sql).await.unwrap();
    assert_eq!(version, 1);
}

#[tokio::test]
async fn failures_are_counted_once_each_until_the_message_is_given_up() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    for attempt in 1..=3 {
        let mut transaction = sql.begin().await.unwrap();
        let claimed = claim(&mut transaction, "k", "{}").await.unwrap();
        assert_eq!((claimed.outcome.as_str(), claimed.attempt), ("granted", attempt));
        if attempt == 2 {
            // In the transaction of the claim, after the work was taken back.
            let outcome = fail(&mut transaction, "k", attempt, None).await;
            assert_eq!(outcome, ("retry".to_owned(), 2, None));
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
            let outcome =
                if attempt < 3 { ("retry", None) } else { ("given_up", Some("attempts_exhausted")) };
            let expected = (outcome.0.to_owned(), attempt, outcome.1.map(str::to_owned));
            assert_eq!(fail(&mut sql, "k", attempt, None).await, expected);
        }
        if attempt < 3 {
            // The reply was lost: told again, it is not counted again.
            assert_eq!(fail(&mut sql, "k", attempt, None).await, ("retry".to_owned(), attempt, None));
        }
    }
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("FAILED 3"));
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'retried'").await, 2);
    let given_up = claim(&mut sql, "k", "{}").await.unwrap();
    assert_eq!(
        (given_up.outcome.as_str(), given_up.reason.as_deref()),
        ("given_up", Some("attempts_exhausted"))
    );
    assert_eq!(fail(&mut sql, "k", 0, None).await.0, "given_up");
    // It was given up before, so what is written down is the caller's attempt.
    assert_eq!(fail(&mut sql, "k", 1, None).await.0, "given_up");
    let attempts = "select string_agg(attempt::text, ' ' order by attempt) from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(world.text(attempts).await.as_deref(), Some("0 1 3"));
    let given_up = fail(&mut sql, "poison", 1, Some("poison")).await;
    assert_eq!(given_up, ("given_up".to_owned(), 1, Some("poison".to_owned())));
    // Where the claim did not answer nothing is counted; a reason gives up all the same.
    assert_eq!(fail(&mut sql, "unanswered", 0, None).await, ("retry".to_owned(), 0, None));
    assert_eq!(fail(&mut sql, "unanswered", 1, None).await, ("retry".to_owned(), 1, None));
    let given_up = fail(&mut sql, "unanswered", 0, Some("invalid_json")).await;
    assert_eq!(given_up, ("given_up".to_owned(), 1, Some("invalid_json".to_owned())));
    assert_eq!(status(&mut world, "unanswered").await.as_deref(), Some("FAILED 1"));
    let never_run = fail(&mut sql, "never run", 0, Some("poison")).await;
    assert_eq!(never_run, ("given_up".to_owned(), 0, Some("poison".to_owned())));
    // What took effect in the meantime stays so.
    once(&mut sql, "done").await;
    assert_eq!(fail(&mut sql, "done", 1, None).await.0, "duplicate");
    assert_eq!(status(&mut world, "done").await.as_deref(), Some("COMPLETED 1"));
    let other = "select outcome from oncely.fail('acme', 'payments', 'done', sha256('other'), 1, 'boom')";
    assert_eq!(world.text(other).await.as_deref(), Some("conflict"));
}

#[tokio::test]
async fn who_has_no_fingerprint_neither_takes_a_key_that_has_one_nor_reads_its_response() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    once(&mut sql, "done").await;
    fail(&mut sql, "open", 1, None).await;
    for (call, expected) in [
        ("oncely.claim('acme', 'payments', 'done', null)", "conflict -"),
        ("oncely.claim('acme', 'payments', 'done', null, on_conflict => 'duplicate')", "duplicate -"),
        ("oncely.claim('acme', 'payments', 'open', null)", "conflict -"),
        // Whoever says that another payload is the same message gets what that message got.
        (
            "oncely.claim('acme', 'payments', 'done', sha256('other'), on_conflict => 'duplicate')",
            "duplicate done",
        ),
        ("oncely.claim('acme', 'payments', 'done', sha256('{}'))", "duplicate done"),
    ] {
        let answer = format!("select outcome || ' ' || coalesce(response ->> 'done', '-') from {call}");
        assert_eq!(world.text(&answer).await.as_deref(), Some(expected), "{call}");
    }
    assert_eq!(status(&mut world, "open").await.as_deref(), Some("IN_PROGRESS 1"));
    let failed = "select outcome from oncely.fail('acme', 'payments', 'open', null, 2, 'x', 'poison')";
    assert_eq!(world.text(failed).await.as_deref(), Some("conflict"));
    assert_eq!(status(&mut world, "open").await.as_deref(), Some("IN_PROGRESS 1"));
}

#[tokio::test]
async fn a_copy_that_comes_before_its_key_may_run_waits_and_spends_no_attempt() {
    let mut world = World::new().await;
    let failed =
        "select outcome from oncely.fail('acme', 'payments', 'k', sha256('{}'), 1, 'x', delay => '1 hour')";
    assert_eq!(world.text(failed).await.as_deref(), Some("retry"));
    let early = "select outcome || ' ' || attempt || ' ' || (delay between '59 minutes' and '1 hour')
        from oncely.claim('acme', 'payments', 'k', sha256('{}'))";
    for _ in 0..3 {
        assert_eq!(world.text(early).await.as_deref(), Some("retry 0 true"));
    }
    assert_eq!(status(&mut world, "k").await.as_deref(), Some("IN_PROGRESS 1"));
    // A clock's difference too early is in time.
    sqlx::query(
        "update oncely.idempotency_keys set not_before = clock_timestamp() + interval '90 milliseconds'",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut sql = world.database.connect().await.unwrap();
    let claimed = once(&mut sql, "k").await;
    assert_eq!((claimed.outcome.as_str(), claimed.attempt), ("granted", 2));
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys where not_before is null").await, 1);
}
