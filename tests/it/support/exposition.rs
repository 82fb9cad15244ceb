//! What a program tells at `/metrics`, read.

use std::collections::{BTreeMap, BTreeSet};

/// One series.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// With `_bucket`, `_sum` or `_count` where it is one of a histogram's.
    pub(crate) name: String,
    /// The name of the metric that it is of.
    pub(crate) metric: String,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Series {
    /// The names of its labels, without a histogram's `le`.
    pub(crate) fn label_names(&self) -> BTreeSet<String> {
        self.labels.keys().filter(|label| *label != "le").cloned().collect()
    }
}

/// All series of a text for Prometheus.
pub(crate) fn series(metrics: &str) -> Vec<Series> {
    let histograms: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram")).collect();
    let samples = metrics.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples
        .map(|line| {
            let (name, rest) = line.split_once(['{', ' ']).expect("a value");
            let of_histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|metric| histograms.contains(metric)));
            let labels = if line.contains('{') { rest.rsplit_once('}').expect("an end").0 } else { "" };
            // No value of ours has a quote in it.
            let labels = labels.split_terminator("\",").filter_map(|label| label.split_once("=\""));
            Series {
                name: name.to_owned(),
                metric: of_histogram.unwrap_or(name).to_owned(),
                labels: labels
                    .map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()))
                    .collect(),
            }
        })
        .collect()
}
