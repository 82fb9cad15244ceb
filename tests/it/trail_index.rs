//! The trail's index on time: whoever looks at the newest rows must not read the trail.

use serde_json::Value;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;

use crate::support::World;

/// Pages of one summary. The last of the table are not full, and have none.
const RANGE: i64 = 128;

/// A world with a trail of more than twenty megabytes that nobody has summarised. Autovacuum drops requests to summarise when there are
/// many; here it never comes.
async fn world() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    sqlx::raw_sql(
        "do $$
         declare one record;
         begin
             for one in
                 select i.indexrelid::regclass as index, i.indrelid::regclass as partition
                 from pg_inherits as h join pg_index as i on i.indexrelid = h.inhrelid
                 where h.inhparent = 'oncely.audit_occurred_at'::regclass
             loop
                 execute format('alter index %s set (autosummarize = off)', one.index);
                 execute format('alter table %s set (autovacuum_enabled = off)', one.partition);
             end loop;
         end $$;
         insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now(), 1, 'payments', 'k' || n, 'q', 'completed', 'w' from generate_series(1, 250000) as n;
         -- The plan counts its own pages, and not those of helpers.
         set enable_seqscan = off; set max_parallel_workers_per_gather = 0",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    assert!(pages_read(&mut world.sql).await > 20 * RANGE);
    world
}

/// How many pages of the trail somebody reads who asks for what is younger than all of it.
async fn pages_read(connection: &mut sqlx::PgConnection) -> i64 {
    let plan: Value = sqlx::query_scalar(
        "explain (analyze, format json) select count(*) from oncely.audit where occurred_at > now() + interval '1 minute'
           and occurred_at < now() + interval '2 minutes'",
    )
    .fetch_one(connection)
    .await
    .unwrap();
    fn sum(plan: &Value) -> i64 {
        let own = plan["Lossy Heap Blocks"].as_i64().unwrap_or(0);
        assert_ne!(plan["Node Type"], "Seq Scan", "{plan}");
        own + plan["Plans"].as_array().map_or(0, |plans| plans.iter().map(sum).sum())
    }
    sum(&plan[0]["Plan"])
}

/// All calls that it takes; returns how many.
async fn summarize(world: &mut World, anew: bool) -> usize {
    let (mut skip, mut calls) = (Some(0), 0);
    while let Some(done) = skip {
        skip = sqlx::query_scalar::<_, Option<i32>>("select oncely.summarize_audit($1, $2)")
            .bind(anew)
            .bind(done)
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
        calls += 1;
        assert!(skip.is_none_or(|skip| skip > done), "nobody else is at work: {skip:?} after {done}");
    }
    calls
}

/// Takes all summaries away.
async fn forget(world: &mut World) {
    sqlx::query(
        "select brin_desummarize_range(i.indexrelid, block)
         from pg_inherits as h join pg_index as i on i.indexrelid = h.inhrelid,
         generate_series(0, pg_relation_size(i.indrelid) / 8192, 128) as block
         where h.inhparent = 'oncely.audit_occurred_at'::regclass",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
}

/// Runs a statement that is given little time; was it cancelled? In a session of its own, since in this one the limit would hold for the
/// statement that lifts it, too.
async fn is_cancelled(world: &World, millis: u32, statement: &'static str) -> bool {
    let options: PgConnectOptions = world.database.url().parse().unwrap();
    let options = options.options([("statement_timeout", millis.to_string())]);
    let mut limited = PgConnection::connect_with(&options).await.unwrap();
    let ended = sqlx::query(statement).execute(&mut limited).await;
    let code = ended.err().map(|error| error.as_database_error().unwrap().code().unwrap().into_owned());
    assert!(code.is_none() || code.as_deref() == Some("57014"), "{code:?}");
    code.is_some()
}

/// Leaves the index as a summary leaves it that is ended with its session: PostgreSQL's own functions, cancelled, leave the same.
async fn break_it(world: &mut World) {
    for attempt in 0..200 {
        let is_cancelled = is_cancelled(
            world,
            2 + attempt % 20,
            "select brin_summarize_new_values(i.indexrelid)
             from pg_inherits as h join pg_index as i on i.indexrelid = h.inhrelid
             where h.inhparent = 'oncely.audit_occurred_at'::regclass order by pg_relation_size(i.indrelid) desc",
        )
        .await;
        summarize(world, false).await;
        if is_cancelled && pages_read(&mut world.sql).await > RANGE {
            return;
        }
        forget(world).await;
    }
    panic!("no summary was ever broken off");
}

#[tokio::test]
async fn a_summary_that_is_cancelled_leaves_nothing_that_the_next_does_not_make_good() {
    let mut world = world().await;
    let mut cancelled = 0;
    for attempt in 0..200 {
        let statement = "select oncely.summarize_audit()";
        cancelled += usize::from(is_cancelled(&world, 2 + attempt % 20, statement).await);
        if cancelled == 20 {
            break;
        }
        // What was made so far is whole.
        summarize(&mut world, false).await;
        let read = pages_read(&mut world.sql).await;
        assert!(read <= RANGE, "{read} pages after {cancelled} were cancelled");
        forget(&mut world).await;
    }
    assert!(cancelled >= 5, "{cancelled}");
}

#[tokio::test]
async fn what_a_summary_broke_that_died_is_made_anew_whatever_the_time_takes() {
    let mut world = world().await;
    break_it(&mut world).await;
    summarize(&mut world, true).await;
    let read = pages_read(&mut world.sql).await;
    assert!(read <= RANGE, "{read} pages");
    // A vacuum holds this lock: it is not waited for, and what is left is told.
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table oncely.audit in share update exclusive mode")
        .execute(&mut other)
        .await
        .unwrap();
    for skip in [0, 3] {
        let next: Option<i32> = sqlx::query_scalar("select oncely.summarize_audit(true, $1)")
            .bind(skip)
            .fetch_one(&mut world.sql)
            .await
            .unwrap();
        assert_eq!(next, Some(skip));
    }
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();
    // Behind all that there is nothing is done.
    let beyond: Option<i32> = sqlx::query_scalar("select oncely.summarize_audit(true, 100000)")
        .fetch_one(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(beyond, None);
}

#[tokio::test]
async fn two_at_once_who_make_summaries_anew_leave_them_whole() {
    let mut world = world().await;
    let mut at_work = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let mut connection = world.database.connect().await.unwrap();
        at_work.spawn(async move {
            for _ in 0..4 {
                let mut skip = Some(0);
                while let Some(done) = skip {
                    // Where another is at work just now, the same number comes back.
                    skip = sqlx::query_scalar::<_, Option<i32>>("select oncely.summarize_audit(true, $1)")
                        .bind(done)
                        .fetch_one(&mut connection)
                        .await?;
                }
            }
            Ok::<_, sqlx::Error>(())
        });
    }
    while let Some(ended) = at_work.join_next().await {
        ended.unwrap().unwrap();
    }
    let read = pages_read(&mut world.sql).await;
    assert!(read <= RANGE, "{read} pages");
}

#[tokio::test]
async fn a_relay_keeps_the_index_up_to_date_while_autovacuum_does_not_and_mends_what_is_broken() {
    for is_broken in [false, true] {
        let mut world = world().await;
        if is_broken {
            break_it(&mut world).await;
        }
        let relay = world.start("relay");
        let database = &world.database;
        eventually("the index is whole", || async {
            let mut connection = database.connect().await?;
            sqlx::raw_sql("set enable_seqscan = off; set max_parallel_workers_per_gather = 0")
                .execute(&mut connection)
                .await?;
            let read = pages_read(&mut connection).await;
            anyhow::ensure!(read <= RANGE, "{read} pages are read");
            Ok(())
        })
        .await
        .unwrap();
        world.stop(relay).await;
    }
}
