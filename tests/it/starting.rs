//! What is wrong at a start, and passes or is mended at a server: a process waits for it, as it waits once it runs. Only what another
//! configuration alone mends ends it (exit code 78).

use sqlx::{AssertSqlSafe, Executor as _};
use testbed::{Broker, Redis, VirtualHost};

use crate::support::{Login, World, message, servers};

const EFFECTS: &str = "select count(*) from app.effects";

#[tokio::test]
async fn programs_that_start_while_no_connection_is_free_wait_for_one() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[relay]\npoll = \"20ms\"\n[gateway]\nprincipal = []");
    world.apply_topology().await;
    let login = Login::create(&mut world, "oncely_worker").await;
    // What the handler needs is the application's to grant.
    let more = format!(
        "grant oncely_relay to {0}; grant usage on schema app to {0}; grant insert on app.effects to {0};
         alter role {0} connection limit 0",
        login.name
    );
    sqlx::raw_sql(AssertSqlSafe(more)).execute(&mut world.sql).await.unwrap();
    let environment = login.environment();
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let mut all = vec![
        world.start_with("worker", "worker", &environment),
        world.start_with("relay", "relay", &environment),
        world.start_verb("oncely", &gateway, "gateway", &environment),
        world.start_verb("oncely", &["console", "--listen", "127.0.0.1:0"], "console", &environment),
    ];
    for process in &all {
        world.wait_for_line(process, "SQLSTATE 53300").await;
    }
    // Twice: it has asked again.
    world.wait_for_lines(&all[0], "SQLSTATE 53300", 2).await;
    world.wait_for_line(&all[2], "gateway listening").await;
    world.wait_for_line(&all[3], "console listening").await;
    world.publish("payments", message("acme", "k"), "{}").await;
    let free = format!("alter role {} connection limit -1", login.name);
    sqlx::raw_sql(AssertSqlSafe(free)).execute(&mut world.sql).await.unwrap();
    world.wait_for(EFFECTS, 1).await;
    world.wait_for_line(&all[1], "mirror lane started").await;
    while let Some(process) = all.pop() {
        world.stop(process).await;
    }
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_worker_that_starts_where_the_broker_takes_no_more_connections_waits() {
    let rabbitmq = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = rabbitmq.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    rabbitmq.limit_connections(Some(0)).await.unwrap();
    let worker = world.start("worker");
    world.wait_for_lines(&worker, "a limit of connections is reached", 2).await;
    rabbitmq.limit_connections(None).await.unwrap();
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_worker_waits_for_its_function_its_queue_its_rights_and_migrations() {
    let mut world = World::new().await;
    world.consumer("payments", "handler = { function = \"app.later\" }");
    let last: String = sqlx::query_scalar("select max(version)::text from oncely._sqlx_migrations")
        .fetch_one(&mut world.sql)
        .await
        .unwrap();
    let unapplied = format!(
        "create table app.kept as select * from oncely._sqlx_migrations where version = {last};
         delete from oncely._sqlx_migrations where version = {last}"
    );
    sqlx::raw_sql(AssertSqlSafe(unapplied)).execute(&mut world.sql).await.unwrap();
    let worker = world.start("worker");
    world.wait_for_line(&worker, "1 migrations are not applied").await;
    world.sql.execute("insert into oncely._sqlx_migrations select * from app.kept").await.unwrap();
    world.wait_for_line(&worker, "there is no function app.later(oncely.message)").await;
    world.wait_for_line(&worker, "run `oncely topology apply`").await;
    world
        .sql
        .execute(
            "create function app.later(message oncely.message) returns jsonb language sql as $$ select app.handle(message) $$",
        )
        .await
        .unwrap();
    world.apply_topology().await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for(EFFECTS, 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn what_only_another_configuration_mends_ends_the_process() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let wrong = |from: &str, to: &str| world.database.url().replacen(from, to, 1);
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]).await.unwrap();
    for (variable, value, says) in [
        ("DATABASE_URL", wrong(&name, "no_such_database"), "3D000"),
        ("ONCELY_CELL__NAME", "other".to_owned(), "is the cell"),
        ("AMQP_URL", world.urls.rabbitmq.replacen("guest", "nobody", 1), "user or password is refused"),
        ("AMQP_URL", format!("{}/", world.urls.rabbitmq.trim_end_matches('/')), "slash"),
        ("REDIS_URL", redis.url(), "is a node of a cluster"),
    ] {
        let mut worker = world.start_with("worker", "worker", &[(variable, value.clone())]);
        let status = worker.wait_for_end(std::time::Duration::from_secs(60)).await.unwrap();
        let told = worker.output();
        assert_eq!(status.code(), Some(78), "{variable}={value}: {told}");
        assert!(told.contains(says), "{variable}={value}: {told}");
    }
    // The relay has the same mirror.
    let mut relay = world.start_with("relay", "relay", &[("REDIS_URL", redis.url())]);
    let status = relay.wait_for_end(std::time::Duration::from_secs(60)).await.unwrap();
    assert_eq!(status.code(), Some(78), "{}", relay.output());
    let through = [("REDIS_URL", redis.url())];
    let through: Vec<(&str, &str)> = through.iter().map(|(name, url)| (*name, url.as_str())).collect();
    for (verb, part) in [
        ("check", "is a node of a cluster"),
        ("doctor", "is a node of a cluster"),
        ("status", "is a node of a cluster"),
    ] {
        let output = world.oncely_with(&[verb], &through).await;
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(part), "{verb}: {told}");
    }
}

#[tokio::test]
async fn a_broker_that_is_there_is_told_from_one_without_the_virtual_host() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let url = format!("{}/no-such-vhost", world.urls.rabbitmq.trim_end_matches("/%2f").trim_end_matches('/'));
    let output = world.oncely_with(&["check"], &[("AMQP_URL", url.as_str())]).await;
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("the virtual host can't be entered"), "{told}");
    assert!(Broker::connect(&world.urls.rabbitmq).await.is_ok());
}

#[tokio::test]
async fn a_database_that_is_not_in_utf8_is_refused_with_what_to_do() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let name = format!("ascii_{}", uuid::Uuid::new_v4().simple());
    let create = format!("create database {name} encoding 'SQL_ASCII' locale 'C' template template0");
    world.sql.execute(AssertSqlSafe(create)).await.unwrap();
    let (server, _) = world.database.url().rsplit_once('/').unwrap();
    let url = format!("{server}/{name}");
    let migrated = world.oncely_with(&["migrate"], &[("DATABASE_URL", url.as_str())]).await;
    let told = String::from_utf8_lossy(&migrated.stderr).into_owned();
    assert_eq!(migrated.status.code(), Some(78), "{told}");
    assert!(told.contains("encoding is SQL_ASCII, and must be UTF8") && told.contains("template0"), "{told}");
    for verb in ["check", "doctor"] {
        let output = world.oncely_with(&[verb], &[("DATABASE_URL", url.as_str())]).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && told.contains("encoding is SQL_ASCII"), "{verb}: {told}");
    }
    let mut worker = world.start_with("worker", "worker", &[("DATABASE_URL", url)]);
    let status = worker.wait_for_end(std::time::Duration::from_secs(60)).await.unwrap();
    assert_eq!(status.code(), Some(78), "{}", worker.output());
    world.sql.execute(AssertSqlSafe(format!("drop database {name}"))).await.unwrap();
}
