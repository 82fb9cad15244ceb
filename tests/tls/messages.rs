//! A message's whole way with TLS; and certificates that are renewed under it.

use testbed::{Broker, Credentials, Process};

use crate::servers::{Files, Servers, authority, urls};
use crate::support::{World, message};

/// A world on these servers, and the environment of its programs.
async fn world(servers: &Servers, files: &Files) -> (World, Vec<(&'static str, String)>) {
    let mut world = World::on(servers.urls()).await;
    world.configure("[relay]\npoll = \"20ms\"\n[mirror]\nbudget = \"5s\"");
    world.consumer("payments", "");
    let url = url::Url::parse(world.database.url()).unwrap();
    let mut environment = files.environment();
    environment.extend(urls(servers.ports, url.path().trim_start_matches('/')));
    let borrowed: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = world.oncely_with(&["topology", "apply"], &borrowed).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (world, environment)
}

/// Publishes a message, and waits for its effect and for its entry in the mirror.
async fn effect(world: &mut World, servers: &Servers, key: &str) {
    world.publish("payments", message("acme", key), "{}").await;
    world.wait_for(&format!("select count(*) from app.effects where key = '{key}'"), 1).await;
    let client = redis::Client::open(servers.redis.url()).unwrap();
    testbed::eventually("it is mirrored", || async {
        let mut connection =
            client.get_multiplexed_async_connection().await.map_err(|error| error.to_string())?;
        let size: u64 =
            redis::cmd("DBSIZE").query_async(&mut connection).await.map_err(|error| error.to_string())?;
        if size > 0 { Ok(()) } else { Err("nothing".to_owned()) }
    })
    .await
    .unwrap();
}

/// As `Process::is_running`, for one that is not ours to change.
fn is_running(process: &Process) -> bool {
    std::path::Path::new("/proc").join(process.id().to_string()).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_takes_effect_and_is_mirrored_over_connections_that_both_ends_have_proved() {
    let (authority, server) = authority("ours");
    let servers = Servers::start(&server).await;
    let files = Files::new(&authority.issue("app", &[]).unwrap());
    let (mut world, environment) = world(&servers, &files).await;
    let worker = world.start_with("worker", "worker", &environment);
    let relay = world.start_with("relay", "relay", &environment);
    effect(&mut world, &servers, "k-1").await;

    let of_app = "from pg_stat_ssl join pg_stat_activity using (pid) where usename = 'app'";
    assert!(world.count(&format!("select count(*) {of_app} and ssl and client_dn = '/CN=app'")).await > 0);
    assert_eq!(
        world
            .count(&format!("select count(*) {of_app} and (not ssl or client_dn is distinct from '/CN=app')"))
            .await,
        0
    );
    let connections =
        servers.rabbitmq.ctl(&["-q", "list_connections", "ssl", "peer_cert_subject"]).await.unwrap();
    assert!(connections.contains("true\tCN=app"), "{connections}");
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_renewed_on_disk_are_used_without_a_restart() {
    let (old, old_server) = authority("old");
    let mut servers = Servers::start(&old_server).await;
    let files = Files::new(&old.issue("app", &[]).unwrap());
    let (mut world, environment) = world(&servers, &files).await;
    let worker = world.start_with("worker", "worker", &environment);
    let relay = world.start_with("relay", "relay", &environment);
    effect(&mut world, &servers, "before").await;

    // Another authority, for both ends: first the servers have it, and nobody believes them.
    let (new, new_server) = authority("new");
    servers.rabbitmq.flush().await.unwrap();
    servers.present(&new_server).await;
    servers.rabbitmq.restart().await.unwrap();
    world.sql = world.database.connect().await.unwrap();
    world.broker = Broker::connect(&servers.rabbitmq.url()).await.unwrap();
    world.wait_for_line(&worker, "UnknownIssuer").await;
    let issued: Credentials = new.issue("app", &[]).unwrap();
    issued.write(files.folder()).unwrap();

    effect(&mut world, &servers, "after").await;
    assert!(is_running(&worker) && is_running(&relay));
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_missing_under_a_process_that_runs_are_an_outage_until_they_are_back() {
    let (authority, server) = authority("ours");
    let servers = Servers::start(&server).await;
    let own = authority.issue("app", &[]).unwrap();
    let files = Files::new(&own);
    let (mut world, environment) = world(&servers, &files).await;
    let worker = world.start_with("worker", "worker", &environment);
    let relay = world.start_with("relay", "relay", &environment);
    effect(&mut world, &servers, "before").await;

    for name in ["ca.pem", "cert.pem", "key.pem"] {
        std::fs::remove_file(files.path(name)).unwrap();
    }
    // Whoever starts now is told at once, by each of them.
    let borrowed: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = world.oncely_with(&["check"], &borrowed).await;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(78), "{told}");
    for section in ["postgres", "rabbitmq", "redis"] {
        for setting in ["ca", "cert", "key"] {
            assert!(told.contains(&format!("{section}.tls.{setting}: ")), "{section} {setting}: {told}");
        }
    }
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'app'";
    world.count(ended).await;
    servers.rabbitmq.ctl(&["close_all_connections", "missing"]).await.unwrap();
    world.broker = Broker::connect(&servers.rabbitmq.url()).await.unwrap();
    world.wait_for_line(&worker, "ca.pem: can't be read").await;
    world.publish("payments", message("acme", "after"), "{}").await;
    own.write(files.folder()).unwrap();
    world.wait_for("select count(*) from app.effects where key = 'after'", 1).await;
    assert!(is_running(&worker) && is_running(&relay));
    world.stop(worker).await;
    world.stop(relay).await;
}
