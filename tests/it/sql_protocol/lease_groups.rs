//! Keys that are claimed, and runs that are completed, many in one statement: what workers say (`oncely.take_leases`, `complete_leases`).

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::World;

use super::code;
use super::leases::{complete, granted, run_out};

/// Outcome and token of each, in the order of the keys; each key is claimed by the owner beside it.
async fn take(
    sql: &mut PgConnection,
    claims: &[(&str, &str)],
) -> Result<Vec<(String, Option<i64>)>, sqlx::Error> {
    let keys: Vec<String> = claims.iter().map(|(key, _)| (*key).to_owned()).collect();
    let owners: Vec<String> = claims.iter().map(|(_, owner)| (*owner).to_owned()).collect();
    let rows = sqlx::query(
        "select t.outcome, t.token
         from (select array_agg('acme'::text) as tenants, array_agg(null::bytea) as prints, array_agg('q'::text) as queues,
                   array_agg(null::text) as traces from unnest($1)) as a
         cross join lateral oncely.take_leases(a.tenants, 'payments', $1, a.prints, $2, '30 s', '10 min', 'duplicate', 3,
             a.queues, 'w', a.traces, true) as t
         order by t.place",
    )
    .bind(&keys)
    .bind(&owners)
    .fetch_all(sql)
    .await?;
    Ok(rows.iter().map(|row| (row.get("outcome"), row.get("token"))).collect())
}

/// Tokens of keys that nobody had.
async fn taken(sql: &mut PgConnection, keys: &[&str]) -> Vec<i64> {
    let claims: Vec<(&str, &str)> = keys.iter().map(|key| (*key, *key)).collect();
    let answers = take(sql, &claims).await.unwrap();
    answers
        .into_iter()
        .map(|(outcome, token)| {
            assert_eq!(outcome, "granted");
            token.unwrap()
        })
        .collect()
}

/// A finish: key, token, response, and is its answer no?
type Finish<'a> = (&'a str, i64, Value, bool);

/// Outcomes, in the order of the keys.
async fn finish(
    sql: &mut PgConnection,
    ends: &[Finish<'_>],
    tags: Option<&[u8]>,
) -> Result<Vec<String>, sqlx::Error> {
    let keys: Vec<String> = ends.iter().map(|end| end.0.to_owned()).collect();
    let tokens: Vec<i64> = ends.iter().map(|end| end.1).collect();
    let responses: Vec<Value> = ends.iter().map(|end| end.2.clone()).collect();
    let refused: Vec<bool> = ends.iter().map(|end| end.3).collect();
    sqlx::query_scalar(
        "select t.outcome
         from (select array_agg('acme'::text) as tenants, array_agg('q'::text) as queues, array_agg(null::text) as traces
               from unnest($1)) as a
         cross join lateral oncely.complete_leases(a.tenants, 'payments', $1, $2, $3, $4, a.queues, 'w', a.traces, $5) as t
         order by t.place",
    )
    .bind(&keys)
    .bind(&tokens)
    .bind(&responses)
    .bind(&refused)
    .bind(tags)
    .fetch_all(sql)
    .await
}

fn done<'a>(key: &'a str, token: i64) -> Finish<'a> {
    (key, token, json!({ "done": key }), false)
}

const HELD: &str = "select count(*) from oncely.idempotency_keys where owner is not null";

#[tokio::test]
async fn new_keys_are_claimed_together_and_a_known_one_is_still_asked_for_by_itself() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    granted(&mut sql, "held", "another").await;
    granted(&mut sql, "over", "another").await;
    run_out(&mut world, "over").await;
    let token = granted(&mut sql, "done", "another").await;
    complete(&mut sql, "done", token).await.unwrap();
    let claims = [("done", "a"), ("held", "b"), ("new", "c"), ("new", "d"), ("newer", "e"), ("over", "f")];
    let first = take(&mut sql, &claims).await.unwrap();
    let outcomes: Vec<&str> = first.iter().map(|(outcome, _)| outcome.as_str()).collect();
    assert_eq!(
        outcomes,
        ["duplicate", "in_flight", "granted", "in_flight", "granted", "granted"],
        "of two copies in one group one runs"
    );
    assert_eq!(
        world.text("select owner from oncely.idempotency_keys where key = 'new'").await.as_deref(),
        Some("c")
    );
    assert_eq!(
        world.count("select count(*) from oncely.audit where outcome = 'taken_over' and key = 'over'").await,
        1
    );
    // The reply was lost.
    assert_eq!(take(&mut sql, &claims).await.unwrap(), first, "the same acquisitions");
    assert_eq!(world.count("select max(crash_attempts)::bigint from oncely.idempotency_keys").await, 1);
    let ends = [done("new", first[2].1.unwrap()), done("over", first[5].1.unwrap())];
    assert_eq!(finish(&mut sql, &ends, None).await.unwrap(), ["completed", "completed"]);
}

#[tokio::test]
async fn a_group_of_finishes_is_in_the_rows_the_trail_and_the_mirror_once() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let tokens = taken(&mut sql, &["a", "b", "c"]).await;
    let mut ends = [done("a", tokens[0]), done("b", tokens[1]), done("c", tokens[2])];
    ends[1].3 = true;
    let tags = [7; 48];
    assert_eq!(finish(&mut sql, &ends, Some(&tags)).await.unwrap(), ["completed"; 3]);
    // The reply was lost.
    assert_eq!(finish(&mut sql, &ends, Some(&tags)).await.unwrap(), ["already_completed"; 3]);
    let rows = "select string_agg(concat_ws(' ', key, status, attempts, reason, response ->> 'done'), ', ' order by key)
        from oncely.idempotency_keys
        where owner is null and run_ends_at is null and not_before is null and fencing_token is not null
            and completed_at > created_at";
    assert_eq!(
        world.text(rows).await.as_deref(),
        Some("a COMPLETED 1 a, b COMPLETED 1 refused b, c COMPLETED 1 c")
    );
    let trail = "select string_agg(concat_ws(' ', key, outcome, attempt, queue, worker), ', ' order by key)
        from oncely.audit where duration_us between 0 and 60000000 and login = session_user";
    assert_eq!(
        world.text(trail).await.as_deref(),
        Some("a completed 1 q w, b refused 1 q w, c completed 1 q w")
    );
    let mirrored =
        "select string_agg(concat_ws(' ', kind, octet_length(tags)), ', ') from oncely.mirror_queue";
    assert_eq!(world.text(mirrored).await.as_deref(), Some("mirror 48"), "one record for all of them");
    let protects = "select count(*) from oncely.mirror_queue as q, oncely.idempotency_keys as i where i.completed_at < q.created_at";
    assert_eq!(world.count(protects).await, 0, "no key may be collected before its record has arrived");
}

#[tokio::test]
async fn one_lost_lease_in_a_group_completes_nobody_and_each_answers_for_itself_then() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let tokens = taken(&mut sql, &["a", "b"]).await;
    run_out(&mut world, "b").await;
    let later = granted(&mut sql, "b", "another").await;
    let ends = [done("a", tokens[0]), done("b", tokens[1])];
    assert_eq!(code(finish(&mut sql, &ends, Some(&[0; 32])).await.unwrap_err()), "ONC18");
    assert_eq!(world.count(HELD).await, 2);
    assert_eq!(world.count("select count(*) from oncely.mirror_queue").await, 0);
    assert_eq!(world.count("select count(*) from oncely.audit where outcome = 'completed'").await, 0);
    assert_eq!(finish(&mut sql, &ends[..1], None).await.unwrap(), ["completed"]);
    assert_eq!(code(finish(&mut sql, &ends[1..], None).await.unwrap_err()), "ONC18");
    assert_eq!(finish(&mut sql, &[done("b", later)], None).await.unwrap(), ["completed"]);
}

#[tokio::test]
async fn a_group_that_waits_for_a_takeover_completes_nothing_of_what_was_taken() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let token = taken(&mut sql, &["k"]).await[0];
    run_out(&mut world, "k").await;
    let mut other = world.database.connect().await.unwrap();
    let mut takeover = other.begin().await.unwrap();
    granted(&mut takeover, "k", "another").await;
    let finishing = tokio::spawn(async move { finish(&mut sql, &[done("k", token)], None).await });
    let waiting = "select count(*) from pg_locks as l join pg_stat_activity as a using (pid)
        where not l.granted and a.datname = current_database()";
    // It waits for a tenth of a second at most: then it says so, which is as well.
    while world.count(waiting).await == 0 && !finishing.is_finished() {
        tokio::task::yield_now().await;
    }
    takeover.commit().await.unwrap();
    let refused = code(finishing.await.unwrap().unwrap_err());
    assert!(["ONC18", "55P03"].contains(&refused.as_str()), "{refused}");
    assert_eq!(world.count(HELD).await, 1, "by the run that has taken it over");
}

#[tokio::test]
async fn a_group_refuses_what_a_single_finish_refuses() {
    let mut world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    let mut transaction = sql.begin().await.unwrap();
    let token = taken(&mut transaction, &["k"]).await[0];
    let refused = finish(&mut transaction, &[done("k", token)], None).await.unwrap_err();
    assert_eq!(code(refused), "ONC19", "the claim is not committed");
    transaction.rollback().await.unwrap();

    let token = taken(&mut sql, &["k"]).await[0];
    let large = ("k", token, json!("x".repeat(70_000)), false);
    assert_eq!(code(finish(&mut sql, &[large], None).await.unwrap_err()), "ONC15");
    for set in
        ["set transaction isolation level repeatable read", "set transaction isolation level serializable"]
    {
        let mut transaction = sql.begin().await.unwrap();
        sqlx::query(set).execute(&mut *transaction).await.unwrap();
        assert_eq!(code(finish(&mut transaction, &[done("k", token)], None).await.unwrap_err()), "ONC10");
        transaction.rollback().await.unwrap();
        let mut transaction = sql.begin().await.unwrap();
        sqlx::query(set).execute(&mut *transaction).await.unwrap();
        assert_eq!(code(take(&mut transaction, &[("other", "o")]).await.unwrap_err()), "ONC10");
        transaction.rollback().await.unwrap();
    }
    assert_eq!(world.count(HELD).await, 1);
    assert_eq!(finish(&mut sql, &[done("k", token)], None).await.unwrap(), ["completed"]);
}

#[tokio::test]
async fn a_session_that_planned_when_there_were_no_keys_reads_no_whole_table_later() {
    let world = World::new().await;
    let mut sql = world.database.connect().await.unwrap();
    // More often than a plan is made for the values at hand.
    for number in 0..10 {
        let key = format!("k{number}");
        let token = taken(&mut sql, &[&key]).await[0];
        finish(&mut sql, &[done(&key, token)], None).await.unwrap();
    }
    let mut transaction = sql.begin().await.unwrap();
    let read = "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_xact_all_tables where relid = 'oncely.idempotency_keys'::regclass";
    // Held already by another transaction, as far as the row says.
    let keys: Vec<String> = (0..100).map(|number| format!("n{number:02}")).collect();
    let claims: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), key.as_str())).collect();
    let answers = take(&mut transaction, &claims).await.unwrap();
    let ends: Vec<Finish<'_>> =
        keys.iter().zip(&answers).map(|(key, (_, token))| done(key, token.unwrap())).collect();
    sqlx::query("update oncely.idempotency_keys set claimed_in = 1 where owner is not null")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let before: i64 = sqlx::query_scalar(read).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(finish(&mut transaction, &ends, None).await.unwrap().len(), 100);
    let after: i64 = sqlx::query_scalar(read).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(after, before, "through the primary key");
}
