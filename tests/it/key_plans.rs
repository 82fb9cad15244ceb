//! Statements about one key read one row, although a session keeps the plan that it made when the table was empty: a partial index that a
//! statement's words suit has one entry then, and as many as there are keys a minute later.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _};

use crate::support::World;

/// What reads the table of keys, and by which index.
fn reads(plan: &Value, found: &mut Vec<String>) {
    let is_write = plan["Node Type"] == "ModifyTable";
    if plan["Relation Name"] == "idempotency_keys" && !is_write {
        let index = plan["Index Name"].as_str().or(plan["Node Type"].as_str());
        found.push(index.unwrap_or_default().to_owned());
    }
    for part in plan["Plans"].as_array().into_iter().flatten() {
        reads(part, found);
    }
}

#[tokio::test]
async fn a_statement_about_one_key_reads_by_the_primary_key_whatever_its_plan_was_made_for() {
    let mut world = World::new().await;
    let snapshot: BTreeMap<String, Value> =
        serde_json::from_str(include_str!("../../sqlx-data.json")).unwrap();
    let of_one_key: Vec<(&str, usize)> = snapshot
        .values()
        .filter_map(|entry| {
            let statement = entry["query"].as_str()?;
            let plain = statement.replace("operator(pg_catalog.=)", "=");
            let words: Vec<&str> =
                plain.split_whitespace().map(|word| word.trim_start_matches("i.")).collect();
            let is_of_one_key = words.join(" ").contains("tenant = $1 and consumer = $2 and key = $3");
            let parameters = entry["describe"]["parameters"]["Left"].as_array()?.len();
            (is_of_one_key && statement.contains("oncely.idempotency_keys"))
                .then_some((statement, parameters))
        })
        .collect();
    assert!(of_one_key.len() >= 4, "{of_one_key:#?}");
    sqlx::raw_sql("set search_path = pg_catalog, pg_temp; set plan_cache_mode = force_generic_plan")
        .execute(&mut world.sql)
        .await
        .unwrap();
    for (statement, parameters) in of_one_key {
        let arguments = vec!["null"; parameters].join(", ");
        let explained =
            format!("prepare planned as {statement}; explain (format json) execute planned({arguments})");
        let rows = sqlx::raw_sql(AssertSqlSafe(explained)).fetch_all(&mut world.sql).await.unwrap();
        let plan: Value = rows[0].get(0);
        sqlx::raw_sql("deallocate planned").execute(&mut world.sql).await.unwrap();
        let mut found = Vec::new();
        reads(&plan[0]["Plan"], &mut found);
        assert!(!found.is_empty(), "{statement}\n{plan:#}");
        assert!(
            found.iter().all(|index| index == "idempotency_keys_pkey"),
            "{found:?}: {statement}\n{plan:#}"
        );
    }
}

/// The snapshot has no plans of functions, so this counts their scans.
#[tokio::test]
async fn a_function_about_one_key_reads_by_the_primary_key_whatever_its_plan_was_made_for() {
    let mut world = World::new().await;
    let script = "begin;
        set local plan_cache_mode = force_generic_plan;
        select oncely.claim_request('acme', 'orders', 'k', now(), null);
        select oncely.claim_request('acme', 'orders', 'k', now(), null);
        select oncely.retake_request('acme', 'orders', 'k', now(), null, now());
        select oncely.renew_leases(array['acme', 'acme'], 'orders', array['k', 'l'], array[1, 2]::bigint[], '30 s')";
    sqlx::raw_sql(script).execute(&mut world.sql).await.unwrap();
    let scans: Vec<(String, i64)> = sqlx::query_as(
        "select indexrelid::regclass::text, pg_stat_get_xact_numscans(indexrelid) from pg_index
         where indrelid = 'oncely.idempotency_keys'::regclass and pg_stat_get_xact_numscans(indexrelid) > 0",
    )
    .fetch_all(&mut world.sql)
    .await
    .unwrap();
    assert!(scans.len() == 1 && scans[0].0 == "oncely.idempotency_keys_pkey" && scans[0].1 >= 3, "{scans:?}");
    let scans = "select seq_scan from pg_stat_xact_user_tables where schemaname = 'oncely' and relname = 'idempotency_keys'";
    assert_eq!(world.count(scans).await, 0);
}
