//! `cargo xtask plot`: the figures of docs/src/explanation/performance.md, drawn from what `cargo xtask bench --json` printed.

mod bars;
mod lines;
mod long;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use bars::{Bars, Row};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files with one JSON object a line, of runs with and without --network; a case that comes twice counts as it came last
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Folder to write compared.svg, cpu.svg and, where `bench long` is in the files, long.svg to
    #[arg(long, default_value = "docs/src/explanation/performance")]
    out: PathBuf,
}

/// Draws the figures for which there are results.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (mut cases, mut minutes) = (Vec::<Value>::new(), Vec::<Value>::new());
    for file in &arguments.files {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let case: Value =
                serde_json::from_str(line).with_context(|| format!("{}: not JSON", file.display()))?;
            let minute = &case["long"];
            if !minute.is_null() {
                // A later run replaces an earlier one.
                if minute["minute"] == 1 {
                    minutes.clear();
                }
                minutes.push(minute.clone());
                continue;
            }
            let is_same =
                |before: &Value| before["name"] == case["name"] && is_remote(before) == is_remote(&case);
            match cases.iter_mut().find(|before| is_same(before)) {
                Some(before) => *before = case,
                None => cases.push(case),
            }
        }
    }
    anyhow::ensure!(!cases.is_empty() || !minutes.is_empty(), "there are no results in these files");
    std::fs::create_dir_all(&arguments.out)?;
    if !minutes.is_empty() {
        let path = arguments.out.join("long.svg");
        long::minutes(&minutes).draw(&path).with_context(|| format!("cannot draw {}", path.display()))?;
        eprintln!("{}", path.display());
    }
    // The files of a long run alone leave the figures of all cases as they are.
    if cases.iter().all(|case| name(case).starts_with("long_")) {
        return Ok(());
    }
    let draw = |name: &str, bars: &Bars| draw(&arguments.out.join(name), bars);
    draw("compared.svg", &compared(&cases))?;
    draw("cpu.svg", &cpu(&cases))
}

fn draw(path: &Path, bars: &Bars) -> anyhow::Result<()> {
    bars.draw(path).with_context(|| format!("cannot draw {}", path.display()))?;
    eprintln!("{}", path.display());
    Ok(())
}

fn name(case: &Value) -> String {
    case["name"].as_str().unwrap_or_default().to_owned()
}

/// Whether a case ran over a network.
fn is_remote(case: &Value) -> bool {
    !case["network"].is_null()
}

/// What to draw of the comparison with the usual way: the case, and its label. Of a time the reciprocal counts.
const COMPARED: [(&str, &str); 11] = [
    ("e2e_quorum_full", "rate, quorum queue"),
    ("e2e_classic_full", "rate, classic queue"),
    ("e2e_per_message_sql", "a call per message"),
    ("e2e_rust_handler", "handler in Rust"),
    ("hot_stock_2", "rate, 15 hot rows"),
    ("hot_one_row_2", "rate, one hot row"),
    ("latency_200", "latency at 200/s (p99)"),
    ("latency_1000", "latency at 1,000/s (p99)"),
    ("lease_empty", "leases"),
    ("http_throughput", "HTTP door, requests/s"),
    ("http_p50_500", "HTTP door, latency (p50)"),
];

/// How many times as good as the usual way it is, on loopback and over the network.
fn compared(cases: &[Value]) -> Bars {
    let mut rows = Vec::new();
    for (wanted, text) in COMPARED {
        let mut label = text.to_owned();
        for (series, remote) in [false, true].into_iter().enumerate() {
            let found = cases.iter().find(|case| name(case) == wanted && is_remote(case) == remote);
            // Of a time, a hundredth or less means that the usual way falls behind: its times then only grow with the run.
            let Some(ratio) = found.and_then(|case| case["ratio"].as_f64()).filter(|ratio| *ratio > 0.01)
            else {
                continue;
            };
            let is_time = wanted.starts_with("latency") || wanted.starts_with("http_p50");
            let times = if is_time { ratio.recip() } else { ratio };
            let note = format!("{} ×", bars::number(times));
            rows.push(Row { label: std::mem::take(&mut label), parts: vec![(series, times)], note });
        }
    }
    Bars {
        title: "Oncely compared with the usual way: more is better, 1 is the same".to_owned(),
        series: vec!["loopback".to_owned(), "a network with a round trip of 1 ms".to_owned()],
        rows,
        mark: Some(1.0),
    }
}

/// CPU time a message by process, ours above the baseline.
fn cpu(cases: &[Value]) -> Bars {
    const PROCESSES: [&str; 4] = ["postgres", "rabbitmq", "redis", "consumer (and relay)"];
    let mut rows = Vec::new();
    for case in cases.iter().filter(|case| !is_remote(case) && name(case).starts_with("e2e_")) {
        for side in ["ours", "baseline"] {
            let Some(cpu) = case[side]["cpu_us"].as_object() else { continue };
            let of = |roles: &[&str]| roles.iter().filter_map(|role| cpu.get(*role)?.as_f64()).sum::<f64>();
            let parts = vec![
                (0, of(&["postgres"])),
                (1, of(&["rabbitmq"])),
                (2, of(&["redis"])),
                (3, of(&["naive", "raw", "relay", "worker"])),
            ];
            let total: f64 = parts.iter().map(|(_, micros)| micros).sum();
            let label = if side == "ours" { name(case) } else { "baseline".to_owned() };
            rows.push(Row { label, parts, note: format!("{} µs", bars::number(total)) });
        }
    }
    Bars {
        title: "CPU time a message, in microseconds, by process".to_owned(),
        series: PROCESSES.map(str::to_owned).to_vec(),
        rows,
        mark: None,
    }
}
