//! How a contender came off, for people and for machines.

use std::io::Write as _;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::contender::Contender;
use super::trial::Figures;

/// Holds a contender and the figures of its run, or the error that ended it.
#[derive(Debug)]
pub(crate) struct Standing {
    contender: &'static Contender,
    figures: anyhow::Result<Figures>,
}

impl Standing {
    pub(crate) fn new(contender: &'static Contender, figures: anyhow::Result<Figures>) -> Self {
        Self { contender, figures }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.contender.name
    }

    /// Returns the error of the run or of its verification, if there was one.
    pub(crate) fn wrong(&self) -> Option<String> {
        match &self.figures {
            Ok(figures) => figures.wrong.clone(),
            Err(error) => Some(format!("{error:#}")),
        }
    }

    fn verdict(&self) -> String {
        match self.wrong() {
            // A program's whole output may follow the first line.
            Some(why) => format!("wrong: {}", why.lines().next().unwrap_or_default()),
            None => "once each".to_owned(),
        }
    }

    /// Prints one JSON object on a line.
    pub(crate) fn print_line(&self) -> anyhow::Result<()> {
        let Contender { name, setup, guarantee, .. } = self.contender;
        let mut line = json!({ "peer": name, "setup": setup, "guarantee": guarantee, "wrong": self.wrong() });
        if let (Ok(figures), Some(line)) = (&self.figures, line.as_object_mut()) {
            let figures = json!({
                "payments_per_second": figures.rate,
                "cpu_us": figures.cpu,
                "cpu_us_total": figures.total_cpu(),
                "wal_bytes": figures.wal,
                "dead_tuples": figures.dead_tuples,
                "stored_bytes": figures.bytes,
                "payments": figures.payments,
                "duplicates": figures.duplicates,
                "fewest_in_queue": figures.least,
            });
            if let Value::Object(figures) = figures {
                line.extend(figures);
            }
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    }
}

impl Figures {
    /// Returns the sum of all processes, in microseconds a payment.
    fn total_cpu(&self) -> f64 {
        self.cpu.values().sum()
    }
}

/// Returns one line a contender; below it the CPU time by process, the setup and the guarantee of each.
pub(crate) fn table(standings: &[Standing]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["peer", "payments /s", "CPU µs", "WAL B", "dead tuples", "stored B", "verified"]);
    for standing in standings {
        let mut row = vec![standing.name().to_owned()];
        match &standing.figures {
            Ok(figures) => row.extend([
                format!("{:.0}", figures.rate),
                format!("{:.0}", figures.total_cpu()),
                format!("{:.0}", figures.wal),
                format!("{:.3}", figures.dead_tuples),
                format!("{:.0}", figures.bytes),
            ]),
            Err(_) => row.extend(std::iter::repeat_n(String::new(), 5)),
        }
        row.push(standing.verdict());
        table.add_row(row);
    }
    let mut text = table.to_string();
    for standing in standings {
        let Contender { name, setup, guarantee, .. } = standing.contender;
        text.push_str(&format!("\n  {name}: {setup}\n    {guarantee}"));
        if let Ok(figures) = &standing.figures {
            let parts: Vec<String> =
                figures.cpu.iter().map(|(role, micros)| format!("{role} {micros:.0}")).collect();
            text.push_str(&format!("\n    CPU µs: {}", parts.join(" + ")));
            if figures.least == 0 {
                text.push_str("\n    The queue was empty at times: the publisher was the limit");
            }
        }
    }
    text
}
