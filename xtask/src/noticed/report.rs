//! The table, and the same for programs.

use std::io::Write as _;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::json;

use super::cell::Cell;
use super::observer::Observer;
use super::trouble::Trouble;

/// By then everybody has said it.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// A trouble, and what became of it.
pub(super) struct Row {
    pub(super) trouble: Trouble,
    pub(super) cells: Vec<Cell>,
    /// `for:` of the alert.
    pub(super) waits: Option<u64>,
}

impl Row {
    /// Those who did not say it soon.
    pub(super) fn late(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.told.is_none_or(|told| told > SOON))
    }
}

fn seconds(of: Option<Duration>, limit: Duration) -> String {
    of.map_or_else(|| format!("> {} s", limit.as_secs()), |of| format!("{:.1} s", of.as_secs_f64()))
}

/// Two tables: until it is told, and until it is told no more.
pub(super) fn print(rows: &[Row], limit: Duration, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        for row in rows {
            for cell in &row.cells {
                let line = json!({
                    "trouble": row.trouble.name(), "observer": cell.observer.name(),
                    "told_seconds": cell.told.map(|told| told.as_secs_f64()),
                    "healed_seconds": cell.healed.map(|healed| healed.as_secs_f64()), "sentence": cell.sentence,
                    "for_seconds": row.waits.filter(|_| cell.observer == Observer::Alert),
                });
                writeln!(out, "{line}")?;
            }
        }
        return Ok(());
    }
    writeln!(out, "until it is told:\n{}", table(rows, |cell| seconds(cell.told, limit)))?;
    writeln!(
        out,
        "\nonce it is mended, until it is told no more:\n{}",
        table(rows, |cell| match cell.told {
            Some(_) => seconds(cell.healed, limit),
            None => "–".to_owned(),
        })
    )?;
    writeln!(out, "\nin these words:")?;
    for row in rows {
        writeln!(out, "{}", row.trouble.name())?;
        for cell in row.cells.iter().filter(|cell| cell.told.is_some()) {
            writeln!(out, "  {:<8} {}", cell.observer.name(), cell.sentence.replace('\n', "\n           "))?;
        }
    }
    Ok(())
}

fn table(rows: &[Row], shown: impl Fn(&Cell) -> String) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut head = vec!["trouble".to_owned()];
    head.extend(Observer::ALL.map(|observer| observer.name().to_owned()));
    head.push("alert's for:".to_owned());
    table.set_header(head);
    for row in rows {
        let mut line = vec![row.trouble.name().to_owned()];
        for observer in Observer::ALL {
            let cell = row.cells.iter().find(|cell| cell.observer == observer);
            line.push(cell.map_or_else(|| "–".to_owned(), &shown));
        }
        line.push(row.waits.map_or_else(|| "–".to_owned(), |waits| format!("{waits} s")));
        table.add_row(line);
    }
    table
}
