//! The results, for people and for machines.

use std::collections::BTreeMap;
use std::io::Write as _;

use comfy_table::{Table, presets};

use super::case::Target;
use super::measured::Measured;
use super::outcome::Outcome;
use super::stats::spread;

/// One line a case: what it reached.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "case",
        "ratio",
        "spread",
        "target",
        "",
        "ours /s",
        "baseline /s",
        "ours CPU µs",
        "baseline CPU µs",
        "ours WAL B",
        "baseline WAL B",
    ]);
    for outcome in outcomes {
        let (least, most) = spread(&outcome.ratios.0);
        let target = match outcome.case.target {
            Target::AtLeast(value) => format!("≥ {}", number(value)),
            Target::AtMost(value) => format!("≤ {}", number(value)),
            Target::None => String::new(),
        };
        let verdict = match outcome.case.target {
            Target::None => "",
            _ if outcome.is_met() => "met",
            _ => "MISSED",
        };
        let mut row = vec![
            outcome.case.name.to_owned(),
            number(outcome.ratio()),
            format!("{}..{}", number(least), number(most)),
            target,
            verdict.to_owned(),
        ];
        if let Some((ours, baseline)) = &outcome.sides {
            let figures: [fn(&Measured) -> f64; 3] = [|run| run.rate, Measured::total_cpu, |run| run.wal];
            for of in figures {
                row.extend([number(ours.figure(of).median()), number(baseline.figure(of).median())]);
            }
        }
        table.add_row(row);
    }
    let mut text = table.to_string();
    for outcome in outcomes {
        for unmet in outcome.unmet() {
            text.push_str(&format!("\n  {}: missed, for {unmet}", outcome.case.name));
        }
        if let Some((ours, baseline)) = &outcome.sides {
            text.push_str(&format!(
                "\n  {}: CPU µs a message: ours {}; baseline {}",
                outcome.case.name,
                by_process(&ours.cpu()),
                by_process(&baseline.cpu())
            ));
        }
    }
    text
}

fn by_process(cpu: &BTreeMap<&'static str, f64>) -> String {
    let parts: Vec<String> = cpu
        .iter()
        .filter(|(_, micros)| **micros >= 0.05)
        .map(|(role, micros)| format!("{role} {}", number(*micros)))
        .collect();
    parts.join(" + ")
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// One JSON object on a line.
pub(crate) fn print_line(outcome: &Outcome) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", outcome.json())?;
    Ok(out.flush()?)
}

pub(crate) fn print(outcomes: &[Outcome]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", table(outcomes))?;
    Ok(())
}
