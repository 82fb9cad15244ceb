//! The reference of the metrics, from `crates/process/src/metrics/catalogue.rs`.

use anyhow::Context as _;

use super::{cell, head};

/// A metric as it is written down.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    kind: String,
    labels: String,
    of: String,
    help: String,
}

pub(super) fn page(source: &str) -> anyhow::Result<String> {
    let mut page = head("Metrics", "crates/process/src/metrics/catalogue.rs");
    page.push_str(
        "Served at `/metrics` of `worker.listen`, `relay.listen` and `gateway.metrics` ([how to monitor](../how-to/monitor.md)). Every series is there from the start, \
         so zero\ndiffers from absent. Labels come from the configuration or from fixed lists, never from a message; what is not in the \
         configuration\nis `_other`. Every relay reports the same numbers of what they share (backlog, keys, queues): take their `max`, not their \
         `sum`. Times are\nin seconds. Histograms of durations have buckets from 0.5 ms to 60 s. Process metrics (`process_…`) are those of \
         Prometheus's client libraries.\n\n| metric | type | labels | of | what it says |\n| --- | --- | --- | --- | --- |\n",
    );
    for Row { name, kind, labels, of, help } in rows(source)? {
        page.push_str(&format!("| `{name}` | {kind} | {labels} | {of} | {} |\n", cell(&help)));
    }
    Ok(page)
}

/// One for each metric in the list, which has them by programs.
fn rows(source: &str) -> anyhow::Result<Vec<Row>> {
    let (_, list) = source.split_once("\ncatalogue! {\n").context("there is no catalogue")?;
    let (list, _) = list.split_once("\n}").context("the catalogue does not end")?;
    let mut rows = Vec::new();
    for group in list.split("\n    }").filter(|group| !group.is_empty()) {
        let (of, metrics) = group.split_once('{').with_context(|| format!("no programs in {group}"))?;
        let of = of.trim().trim_matches('"');
        // The last one's end of line belongs to the end of the group.
        for metric in metrics.trim().trim_end_matches(';').split(";\n") {
            rows.push(row(metric.trim(), of)?);
        }
    }
    anyhow::ensure!(rows.len() > 20, "the catalogue is written in another way");
    Ok(rows)
}

fn row(metric: &str, of: &str) -> anyhow::Result<Row> {
    // A quotation mark within a text is no end of it.
    let metric = &metric.replace("\\\"", "\u{201d}");
    let texts: Vec<&str> = metric.split('"').skip(1).step_by(2).collect();
    let kind = metric.split_whitespace().next().unwrap_or_default();
    anyhow::ensure!(["Counter", "Gauge", "Histogram"].contains(&kind), "no kind in {metric}");
    let [name, labels @ .., help] = &texts[..] else { anyhow::bail!("too few texts in {metric}") };
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    Ok(Row {
        name: (*name).to_owned(),
        kind: kind.to_lowercase(),
        labels: labels.join(", "),
        of: of.to_owned(),
        help: help.replace('\u{201d}', "\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_a_row() {
        let found = row("Counter \"a_total\" [\"x\", \"y\"] \"Things\"", "both").unwrap();
        let wanted = Row {
            name: "a_total".to_owned(),
            kind: "counter".to_owned(),
            labels: "`x`, `y`".to_owned(),
            of: "both".to_owned(),
            help: "Things".to_owned(),
        };
        assert_eq!(found, wanted);
        assert!(row("Counter \"a_total\"", "both").is_err());
    }
}
