//! What worker and relay tell at `/metrics`, `/livez`, `/readyz` and `/statusz`.

use std::collections::BTreeSet;

use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::Executor as _;
use testbed::eventually;
use testbed::proxy::Mode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::exposition::series;
use crate::support::gate::{Gate, WAITING};
use crate::support::http::{address, get, wait_for};
use crate::support::{World, message, servers};

async fn world(settings: &str) -> World {
    let mut world = World::new().await;
    world.configure("[worker]\nlisten = \"127.0.0.1:0\"\n[relay]\nlisten = \"127.0.0.1:0\"");
    world.consumer("payments", settings);
    world
}

/// A sample's number, by its name with all labels.
fn sample(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Names and labels of all metrics.
fn metrics(told: &str) -> BTreeSet<(String, BTreeSet<String>)> {
    series(told).into_iter().map(|series| (series.metric.clone(), series.label_names())).collect()
}

#[tokio::test]
async fn every_metric_is_there_from_the_start_and_nothing_else() {
    let mut world = world("").await;
    world.with_redis(servers().await.urls().redis.as_str(), "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    for (process, of) in [(&worker, "worker"), (&relay, "relay")] {
        let address = address(process).await;
        wait_for(&address, "/readyz", 200, "ready").await;
        let (status, told) = get(&address, "/metrics").await.unwrap();
        assert_eq!(status, 200);
        let found = metrics(&told);
        let wanted: BTreeSet<(String, BTreeSet<String>)> = oncely::metrics::CATALOGUE
            .iter()
            .filter(|metric| metric.of == of || ["all", "both"].contains(&metric.of))
            .map(|metric| {
                (metric.name.to_owned(), metric.labels.iter().map(|label| (*label).to_owned()).collect())
            })
            .collect();
        let ours: BTreeSet<_> =
            found.iter().filter(|(name, _)| name.starts_with("oncely_")).cloned().collect();
        let differs: Vec<_> = ours.symmetric_difference(&wanted).collect();
        assert!(differs.is_empty(), "{of}: only in the catalogue, or only told: {differs:?}");
        assert!(found.iter().any(|(name, _)| name == "process_cpu_seconds_total"), "{of}: {found:?}");
        for name in wanted.iter().map(|(name, _)| name) {
            assert!(told.contains(&format!("# HELP {name} ")), "{name} says what it is");
        }
    }
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn what_becomes_of_messages_is_counted_by_outcome_reason_and_source() {
    let world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    for (key, body) in [
        ("good", "{}"),
        ("good", "{}"),
        ("sold-out", r#"{"do": "refuse"}"#),
        ("fails-once", r#"{"do": "fail_once"}"#),
        ("bad", r#"{"do": "reject"}"#),
    ] {
        world.publish("payments", message("acme", key), body).await;
    }
    let completed = r#"oncely_messages_total{consumer="payments",outcome="completed"}"#;
    wait_for(&address, "/metrics", 200, &format!("{completed} 2\n")).await;
    // The message that failed once may have done so before any other succeeded: the consumer stood still then.
    wait_for(&address, "/metrics", 200, "oncely_ready 1\n").await;
    let (_, metrics) = get(&address, "/metrics").await.unwrap();
    for (name, number) in [
        (r#"oncely_messages_total{consumer="payments",outcome="refused"}"#, 1.0),
        (r#"oncely_messages_total{consumer="payments",outcome="duplicate"}"#, 1.0),
        (r#"oncely_messages_total{consumer="payments",outcome="retried"}"#, 1.0),
        (r#"oncely_messages_total{consumer="payments",outcome="dead_lettered"}"#, 1.0),
        (r#"oncely_dead_letters_total{consumer="payments",reason="handler_rejected"}"#, 1.0),
        (r#"oncely_dead_letters_total{consumer="payments",reason="poison"}"#, 0.0),
        (r#"oncely_retries_total{consumer="payments",delay="100ms"}"#, 1.0),
        (r#"oncely_message_duration_seconds_count{consumer="payments",outcome="completed"}"#, 2.0),
        (r#"oncely_consumer_up{consumer="payments"}"#, 1.0),
        (r#"oncely_consumer_paused{consumer="payments",cause="operator"}"#, 0.0),
        (r#"oncely_dedupe_horizon_seconds{consumer="payments"}"#, 7.0 * 86_400.0),
        (r#"oncely_connected{server="postgres"}"#, 1.0),
        ("oncely_ready", 1.0),
    ] {
        let found = sample(&metrics, name);
        assert!((found - number).abs() < f64::EPSILON, "{name}: {found}");
    }
    let duplicates: f64 = ["mirror", "postgres", "batch"]
        .iter()
        .map(|source| {
            sample(&metrics, &format!(r#"oncely_duplicates_total{{consumer="payments",source="{source}"}}"#))
        })
        .sum();
    assert!((duplicates - 1.0).abs() < f64::EPSILON);
    assert!(!metrics.contains("acme") && !metrics.contains("sold-out"), "neither tenants nor keys are told");
    let delivered = r#"oncely_deliveries_total{consumer="payments",redelivered="false"}"#;
    assert!((sample(&metrics, delivered) - 6.0).abs() < f64::EPSILON, "the retried one came twice");
    let status: Value = serde_json::from_str(&get(&address, "/statusz").await.unwrap().1).unwrap();
    assert_eq!(status["schema"], "oncely.statusz/1");
    assert_eq!(status["consumers"][0]["counts"]["completed"], 2);
    assert_eq!((&status["state"], &status["overdue"]), (&"ready".into(), &Value::Array(Vec::new())));
    world.stop(worker).await;
}

#[tokio::test]
async fn a_session_that_the_server_ends_at_rest_is_no_outage() {
    let mut world = world("").await;
    world.apply_topology().await;
    let ends = "do $$ begin execute format('alter database %I set idle_session_timeout = ''1s''', current_database()); end $$";
    world.database.connect().await.unwrap().execute(ends).await.unwrap();
    let worker = world.start("worker");
    let effects = "select count(*) from app.effects";
    world.publish("payments", message("acme", "before"), "{}").await;
    world.wait_for(effects, 1).await;
    // Longer than the heartbeat's session and the lanes' may rest.
    let beats =
        "select count(*) from oncely.processes where last_seen_at > started_at + interval '9 seconds'";
    world.wait_for(beats, 1).await;
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for(effects, 2).await;
    assert!(!worker.output().contains("heartbeat"), "{}", worker.output());
    let (_, metrics) = get(&address(&worker).await, "/metrics").await.unwrap();
    let outages = sample(&metrics, r#"oncely_outages_total{consumer="payments"}"#);
    assert!(outages < 1.0, "{}", worker.output());
    world.stop(worker).await;
}

#[tokio::test]
async fn an_outage_is_a_reason_not_to_be_ready_and_none_to_be_restarted() {
    let world = world("").await;
    world.apply_topology().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let worker = world.start_with("worker", "worker", &environment);
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    wait_for(&address, "/readyz", 503, "PostgreSQL does not answer").await;
    assert_eq!(get(&address, "/livez").await.unwrap().0, 200);
    let (_, metrics) = get(&address, "/metrics").await.unwrap();
    assert!(sample(&metrics, r#"oncely_connected{server="postgres"}"#) < 1.0);
    proxy.set(Mode::Pass);
    wait_for(&address, "/readyz", 200, "ready").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_worker_that_waits_for_its_servers_says_so() {
    let world = world("").await;
    world.apply_topology().await;
    let nowhere = [("AMQP_URL", "amqp://127.0.0.1:1".to_owned())];
    let worker = world.start_with("worker", "worker", &nowhere);
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 503, "starting: waiting for servers: RabbitMQ").await;
    assert_eq!(get(&address, "/livez").await.unwrap().0, 200);
    world.stop(worker).await;
}

#[tokio::test]
async fn a_consumer_that_is_stalled_is_named_with_the_reason() {
    let mut world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    world.publish("payments", message("planted-tenant", "planted-key"), r#"{"do": "missing_table"}"#).await;
    wait_for(&address, "/readyz", 503, "payments is stalled since").await;
    let (_, ready) = get(&address, "/readyz").await.unwrap();
    assert!(ready.contains("42P01"), "{ready}");
    // Neither whose message it is, nor what the database or a handler said: whoever reaches the address may ask.
    let (_, told) = get(&address, "/statusz").await.unwrap();
    let status: Value = serde_json::from_str(&told).unwrap();
    let stalled = &status["consumers"][0]["stalled"];
    assert!(stalled["code"] == "42P01" && stalled["since"].is_string(), "{told}");
    // And with the next heartbeat.
    world
        .wait_for(
            "select count(*) from oncely.processes where state = 'unready' and reason like '%42P01%'",
            1,
        )
        .await;
    world
        .sql
        .execute("select oncely.pause_consumer('payments', null, 'planted-reason', 'planted-user')")
        .await
        .unwrap();
    let told = wait_for(&address, "/statusz", 200, "\"paused\": {").await + &ready;
    for planted in [
        "planted-tenant",
        "planted-key",
        "no_such_table",
        "undefined table",
        "planted-reason",
        "planted-user",
    ] {
        assert!(!told.contains(planted), "{planted}: {told}");
    }
    wait_for(
        &address,
        "/metrics",
        200,
        "oncely_consumer_paused{consumer=\"payments\",cause=\"environment\"} 1\n",
    )
    .await;
    // Nothing can succeed while it is paused, and that is what somebody wanted.
    sqlx::query("select oncely.pause_consumer('payments', null, 'the table is made', 'ana')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    wait_for(&address, "/readyz", 200, "ready").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_queue_that_is_deleted_is_named() {
    let world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    world.broker.delete_queue(&world.queue("payments")).await.unwrap();
    wait_for(&address, "/readyz", 503, &format!("payments is not subscribed to {}", world.queue("payments")))
        .await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_relay_without_redis_says_so_is_ready_and_tells_its_backlog() {
    let mut world = world("").await;
    world.with_redis("redis://127.0.0.1:1", "");
    let relay = world.start("relay");
    let address = address(&relay).await;
    sqlx::query(
        "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
         values ('a', gen_random_uuid(), 'mirror', now() - interval '1 minute', now() + interval '1 day', 'payments', decode(repeat('ab', 16), 'hex'))",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    wait_for(&address, "/metrics", 200, "oncely_relay_backlog_records{target=\"redis\"} 1\n").await;
    let (_, metrics) = get(&address, "/metrics").await.unwrap();
    assert!(sample(&metrics, r#"oncely_relay_oldest_age_seconds{target="redis"}"#) > 59.0);
    wait_for(&address, "/readyz", 200, "ready (degraded: Redis does not answer; nothing is mirrored").await;
    assert_eq!(get(&address, "/livez").await.unwrap().0, 200);
    world.stop(relay).await;
}

#[tokio::test]
async fn a_gauge_that_takes_too_long_keeps_a_relay_neither_from_being_ready_nor_from_telling_the_others() {
    let mut world = world("").await;
    world.with_redis("redis://127.0.0.1:1", "");
    let relay = world.start("relay");
    let address = address(&relay).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    // Dead letters can't be counted meanwhile.
    let mut other = world.database.connect().await.unwrap();
    other.execute("begin; lock table oncely.dead_letters in access exclusive mode").await.unwrap();
    // Where the second record is told, the look that told the first was judged.
    for waiting in 1..=2 {
        sqlx::query(
            "insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
             values ('a', gen_random_uuid(), 'mirror', now(), now() + interval '1 day', 'payments', decode(repeat('ab', 16), 'hex'))",
        )
        .execute(&mut world.sql)
        .await
        .unwrap();
        let told = format!("oncely_relay_backlog_records{{target=\"redis\"}} {waiting}\n");
        wait_for(&address, "/metrics", 200, &told).await;
        let (status, told) = get(&address, "/readyz").await.unwrap();
        assert_eq!(status, 200, "{told}");
    }
    other.execute("rollback").await.unwrap();
    world.stop(relay).await;
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_at_the_start() {
    let mut world = World::new().await;
    world.configure("[worker]\nlisten = \"9464\"");
    world.consumer("payments", "");
    let mut worker = world.start("worker");
    let status = worker.wait_for_end(std::time::Duration::from_secs(30)).await.unwrap();
    assert_eq!(status.code(), Some(78));
    let part = "worker.listen: \"9464\" is not an address";
    assert!(worker.output().contains(part), "{}", worker.output());
}

#[tokio::test]
async fn an_address_that_is_taken_is_waited_for_as_by_the_process_that_takes_over() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut world = World::new().await;
    world.configure(&format!("[worker]\nlisten = {address:?}"));
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "listen address in use").await;
    drop(taken);
    wait_for(&address, "/readyz", 200, "ready").await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_subscription_that_waits_for_a_lane_is_alive() {
    let mut world = world("batch = 1\nlanes = 1\nprefetch = 2\ndeadline = \"5m\"").await;
    world.configure(
        "[rabbitmq]\ntimeout = \"1s\"\n[postgres]\nstatement_timeout = \"5m\"\nlock_timeout = \"2m\"",
    );
    world.apply_topology().await;
    let (proxy, through) = world.proxied_rabbitmq().await;
    let worker = world.start_with("worker", "worker", &[("AMQP_URL", through)]);
    let address = address(&worker).await;
    let gate = Gate::shut(&world).await;
    world.publish("payments", message("acme", "slow"), r#"{"do": "wait"}"#).await;
    world.wait_for(WAITING, 1).await;
    for key in ["k1", "k2", "k3", "k4"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    // The one lane is at work; what the channel of before had sent ahead is still in front of it, and takes the room of what is new.
    proxy.cut();
    world.wait_for_lines(&worker, " subscribed", 2).await;
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(12) {
        let (status, told) = get(&address, "/livez").await.unwrap();
        assert_eq!(status, 200, "{told}");
        // No hope: twelve seconds of waiting are what is tried, and this is how often somebody looks meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    // The end of a channel is noticed while something waits for a lane.
    proxy.cut();
    world.wait_for_lines(&worker, " subscribed", 3).await;
    gate.open().await;
    world.wait_for("select count(*) from app.effects", 5).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn systemd_hears_that_a_worker_is_up_what_it_waits_for_and_that_it_stops() {
    let world = world("").await;
    world.apply_topology().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = tokio::net::UnixDatagram::bind(folder.path().join("notify")).unwrap();
    let (proxy, mut environment) = {
        let (proxy, environment) = world.proxied_postgres().await;
        (proxy, environment.to_vec())
    };
    proxy.set(Mode::Refuse);
    environment.push(("NOTIFY_SOCKET", folder.path().join("notify").display().to_string()));
    let worker = world.start_with("worker", "worker", &environment);
    let said = async |part: &str| {
        let mut all = String::new();
        let heard = tokio::time::timeout(std::time::Duration::from_secs(60), async {
            let mut buffer = vec![0; 4_096];
            while !all.contains(part) {
                let length = socket.recv(&mut buffer).await.unwrap();
                all.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        heard.await.unwrap_or_else(|_| panic!("{part} was not said"));
        all
    };
    let waiting = said("READY=1").await;
    assert!(
        waiting.contains("STATUS=starting: waiting for servers: PostgreSQL"),
        "up, and waiting: {waiting}"
    );
    assert!(said("WATCHDOG=1").await.contains("STATUS="));
    proxy.set(Mode::Pass);
    said("STATUS=ready").await;
    let (stopped, ()) = tokio::join!(said("STOPPING=1"), world.stop(worker));
    assert!(!stopped.contains("READY=1"), "said once");
}

#[tokio::test]
async fn connections_that_ask_for_too_much_are_ended_and_keep_nobody_out() {
    let world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    // Each asks forty times and reads nothing; the next one is answered all the same.
    let asked = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(40);
    let mut greedy = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(asked.as_bytes()).await.unwrap();
        greedy.push(stream);
    }
    assert_eq!(get(&address, "/livez").await.unwrap().0, 200);
    // One answer a connection, and then its end; an end without one for those that others have displaced.
    for mut stream in greedy {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
        let _ = read.await.expect("the connection is ended");
        assert!(String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count() <= 1);
    }
    // Who says nothing is not waited for.
    let mut silent = TcpStream::connect(&address).await.unwrap();
    silent.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut answer));
    let _ = read.await.expect("the connection is ended");
    world.stop(worker).await;
}

#[tokio::test]
async fn metrics_are_rendered_once_a_second_on_a_thread_of_their_own() {
    let world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    let threads = std::fs::read_dir(format!("/proc/{}/task", worker.id())).unwrap();
    let names: Vec<String> = threads
        .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok())
        .collect();
    assert!(names.iter().any(|name| name.trim() == "listener"), "{names:?}");
    // The process's open files tell one rendering from another.
    let (began, mut held, mut told) = (Instant::now(), Vec::new(), BTreeSet::new());
    for _ in 0..20 {
        held.push(TcpStream::connect(&address).await.unwrap());
        told.insert(get(&address, "/metrics").await.unwrap().1);
    }
    let most = 2 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(told.len() <= most, "{} texts, not {most}", told.len());
    eventually("a text of now", || async {
        let (_, text) = get(&address, "/metrics").await?;
        if told.contains(&text) { Err(anyhow::anyhow!("the same")) } else { Ok(()) }
    })
    .await
    .unwrap();
    world.stop(worker).await;
}

#[tokio::test]
async fn what_listens_for_this_machine_alone_answers_to_no_other_name() {
    let world = world("").await;
    world.apply_topology().await;
    let worker = world.start("worker");
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "ready").await;
    let port = address.rsplit(':').next().unwrap();
    for (host, status) in [
        (address.as_str(), "200"),
        (&format!("localhost:{port}"), "200"),
        (&format!("rebound.example.com:{port}"), "421"),
        ("metrics.internal", "421"),
    ] {
        for path in ["/metrics", "/statusz", "/livez"] {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {path}: {answer}");
            assert_eq!(answer.contains("oncely_"), status == "200" && path == "/metrics", "{host} {path}");
        }
    }
    world.stop(worker).await;
}
