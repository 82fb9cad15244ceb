//! Workers with `postgres.engine = "citus"`: each message is sent to the node that keeps its tenant. Here both nodes are one server behind a proxy
//! for each, since a worker knows nodes by `oncely.tenant_nodes` alone; `citus.rs` has real ones.

use std::net::SocketAddr;

use sqlx::AssertSqlSafe;
use testbed::proxy::{Mode, Protocol, Proxy};
use url::Url;

use crate::support::{World, message};

/// Makes node 1 keep tenants whose names begin with `left`, and node 2 those with `right`. No node is known for others.
async fn place(world: &mut World, left: &Proxy, right: &Proxy) {
    let function = format!(
        "create or replace function oncely.tenant_nodes(
            tenants text[], out tenant text, out node integer, out host text, out port integer
        ) returns setof record language sql stable as $$
            select t.tenant, n.node, '127.0.0.1', n.port
            from unnest(tenants) as t (tenant)
            join (values (1, 'left%', {}), (2, 'right%', {})) as n (node, pattern, port) on t.tenant like n.pattern
            union all
            select '', 1, '127.0.0.1', {} where '' = any (tenants)
        $$",
        left.port(),
        right.port(),
        left.port()
    );
    sqlx::raw_sql(AssertSqlSafe(function)).execute(&mut world.sql).await.unwrap();
}

/// Makes node 2 keep all tenants.
async fn place_all(world: &mut World, node: &Proxy) {
    let function = format!(
        "create or replace function oncely.tenant_nodes(
            tenants text[], out tenant text, out node integer, out host text, out port integer
        ) returns setof record language sql stable as
            $$ select t.tenant, 2, '127.0.0.1', {} from unnest(tenants) as t (tenant) $$",
        node.port()
    );
    sqlx::raw_sql(AssertSqlSafe(function)).execute(&mut world.sql).await.unwrap();
}

async fn proxy(world: &World) -> Proxy {
    let url = Url::parse(world.database.url()).unwrap();
    let address: SocketAddr = format!("127.0.0.1:{}", url.port().unwrap()).parse().unwrap();
    Proxy::start(Protocol::Postgres, address).await.unwrap()
}

async fn publish(world: &World, queue: &str, tenant: &str, keys: std::ops::Range<usize>) {
    let messages = keys.map(|number| {
        let body = if number % 50 == 7 { r#"{"do": "fail_once"}"# } else { r#"{"n": 1}"# };
        (
            queue.to_owned(),
            message(&format!("{tenant}-{}", number % 3), &format!("k{number}")),
            body.as_bytes().to_vec(),
        )
    });
    world.broker.publish_all("", messages.collect()).await.unwrap();
}

fn effects(tenant: &str) -> String {
    format!("select count(*) from app.effects where tenant like '{tenant}-%'")
}

const DOUBLED: &str =
    "select count(*) from (select 1 from app.effects group by tenant, key having count(*) > 1) as d";

#[tokio::test]
async fn a_node_that_is_away_stops_its_own_tenants_alone() {
    let mut world = World::new().await;
    let (left, right) = (proxy(&world).await, proxy(&world).await);
    place(&mut world, &left, &right).await;
    world.configure("[postgres]\nengine = \"citus\"\nconnect_timeout = \"1s\"\nplacement_ttl = \"200ms\"");
    world.consumer("payments", "prefetch = 40");
    world.apply_topology().await;
    let queue = world.queue("payments");
    for tenant in ["left", "right", "lost"] {
        publish(&world, &queue, tenant, 0..150).await;
    }
    let mut killed = world.start_as("worker", "killed");
    world.wait_for("select least(count(*), 50) from app.effects", 50).await;
    world.kill(&mut killed);
    let worker = world.start("worker");
    world
        .wait_beside_good_ones("payments", "select count(*) from app.effects where tenant <> 'witness'", 450)
        .await;
    world.wait_for_ready(&queue, 0).await;
    let routes = "select count(*) from oncely.processes as p, jsonb_array_elements(p.consumers) as c
        where p.name = 'worker' and (c -> 'routes' ->> 0)::int > 0 and (c -> 'routes' ->> 1)::int > 0";
    world.wait_for(routes, 1).await;

    right.set(Mode::Refuse);
    right.cut();
    publish(&world, &queue, "right", 150..550).await;
    for tenant in ["left", "lost"] {
        publish(&world, &queue, tenant, 150..350).await;
    }
    world.wait_for(&effects("left"), 350).await;
    world.wait_for(&effects("lost"), 350).await;
    assert_eq!(world.count(&effects("right")).await, 150, "they wait");

    // Another server has taken over from the node.
    let successor = proxy(&world).await;
    place(&mut world, &left, &successor).await;
    world.wait_for(&effects("right"), 550).await;

    // A tenant has moved while no message of it came, and its former node is gone.
    left.set(Mode::Refuse);
    left.cut();
    place_all(&mut world, &successor).await;
    publish(&world, &queue, "left", 350..400).await;
    world.wait_beside_good_ones("payments", &effects("left"), 400).await;
    world.wait_for_ready(&queue, 0).await;
    world.stop(worker).await;
    assert_eq!(world.count(DOUBLED).await, 0);
    let keys =
        "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and tenant <> 'witness'";
    assert_eq!(world.count(keys).await, 1_300);
}

#[tokio::test]
async fn messages_go_to_the_configured_server_while_none_says_where_tenants_are() {
    let mut world = World::new().await;
    let node = proxy(&world).await;
    place(&mut world, &node, &node).await;
    world.configure("[postgres]\nengine = \"citus\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let worker = world.start("worker");
    publish(&world, &queue, "left", 0..6).await;
    world.wait_for(&effects("left"), 6).await;
    let refuse = "revoke execute on function oncely.tenant_nodes from oncely_worker";
    sqlx::raw_sql(refuse).execute(&mut world.sql).await.unwrap();
    publish(&world, &queue, "right", 0..6).await;
    world.wait_for(&effects("right"), 6).await;
    world.wait_for_ready(&queue, 0).await;
    world.stop(worker).await;
    assert_eq!(world.count(DOUBLED).await, 0);
}

#[tokio::test]
async fn an_engine_that_is_not_the_one_behind_the_tables_keeps_a_worker_waiting() {
    let mut world = World::new().await;
    world.configure("[postgres]\nengine = \"citus\"");
    world.with_redis(&world.urls.redis.clone(), "");
    world.consumer("payments", "precheck = \"trust\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "the tables are not spread over nodes").await;
    world.stop(worker).await;

    let node = proxy(&world).await;
    place(&mut world, &node, &node).await;
    let mut other = World::on_database_of(&world).await;
    other.with_redis(&other.urls.redis.clone(), "");
    other.consumer("payments", "precheck = \"trust\"");
    other.apply_topology().await;
    let worker = other.start("worker");
    other.wait_for_line(&worker, "the mirror would be trusted for the epoch of this server").await;
    other.stop(worker).await;
}
