//! No page reads a big table from one end to the other, however small it is today.

use std::collections::BTreeMap;

use sqlx::Row as _;

use super::{console, crawl, furnish};
use crate::support::World;

/// How often keys, letters and the parts of the trail were scanned, by whoever has left.
async fn scans(world: &mut World) -> BTreeMap<String, i64> {
    let rows = sqlx::query(
        "select s.relname::text, s.seq_scan
         from pg_stat_user_tables as s
         where s.relid in ('oncely.idempotency_keys'::regclass, 'oncely.dead_letters'::regclass)
             or s.relid in (select t.relid from pg_partition_tree('oncely.audit') as t)",
    )
    .fetch_all(&mut world.sql)
    .await
    .unwrap();
    rows.into_iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// A session's counts are known when it has ended.
const OTHERS: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and application_name like 'oncely%'";

const DOCTORS: &str = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'oncely preflight'";

#[tokio::test]
async fn no_page_and_no_list_reads_a_big_table_as_a_whole() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    sqlx::raw_sql("analyze").execute(&mut world.sql).await.unwrap();
    let (mut running, operator) = console(&world).await;
    // The doctor's checks run once, beside the pages and each within two seconds, and may look at all.
    super::actions::wait_for(&operator, "/doctor", " checks as ").await;
    world.wait_for(DOCTORS, 0).await;
    let before = scans(&mut world).await;
    let seen =
        crawl(&operator, &["/", "/keys?q=since%3A30d", "/key?key=unknown", "/failed?since=90d"], 400).await;
    assert!(seen.iter().any(|(path, _)| path.starts_with("/failed/plan")), "plans are looked at, too");
    running.process.kill().unwrap();
    for verb in [
        &["audit", "list"][..],
        &["audit", "list", "--tenant", "nobody"],
        &["failed", "list"],
        &["failed", "groups"],
        &["keys", "list", "--tenant", "acme"],
        &["explain", "unknown"],
        &["status"],
    ] {
        let output = world.oncely(verb).await;
        assert!(matches!(output.status.code(), Some(0 | 1 | 5)), "{verb:?}: {output:?}");
    }
    world.wait_for(OTHERS, 0).await;
    let after = scans(&mut world).await;
    assert_eq!(after, before, "a page or a list has scanned what may be big");
}
