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

/// One for each call of `metric(…)` in the list.
fn rows(source: &str) -> anyhow::Result<Vec<Row>> {
    let (_, list) = source.split_once("pub const CATALOGUE").context("there is no CATALOGUE")?;
    let (list, _) = list.split_once("\n];").context("CATALOGUE does not end")?;
    let rows: anyhow::Result<Vec<Row>> = list.split("metric(").skip(1).map(row).collect();
    let rows = rows?;
    anyhow::ensure!(rows.len() > 20, "CATALOGUE is written in another way");
    Ok(rows)
}

fn row(call: &str) -> anyhow::Result<Row> {
    // A quotation mark within a text is no end of it.
    let call = &call.replace("\\\"", "\u{201d}");
    let texts: Vec<&str> = call.split('"').skip(1).step_by(2).collect();
    let kind = ["Counter", "Gauge", "Histogram"].into_iter().find(|kind| call.contains(&format!(" {kind},")));
    let kind = kind.with_context(|| format!("no kind in {call}"))?.to_lowercase();
    let [name, labels @ .., of, help] = &texts[..] else { anyhow::bail!("too few texts in {call}") };
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    Ok(Row {
        name: (*name).to_owned(),
        kind,
        labels: labels.join(", "),
        of: (*of).to_owned(),
        help: help.replace('\u{201d}', "\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_a_row() {
        let found = row("\"a_total\", Counter, &[\"x\", \"y\"], \"both\", \"Things\"),").unwrap();
        let wanted = Row {
            name: "a_total".to_owned(),
            kind: "counter".to_owned(),
            labels: "`x`, `y`".to_owned(),
            of: "both".to_owned(),
            help: "Things".to_owned(),
        };
        assert_eq!(found, wanted);
        assert!(row("\"a_total\"").is_err());
    }
}
