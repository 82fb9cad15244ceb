//! Metrics and health.

use std::collections::BTreeSet;

use testbed::{Process, eventually};

use super::{Site, get, post};
use crate::support::exposition::series;
use crate::support::http::{self, wait_for};

/// Where a gateway tells them, as its log says.
pub(super) async fn health(process: &Process) -> String {
    let address = eventually("a line with the address", || async {
        let log = process.output();
        let line = log.lines().find(|line| line.contains("listening: /metrics"));
        let address = line.and_then(|line| line.split("address=").nth(1)).map(|text| text.trim().to_owned());
        address.ok_or(log)
    });
    address.await.unwrap()
}

#[tokio::test]
async fn every_metric_is_there_from_the_start_and_requests_are_counted() {
    let site = Site::start("metrics = \"127.0.0.1:0\"").await;
    let health = health(&site.process).await;
    wait_for(&health, "/readyz", 200, "ready").await;
    let (_, told) = http::get(&health, "/metrics").await.unwrap();
    let found: BTreeSet<(String, BTreeSet<String>)> =
        series(&told).into_iter().map(|series| (series.metric.clone(), series.label_names())).collect();
    let found: BTreeSet<_> = found.into_iter().filter(|(name, _)| name.starts_with("oncely_")).collect();
    let wanted: BTreeSet<(String, BTreeSet<String>)> = oncely::metrics::CATALOGUE
        .iter()
        .filter(|metric| ["gateway", "all"].contains(&metric.of))
        .map(|metric| {
            (metric.name.to_owned(), metric.labels.iter().map(|label| (*label).to_owned()).collect())
        })
        .collect();
    assert_eq!(found, wanted);
    assert!(!told.contains("rabbitmq") && !told.contains("redis"), "it needs neither");
    let request = post("/do/201", "k", "{}");
    for request in [
        request.as_str(),
        &request,
        &post("/do/201", "k", "{ }"),
        &post("/do/torn", "t", "{}"),
        &get("/do/200", ""),
    ] {
        site.ask(request).await;
    }
    for sample in [
        "oncely_gateway_requests_total{keyed=\"yes\",answer=\"upstream\"} 1",
        "oncely_gateway_requests_total{keyed=\"yes\",answer=\"replayed\"} 1",
        "oncely_gateway_requests_total{keyed=\"yes\",answer=\"key-reused\"} 1",
        "oncely_gateway_requests_total{keyed=\"yes\",answer=\"outcome-unknown\"} 1",
        "oncely_gateway_requests_total{keyed=\"no\",answer=\"upstream\"} 1",
        "oncely_gateway_requests_total{keyed=\"yes\",answer=\"_other\"} 0",
        "oncely_gateway_calls_total{keyed=\"yes\",result=\"answered\"} 1",
        "oncely_gateway_calls_total{keyed=\"yes\",result=\"unknown\"} 1",
        "oncely_gateway_inflight_requests 0",
        "oncely_gateway_request_duration_seconds_count{keyed=\"yes\"} 4",
        "oncely_connected{server=\"postgres\"} 1",
        "oncely_ready 1",
    ] {
        wait_for(&health, "/metrics", 200, &format!("{sample}\n")).await;
    }
    let (_, status) = http::get(&health, "/statusz").await.unwrap();
    assert!(status.contains("\"kind\": \"gateway\""), "{status}");
    site.stop().await;
}
