//! A cluster of Citus, where `CITUS_URL` names its coordinator, as a superuser: the tests make databases of their own there. Elsewhere they say that
//! they skipped.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use testbed::proxy::{Mode, Protocol, Proxy};
use testbed::{Database, Process, Urls};
use url::Url;

use crate::support::{Login, World, message};

/// A database on all nodes of the cluster, with its tables spread.
pub(crate) struct Cluster {
    pub(crate) world: World,
    /// URLs of the database on each node but the coordinator.
    pub(crate) nodes: Vec<String>,
    /// URLs of the databases that the cluster came with, on all nodes.
    servers: Vec<String>,
}

async fn run(url: &str, statements: &str) {
    let mut sql = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut sql).await.expect(statements);
    sql.close().await.unwrap();
}

fn at(url: &str, host: &str, port: u16, database: &str) -> String {
    let mut url = Url::parse(url).unwrap();
    url.set_host(Some(host)).unwrap();
    url.set_port(Some(port)).unwrap();
    url.set_path(database);
    url.into()
}

impl Cluster {
    pub(crate) async fn create() -> Option<Self> {
        let Ok(url) = std::env::var("CITUS_URL") else {
            eprintln!("skipped: CITUS_URL is not set");
            return None;
        };
        let database = Database::create(&url).await.unwrap();
        let mut sql = PgConnection::connect(&url).await.unwrap();
        let nodes = "select nodename, nodeport from pg_dist_node
            where groupid <> 0 and isactive and noderole = 'primary' order by nodeid";
        let nodes: Vec<(String, i32)> = sqlx::query_as(nodes).fetch_all(&mut sql).await.unwrap();
        assert!(nodes.len() > 1, "a cluster with two nodes beside the coordinator");
        let coordinator = Url::parse(&url).unwrap();
        let (host, port) = (coordinator.host_str().unwrap().to_owned(), coordinator.port().unwrap_or(5432));
        let mut join =
            format!("create extension citus; select citus_set_coordinator_host('{host}', {port});");
        let (mut urls, mut servers) = (Vec::new(), vec![url.clone()]);
        for (host, port) in nodes {
            let port = u16::try_from(port).unwrap();
            servers.push(at(&url, &host, port, coordinator.path()));
            run(&servers[servers.len() - 1], &format!("create database {}", database.name())).await;
            let node = at(&url, &host, port, database.name());
            run(&node, "create extension citus").await;
            join.push_str(&format!("select citus_add_node('{host}', {port});"));
            urls.push(node);
        }
        run(database.url(), &join).await;
        let others = Urls { postgres: url, ..crate::support::servers().await.urls().clone() };
        let mut world = World::in_new_database(database, others).await;
        let spread = world.oncely(&["migrate", "--citus", "--shards", "8"]).await;
        assert!(spread.status.success(), "{}", String::from_utf8_lossy(&spread.stderr));
        // Rows from a query are inserted by COPY, which policies forbid.
        let effects = "alter role program_worker bypassrls; alter role program_relay bypassrls;
            alter table app.effects alter tenant type text collate \"C\";
            select create_distributed_table('app.effects', 'tenant', colocate_with => 'oncely.idempotency_keys')";
        sqlx::raw_sql(effects).execute(&mut world.sql).await.unwrap();
        Some(Self { world, nodes: urls, servers })
    }

    fn start(&self, program: &str, node: usize, name: &str) -> Process {
        self.world.start_with(program, name, &[("DATABASE_URL", self.nodes[node].clone())])
    }

    /// Runs a verb at a node; returns all that it printed.
    async fn at_node(&self, node: usize, arguments: &[&str]) -> String {
        let output = self.world.oncely_with(arguments, &[("DATABASE_URL", &self.nodes[node])]).await;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let code = output.status.code().unwrap();
        assert!(matches!(code, 0 | 1 | 5) && !text.contains("error:"), "{arguments:?} exits {code}: {text}");
        text
    }

    /// Checks that all copies of the tables that each node has whole are equal, and that rows name the login that wrote them.
    async fn check_copies(&mut self) {
        let copies = "select d.logicalrelid::text || '_' || s.shardid
            from pg_dist_partition as d join pg_dist_shard as s on s.logicalrelid = d.logicalrelid
            where d.partmethod = 'n' and d.logicalrelid::text like 'oncely.%'";
        let copies: Vec<String> = sqlx::query_scalar(copies).fetch_all(&mut self.world.sql).await.unwrap();
        assert!(copies.len() > 10, "{copies:?}");
        let mut found = Vec::new();
        for url in self.nodes.iter().map(String::as_str).chain([self.world.database.url()]) {
            let mut sql = PgConnection::connect(url).await.unwrap();
            let mut of_node = Vec::new();
            for copy in &copies {
                let rows = format!(
                    "select '{copy} ' || coalesce(string_agg(t::text, ' ' order by t::text), '') from {copy} as t"
                );
                of_node.push(
                    sqlx::query_scalar::<_, String>(AssertSqlSafe(rows)).fetch_one(&mut sql).await.unwrap(),
                );
            }
            found.push(of_node);
            sql.close().await.unwrap();
        }
        found.iter().for_each(|of_node| assert_eq!(*of_node, found[0]));
        let foreign = "select count(*) from oncely.audit where login not like 'program_%'";
        assert_eq!(self.world.count(foreign).await, 0);
    }

    pub(crate) async fn drop_now(self) {
        let drop = format!("drop database {} with (force)", self.world.database.name());
        for server in self.servers {
            run(&server, &drop).await;
        }
    }
}

const TENANTS: usize = 20;

fn tenant(number: usize) -> String {
    format!("tenant-{}", number % TENANTS)
}

#[tokio::test]
async fn messages_take_effect_once_while_the_workers_of_each_node_are_killed() {
    const MESSAGES: usize = 1_500;
    let Some(mut cluster) = Cluster::create().await else { return };
    cluster.world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"");
    cluster.world.configure("[relay]\npoll = \"50ms\"\n[gc]\nbatch = 100\n[postgres]\nengine = \"citus\"");
    cluster.world.apply_topology().await;
    let queue = cluster.world.queue("payments");
    let mut messages = Vec::new();
    for number in 0..MESSAGES {
        let body = match number % 100 {
            7 => r#"{"do": "reject"}"#,
            13 | 57 => r#"{"do": "fail_once"}"#,
            _ => r#"{"n": 1}"#,
        };
        for _ in 0..if number % 10 < 3 { 2 } else { 1 } {
            messages.push((
                queue.clone(),
                message(&tenant(number), &format!("k{number}")),
                body.as_bytes().to_vec(),
            ));
        }
    }
    cluster.world.broker.publish_all("", messages).await.unwrap();
    let nodes = cluster.nodes.len();
    let mut killed: Vec<Process> =
        (0..nodes).map(|node| cluster.start("worker", node, &format!("killed-{node}"))).collect();
    cluster.world.wait_for("select least(count(*), 100) from app.effects", 100).await;
    killed.iter_mut().for_each(|worker| cluster.world.kill(worker));
    let workers: Vec<Process> =
        (0..nodes).map(|node| cluster.start("worker", node, &format!("worker-{node}"))).collect();
    let relays: Vec<Process> =
        (0..nodes).map(|node| cluster.start("relay", node, &format!("relay-{node}"))).collect();
    let good = (MESSAGES - MESSAGES / 100) as i64;
    let rejected = (MESSAGES / 100) as i64;
    let effects = "select count(*) from app.effects where key ~ '^k[0-9]+$'";
    cluster.world.wait_beside_good_ones("payments", effects, good).await;
    cluster
        .world
        .wait_for("select count(*) from oncely.dead_letters where state = 'waiting'", rejected)
        .await;
    cluster.world.wait_for_ready(&queue, 0).await;
    for (what, wanted) in [
        ("select count(*) from (select 1 from app.effects group by tenant, key having count(*) > 1) as d", 0),
        (
            "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and tenant <> 'witness'",
            good,
        ),
        ("select count(*) from oncely.idempotency_keys where status = 'FAILED'", rejected),
        ("select count(*) from oncely.audit where outcome = 'completed' and tenant <> 'witness'", good),
    ] {
        assert_eq!(cluster.world.count(what).await, wanted, "{what}");
    }

    // Events of all nodes, in order.
    let told = cluster.world.queue("told");
    cluster.world.broker.declare_queue(&told, lapin::types::FieldTable::default()).await.unwrap();
    for part in 0..3 {
        for number in 0..TENANTS {
            let emit = format!(
                "select oncely.emit('', '{told}', '{0} {part}', ordering_key => 'o', tenant => '{0}')",
                tenant(number)
            );
            sqlx::raw_sql(AssertSqlSafe(emit)).execute(&mut cluster.world.sql).await.unwrap();
        }
    }
    cluster.world.wait_for_ready(&told, 3 * TENANTS as u32).await;
    let bodies = crate::events::bodies(&cluster.world.broker, &told).await;
    for number in 0..TENANTS {
        let own = format!("{} ", tenant(number));
        let of_tenant: Vec<_> = bodies.iter().filter_map(|body| body.strip_prefix(&own)).collect();
        assert_eq!(of_tenant, ["0", "1", "2"], "{own}");
    }

    for arguments in [
        &["status"][..],
        &["doctor"],
        &["failed", "list"],
        &["failed", "groups"],
        &["failed", "requeue", "--all", "--yes"],
        &["outbox", "list"],
        &["audit", "list"],
        &["keys", "list", "--consumer", "payments", "--status", "completed"],
        &["explain", "k7"],
        &["consumers", "list"],
        &["consumers", "pause", "payments", "--reason", "a test"],
        &["consumers", "resume", "payments"],
        &["retention", "set", "payments", "11d", "--note", "a test"],
        &["grant", "program_worker", "--emit", "--exchange", "orders", "--tenant", "*"],
        &["leases", "list"],
        &["retention", "list"],
        &["tenant", "usage"],
        &["tenant", "export", "tenant-1"],
        &["gc", "run"],
    ] {
        cluster.at_node(0, arguments).await;
    }
    // They fail again, as letters of the next generation.
    let again = "select count(*) from oncely.dead_letters where state = 'waiting' and generation = 2";
    cluster.world.wait_for(again, rejected).await;
    for process in workers.into_iter().chain(relays) {
        cluster.world.stop(process).await;
    }
    let tend = "select oncely.roll_up_stats(), oncely.prune_stats(), oncely.bury_processes(now() + interval '1 day')";
    run(&cluster.nodes[1], tend).await;
    cluster.check_copies().await;
    let age =
        "update oncely.idempotency_keys set created_at = $1, completed_at = $1 where status = 'COMPLETED'";
    let long_ago = chrono::Utc::now() - chrono::Duration::days(20);
    sqlx::query(age).bind(long_ago).execute(&mut cluster.world.sql).await.unwrap();
    for node in 0..nodes {
        cluster.at_node(node, &["gc", "run"]).await;
    }
    let left = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    assert_eq!(cluster.world.count(left).await, 0, "each node collects its own");
    cluster.at_node(0, &["tenant", "erase", "tenant-7", "--forget-keys", "--trail", "delete", "--yes"]).await;
    let erased = "select (select count(*) from oncely.idempotency_keys where tenant = 'tenant-7')
        + (select count(*) from oncely.dead_letters where tenant = 'tenant-7')";
    assert_eq!(cluster.world.count(erased).await, 0);
    cluster.world.broker.delete_queue(&told).await.unwrap();
    cluster.drop_now().await;
}

#[tokio::test]
async fn a_tenants_auditor_sees_its_tenants_alone_at_each_node() {
    let Some(mut cluster) = Cluster::create().await else { return };
    let insert = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        select 'tenant-' || n, 'payments', 'k', 'COMPLETED', 1, now(), now() from generate_series(1, 20) as n";
    sqlx::raw_sql(insert).execute(&mut cluster.world.sql).await.unwrap();
    let support = Login::create(&mut cluster.world, "oncely_tenant_auditor").await;
    let auditor = Login::create(&mut cluster.world, "oncely_auditor").await;
    let grant = format!("select oncely.grant_right('{}', 'read', '', 'tenant-1')", support.name);
    sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut cluster.world.sql).await.unwrap();
    let mut urls = cluster.nodes.clone();
    urls.push(cluster.world.database.url().to_owned());
    for url in urls {
        for (login, wanted) in [(&support, vec!["tenant-1"]), (&auditor, (1..=20).map(|_| "").collect())] {
            let mut own = Url::parse(&url).unwrap();
            own.set_username(&login.name).unwrap();
            own.set_password(Some("secret")).unwrap();
            let mut sql = PgConnection::connect(own.as_str()).await.unwrap();
            let listed = sqlx::query(
                "select tenant from oncely.list_keys(of_status => 'COMPLETED', of_consumer => 'payments')",
            )
            .fetch_all(&mut sql)
            .await
            .unwrap();
            assert_eq!(listed.len(), wanted.len(), "{} at {url}", login.name);
            if wanted.len() == 1 {
                assert_eq!(listed[0].get::<String, _>(0), wanted[0]);
                let read =
                    sqlx::query("select tenant from oncely.idempotency_keys").fetch_all(&mut sql).await;
                assert!(read.is_err(), "no right to the table");
            }
            sql.close().await.unwrap();
        }
    }
    cluster.drop_now().await;
}

#[tokio::test]
async fn one_worker_serves_all_nodes_and_one_that_is_away_stops_its_own_tenants_alone() {
    let Some(mut cluster) = Cluster::create().await else { return };
    let second = Url::parse(&cluster.nodes[1]).unwrap();
    let address = format!("{}:{}", second.host_str().unwrap(), second.port().unwrap());
    let proxy = Proxy::start(Protocol::Postgres, address.parse().unwrap()).await.unwrap();
    cluster.world.consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"\nprefetch = 60");
    let nodes = format!("{{ \"{address}\" = \"127.0.0.1:{}\" }}", proxy.port());
    cluster
        .world
        .configure(&format!("[postgres]\nengine = \"citus\"\nconnect_timeout = \"1s\"\nnodes = {nodes}"));
    cluster.world.apply_topology().await;
    let queue = cluster.world.queue("payments");
    let tenants: Vec<String> = (0..TENANTS).map(tenant).collect();
    let behind_proxy = "select array_agg(tenant) from oncely.tenant_nodes($1) where port = $2";
    let away: Vec<String> = sqlx::query_scalar(behind_proxy)
        .bind(&tenants)
        .bind(i32::from(second.port().unwrap()))
        .fetch_one(&mut cluster.world.sql)
        .await
        .unwrap();
    assert!(!away.is_empty() && away.len() < TENANTS, "{away:?}");
    let publish = async |world: &mut World, from: usize, to: usize| {
        let messages = (from..to).map(|number| {
            (queue.clone(), message(&tenant(number), &format!("k{number}")), b"{\"n\": 1}".to_vec())
        });
        world.broker.publish_all("", messages.collect()).await.unwrap();
    };
    publish(&mut cluster.world, 0, 400).await;
    let worker = cluster.start("worker", 0, "of-all");
    cluster.world.wait_for("select count(*) from app.effects", 400).await;
    let routes = "select coalesce(sum((c -> 'routes' ->> 1)::int), 0) from oncely.processes as p,
        jsonb_array_elements(p.consumers) as c";
    cluster.world.wait_for(routes, 400).await;

    cluster.check_copies().await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    publish(&mut cluster.world, 400, 1_400).await;
    let here = (0..TENANTS).filter(|number| !away.contains(&tenant(*number))).count() as i64;
    let list = away.iter().map(|tenant| format!("'{tenant}'")).collect::<Vec<_>>().join(", ");
    let of_others = format!("select count(*) from app.effects where tenant not in ({list})");
    cluster.world.wait_for(&of_others, here * 70).await;
    let of_its_own = format!("select count(*) from app.effects where tenant in ({list})");
    assert_eq!(cluster.world.count(&of_its_own).await, away.len() as i64 * 20, "they wait");

    proxy.set(Mode::Pass);
    cluster.world.wait_for("select count(*) from app.effects", 1_400).await;
    cluster.world.wait_for_ready(&queue, 0).await;
    cluster.world.stop(worker).await;
    let keys = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    assert_eq!(cluster.world.count(keys).await, 1_400);
    let doubled =
        "select count(*) from (select 1 from app.effects group by tenant, key having count(*) > 1) as d";
    assert_eq!(cluster.world.count(doubled).await, 0);
    cluster.drop_now().await;
}

#[tokio::test]
async fn trust_through_a_coordinator_is_refused_and_a_relay_there_waits() {
    let Some(mut cluster) = Cluster::create().await else { return };
    cluster.world.with_redis(&cluster.world.urls.redis.clone(), "");
    cluster
        .world
        .consumer("payments", "retention = \"10d\"\nredelivery_horizon = \"1h\"\nprecheck = \"trust\"");
    cluster.world.apply_topology().await;
    let coordinator = cluster.world.database.url().to_owned();
    let worker = cluster.world.start_with("worker", "trusting", &[("DATABASE_URL", coordinator.clone())]);
    cluster.world.wait_for_line(&worker, "the mirror would be trusted for the epoch of this server").await;
    cluster.world.stop(worker).await;
    let relay = cluster.world.start_with("relay", "nowhere", &[("DATABASE_URL", coordinator)]);
    cluster.world.wait_for_line(&relay, "a relay serves the node that it is connected to").await;
    cluster.world.stop(relay).await;

    cluster.drop_now().await;
}
