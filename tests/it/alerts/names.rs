//! What board and rules name is told by the programs, and what the programs tell is on the board or in a rule.

use std::collections::{BTreeMap, BTreeSet};

use super::labels::{labels, selected};
use super::{Query, board, rules};
use crate::gateway;
use crate::support::exposition::{Series, series};
use crate::support::http::{address, get, wait_for};
use crate::support::{World, servers};

fn queries() -> Vec<Query> {
    board::queries().into_iter().chain(rules::queries()).collect()
}

fn made_up(name: &str, labels: &[(&str, &str)]) -> Series {
    let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned()));
    Series { name: name.to_owned(), metric: name.to_owned(), labels: labels.collect() }
}

/// What Prometheus has of a worker, a relay and a gateway, and what it adds.
async fn known() -> Vec<Series> {
    let mut world = World::new().await;
    world.configure(
        "[worker]\nlisten = \"127.0.0.1:0\"\n[relay]\nlisten = \"127.0.0.1:0\"\n[gateway]\nmetrics = \"127.0.0.1:0\"\nprincipal = []",
    );
    world.consumer("payments", "");
    world.with_redis(servers().await.urls().redis.as_str(), "");
    world.apply_topology().await;
    let mut known = Vec::new();
    for program in ["worker", "relay", "gateway"] {
        let (process, address) = match program {
            "gateway" => gateway::alone(&world).await,
            program => {
                let process = world.start(program);
                let address = address(&process).await;
                (process, address)
            }
        };
        wait_for(&address, "/readyz", 200, "ready").await;
        known.extend(series(&get(&address, "/metrics").await.unwrap().1));
        world.stop(process).await;
    }
    // Prometheus's own.
    known.push(made_up("up", &[]));
    known.push(made_up(
        "ALERTS",
        &[("alertname", "OncelyNoProgress"), ("alertstate", "firing"), ("severity", "page")],
    ));
    for series in &mut known {
        for label in ["job", "instance"] {
            series.labels.insert(label.to_owned(), "oncely".to_owned());
        }
    }
    known
}

#[tokio::test]
async fn board_and_rules_name_no_series_and_no_label_that_is_not_there() {
    let known = known().await;
    let catalogue: BTreeMap<&str, &[&str]> =
        oncely::metrics::CATALOGUE.iter().map(|metric| (metric.name, metric.labels)).collect();
    for series in known.iter().filter(|series| series.name.starts_with("oncely_")) {
        let labels: BTreeSet<&str> = catalogue[series.metric.as_str()].iter().copied().collect();
        let mut told = series.label_names();
        assert!(["job", "instance"].iter().all(|label| told.remove(*label)));
        assert_eq!(told, labels.iter().map(|label| (*label).to_owned()).collect(), "{}", series.name);
    }
    let mut problems = Vec::new();
    for Query { place, expression, shown } in queries() {
        match labels(&expression, &known) {
            Err(problem) => problems.push(format!("{place}: {problem}")),
            Ok(labels) => {
                problems.extend(shown.difference(&labels).map(|label| {
                    format!("{place}: shows label {label}, and the result has {labels:?} only")
                }));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // It can fail.
    for wrong in [
        "max(oncely_relay_backlog)",
        "sum by (tenant) (rate(oncely_messages_total[5m]))",
        "rate(oncely_messages_total{state=\"completed\"}[5m])",
        "max(oncely_consumer_paused{cause=\"weather\"})",
        "max(oncely_consumer_paused{cause=~\"weather|wind\"})",
        "sum without (tenant) (oncely_ready)",
        "sum(oncely_ready) unless on (consumer) sum(oncely_ready)",
        "sum by (consumer) (oncely_consumer_up) > sum(oncely_consumer_up)",
        "histogram_quantile(0.5, sum by (consumer) (rate(oncely_delivery_age_seconds_bucket[5m])))",
        "oncely_delivery_age_seconds",
    ] {
        assert!(labels(wrong, &known).is_err(), "{wrong}");
    }
}

#[test]
fn every_metric_is_on_the_board_or_in_a_rule() {
    let named: BTreeSet<String> = queries().iter().flat_map(|query| selected(&query.expression)).collect();
    let is_named = |name: &str| {
        ["", "_bucket", "_sum", "_count"].iter().any(|end| named.contains(&format!("{name}{end}")))
    };
    let nowhere: Vec<&str> =
        oncely::metrics::CATALOGUE.iter().map(|metric| metric.name).filter(|name| !is_named(name)).collect();
    assert!(nowhere.is_empty(), "neither on the board nor in a rule: {nowhere:?}");
}
