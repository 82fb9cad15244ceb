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
    /// Files with one JSON object a line; a case that comes twice counts as it came last
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Folder to write ratios.svg, rates.svg, cpu.svg and, where `bench long` is in the files, long.svg to
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
            match cases.iter_mut().find(|before| before["name"] == case["name"]) {
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
    draw("ratios.svg", &ratios(&cases))?;
    draw("rates.svg", &rates(&cases))?;
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

/// How much of its target each case reached: 1 is the target, more is better, whichever way the ratio goes.
fn ratios(cases: &[Value]) -> Bars {
    let rows = cases.iter().filter_map(|case| {
        let (ratio, target) = (case["ratio"].as_f64()?, case["target"].as_f64()?);
        let at_most = case["kind"] == "at_most";
        let reached = if at_most { target / ratio } else { ratio / target };
        let sign = if at_most { '≤' } else { '≥' };
        let note = match name(case).as_str() {
            "worker_rss" => format!("{:.0} MiB (≤ {:.0} MiB)", ratio / 1_048_576.0, target / 1_048_576.0),
            _ => format!("{} ({sign} {target})", bars::number(ratio)),
        };
        let series = usize::from(case["met"] != true);
        Some(Row { label: name(case), parts: vec![(series, reached)], note })
    });
    Bars {
        title: "What each case reached, as a multiple of its target".to_owned(),
        series: vec!["met".to_owned(), "missed".to_owned()],
        rows: rows.collect(),
        mark: Some(1.0),
    }
}

/// Messages a second, ours and the baseline's.
fn rates(cases: &[Value]) -> Bars {
    let mut rows = Vec::new();
    for case in cases {
        for (series, side) in ["ours", "baseline"].into_iter().enumerate() {
            if let Some(rate) = case[side]["rate"]["median"].as_f64() {
                let label = if series == 0 { name(case) } else { String::new() };
                rows.push(Row { label, parts: vec![(series, rate)], note: format!("{rate:.0}/s") });
            }
        }
    }
    Bars {
        title: "Messages a second".to_owned(),
        series: vec!["Oncely".to_owned(), "baseline".to_owned()],
        rows,
        mark: None,
    }
}

/// CPU time a message by process, ours above the baseline.
fn cpu(cases: &[Value]) -> Bars {
    const PROCESSES: [&str; 4] = ["postgres", "rabbitmq", "redis", "consumer (and relay)"];
    let mut rows = Vec::new();
    for case in cases {
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
