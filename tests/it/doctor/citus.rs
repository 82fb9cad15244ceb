//! What the doctor says of a Citus cluster, where `CITUS_URL` names one, and of the engine that is configured.

use std::time::Duration;

use oncely_doctor::{Limits, Verdict};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{only, says};
use crate::citus::Cluster;
use crate::support::World;

#[tokio::test]
async fn an_engine_that_is_not_the_one_behind_the_tables_is_told() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let (config, scope) = (world.config(), only("pg.engine", Limits::default()));
    says(&config, &scope, "pg.engine", Verdict::Ok, "").await;
    let spread = "create or replace function oncely.tenant_nodes(
            tenants text[], out tenant text, out node integer, out host text, out port integer
        ) returns setof record language sql stable as $$ select t, 1, '127.0.0.1', 1 from unnest(tenants) as t $$";
    sqlx::raw_sql(spread).execute(&mut world.sql).await.unwrap();
    says(&config, &scope, "pg.engine", Verdict::Info, "are forwarded by this server").await;
    let units = "create or replace function oncely.units(out unit text, out tables jsonb) returns setof record language sql stable as
        $$ select '', '{}'::jsonb limit 0 $$";
    sqlx::raw_sql(units).execute(&mut world.sql).await.unwrap();
    let relay = world.start("relay");
    world.wait_for_line(&relay, "a relay serves the node that it is connected to").await;
    world.stop(relay).await;
}

#[tokio::test]
async fn tables_policies_and_prepared_transactions_of_a_cluster_are_judged() {
    let Some(mut cluster) = Cluster::create().await else { return };
    cluster.world.consumer("payments", "");
    let mut config = cluster.world.config();
    config.postgres.url = cluster.nodes[0].clone().into();
    let limits = Limits { prepared: Duration::ZERO, ..Limits::default() };
    for check in ["citus.tables", "citus.policies", "citus.prepared"] {
        says(&config, &only(check, limits), check, Verdict::Ok, "").await;
    }
    let apart = "create table app.apart (tenant text collate \"C\", n int);
        select create_distributed_table('app.apart', 'tenant', colocate_with => 'none')";
    sqlx::raw_sql(apart).execute(&mut cluster.world.sql).await.unwrap();
    says(
        &config,
        &only("citus.tables", limits),
        "citus.tables",
        Verdict::Warning,
        "app.apart: is distributed",
    )
    .await;

    let mut node = PgConnection::connect(&cluster.nodes[0]).await.unwrap();
    let shard: String = sqlx::query_scalar(
        "select 'oncely.idempotency_keys_' || min(s.shardid) from pg_dist_shard as s join pg_dist_placement as p using (shardid)
         where s.logicalrelid = 'oncely.idempotency_keys'::regclass and p.groupid = (select groupid from pg_dist_local_group)",
    )
    .fetch_one(&mut node)
    .await
    .unwrap();
    let damage = format!(
        "set citus.enable_manual_changes_to_shards = on; alter table {shard} disable row level security"
    );
    sqlx::raw_sql(AssertSqlSafe(damage)).execute(&mut node).await.unwrap();
    says(&config, &only("citus.policies", limits), "citus.policies", Verdict::Error, &shard).await;

    // A name that Citus's recovery does not take for one of its own.
    let prepare = "begin; create table app.held (n int); prepare transaction 'citus_test'";
    sqlx::raw_sql(prepare).execute(&mut node).await.unwrap();
    says(&config, &only("citus.prepared", limits), "citus.prepared", Verdict::Warning, "1 transactions")
        .await;
    sqlx::raw_sql("rollback prepared 'citus_test'").execute(&mut node).await.unwrap();
    node.close().await.unwrap();
    cluster.drop_now().await;
}
