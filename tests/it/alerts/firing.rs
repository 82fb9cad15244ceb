//! Once with everything real: Prometheus, a worker, a relay, a handler that breaks.

use serde_json::Value;
use testbed::{Prometheus, eventually};

use super::{board, rules};
use crate::gateway;
use crate::support::http::{address, get, wait_for};
use crate::support::{World, message, servers};

async fn ask(prometheus: &Prometheus, path: &str) -> anyhow::Result<Value> {
    let (status, body) = get(&prometheus.address(), path).await?;
    let answer: Value = serde_json::from_str(&body).map_err(|_| anyhow::anyhow!("{status}: {body}"))?;
    anyhow::ensure!(answer["status"] == "success", "{path}: {answer}");
    Ok(answer["data"].clone())
}

/// The alerts of this name that fire.
async fn firing(prometheus: &Prometheus, name: &str) -> anyhow::Result<Vec<Value>> {
    let data = ask(prometheus, "/api/v1/alerts").await?;
    let alerts = data["alerts"].as_array().into_iter().flatten();
    let firing = alerts.filter(|alert| alert["labels"]["alertname"] == name && alert["state"] == "firing");
    Ok(firing.cloned().collect())
}

async fn query(prometheus: &Prometheus, expression: &str) -> anyhow::Result<Value> {
    let expression: String = url::form_urlencoded::byte_serialize(expression.as_bytes()).collect();
    ask(prometheus, &format!("/api/v1/query?query={expression}")).await
}

#[tokio::test]
async fn a_handler_that_breaks_is_an_alert_until_it_is_mended() {
    let mut world = World::new().await;
    world.configure(
        "[worker]\nlisten = \"127.0.0.1:0\"\n[relay]\nlisten = \"127.0.0.1:0\"\n[gateway]\nmetrics = \"127.0.0.1:0\"\nprincipal = []",
    );
    world.consumer("payments", "");
    world.with_redis(servers().await.urls().redis.as_str(), "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let (worker_at, relay_at) = (address(&worker).await, address(&relay).await);
    let (gateway, gateway_at) = gateway::alone(&world).await;
    for at in [&worker_at, &relay_at, &gateway_at] {
        wait_for(at, "/readyz", 200, "ready").await;
    }
    let prometheus =
        Prometheus::start(&[&worker_at, &relay_at, &gateway_at], &rules::hurried()).await.unwrap();
    world.publish("payments", message("acme", "good"), "{}").await;
    // Beside the other one it would be a witness that the environment is sound.
    let done = "oncely_messages_total{consumer=\"payments\",outcome=\"completed\"} 1\n";
    wait_for(&worker_at, "/metrics", 200, done).await;
    world.publish("payments", message("acme", "k"), r#"{"do": "missing_table"}"#).await;
    let alert = eventually("an alert", || async {
        let alerts = firing(&prometheus, "OncelyConsumerStalled").await?;
        alerts.first().cloned().ok_or_else(|| anyhow::anyhow!("nothing fires"))
    })
    .await
    .unwrap();
    assert_eq!(alert["labels"]["consumer"], "payments");
    assert_eq!(alert["labels"]["severity"], "page");
    assert_eq!(alert["annotations"]["summary"], "Consumer payments is stalled, no message succeeds");
    // Prometheus finds nothing wrong with any expression, and no panel is empty but those of what has not happened.
    let groups = ask(&prometheus, "/api/v1/rules").await.unwrap();
    for rule in
        groups["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    for asked in board::queries() {
        let is_of_events = asked.expression.contains("> 0");
        eventually(&asked.place, || async {
            let answer = query(&prometheus, &asked.expression).await?;
            let is_empty = answer["result"].as_array().is_none_or(Vec::is_empty);
            anyhow::ensure!(!is_empty || is_of_events, "nothing: {}", asked.expression);
            Ok(())
        })
        .await
        .unwrap();
    }
    // The relay is there, both processes answer, nobody has paused anything.
    for silent in [
        "OncelyRelayGone",
        "OncelyProcessDown",
        "OncelyConsumerPaused",
        "OncelyPostgresAway",
        "OncelyQueueUnattended",
    ] {
        assert_eq!(firing(&prometheus, silent).await.unwrap(), Vec::<Value>::new(), "{silent}");
    }
    sqlx::raw_sql("create table app.not_there (number integer)").execute(&mut world.sql).await.unwrap();
    eventually("the alert is over", || async {
        let alerts = firing(&prometheus, "OncelyConsumerStalled").await?;
        anyhow::ensure!(alerts.is_empty(), "{alerts:?}");
        Ok(())
    })
    .await
    .unwrap();
    drop(prometheus);
    world.stop(worker).await;
    world.stop(relay).await;
    world.stop(gateway).await;
}
