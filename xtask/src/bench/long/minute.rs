//! A minute of the run.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::state::State;
use crate::bench::outcome::rounded;

/// Figures of a minute.
#[derive(Clone, Debug)]
pub(crate) struct Minute {
    pub(crate) number: u32,
    /// Messages a second, and messages in all.
    pub(crate) rate: f64,
    pub(crate) messages: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Microseconds a message, by process.
    pub(crate) cpu: BTreeMap<&'static str, f64>,
    /// Bytes a message, and full-page images a message.
    pub(crate) wal: f64,
    pub(crate) full_pages: f64,
    pub(crate) live_keys: i64,
    /// Keys that the collection has deleted, since the beginning.
    pub(crate) collected: i64,
    pub(crate) events: u64,
    pub(crate) dead_letters: u64,
    pub(crate) checkpoints: u32,
    /// Messages that wait in the queue.
    pub(crate) backlog: u32,
    pub(crate) state: State,
}

const HEADER: &str = "min  msg/s   p50    p99   CPU µs = postgres + rabbitmq + redis + worker + relay  WAL B  FPI \
                      dead: keys  trail others  live keys B/key B/trail row  overdue s weeks  events dead ltrs  chk \
                      autovacuums: keys+trail+others";

impl Minute {
    pub(crate) fn total_cpu(&self) -> f64 {
        self.cpu.values().sum()
    }

    pub(crate) fn bytes_per_key(&self) -> f64 {
        self.state.key_bytes as f64 / self.live_keys.max(1) as f64
    }

    fn bytes_per_trail_row(&self) -> f64 {
        self.state.trail_bytes as f64 / self.state.trail_rows.max(1) as f64
    }

    /// One JSON object; the plot's lines.
    pub(crate) fn json(&self) -> Value {
        let cpu: BTreeMap<_, _> = self.cpu.iter().map(|(role, micros)| (*role, rounded(*micros))).collect();
        let State { weeks, overdue_weeks, weeks_ahead, trail_rows, .. } = self.state;
        json!({ "long": {
            "minute": self.number,
            "rate": rounded(self.rate),
            "p50_ms": rounded(self.p50),
            "p99_ms": rounded(self.p99),
            "cpu_us": cpu,
            "cpu_us_total": rounded(self.total_cpu()),
            "wal_bytes": rounded(self.wal),
            "full_page_images": rounded(self.full_pages),
            "dead_tuples": self.state.dead.0,
            "live_keys": self.live_keys,
            "bytes_per_key": rounded(self.bytes_per_key()),
            "key_heap_bytes": self.state.key_heap_bytes,
            "primary_key_bytes": self.state.primary_key_bytes,
            "collected_keys": self.collected,
            "overdue_seconds": rounded(self.state.overdue_seconds),
            "trail_rows": trail_rows,
            "bytes_per_trail_row": rounded(self.bytes_per_trail_row()),
            "trail_weeks": weeks,
            "trail_weeks_overdue": overdue_weeks,
            "trail_weeks_ahead": weeks_ahead,
            "events": self.events,
            "dead_letters": self.dead_letters,
            "backlog": self.backlog,
            "checkpoints": self.checkpoints,
            "autovacuums": self.state.autovacuums.0,
        }})
    }

    /// A line of a table, with the header where it is the first one.
    pub(crate) fn row(&self) -> String {
        let cpu = |role: &str| self.cpu.get(role).copied().unwrap_or(0.0);
        let roles =
            ["postgres", "rabbitmq", "redis", "worker", "relay"].map(|role| format!("{:.1}", cpu(role)));
        let of = |counts: &BTreeMap<String, i64>, part: &str| counts.get(part).copied().unwrap_or(0);
        let (dead, vacuums) = (&self.state.dead.0, &self.state.autovacuums.0);
        let row = format!(
            "{:>3} {:>6.0} {:>5.1} {:>6.1} {:>8.1} = {:<43} {:>5.0} {:>4.2} {:>10} {:>6} {:>6} {:>10} {:>5.0} {:>11.0} {:>10.0} \
             {:>5} {:>7} {:>9} {:>4} {}+{}+{}",
            self.number,
            self.rate,
            self.p50,
            self.p99,
            self.total_cpu(),
            roles.join(" + "),
            self.wal,
            self.full_pages,
            of(dead, "keys"),
            of(dead, "trail"),
            of(dead, "others"),
            self.live_keys,
            self.bytes_per_key(),
            self.bytes_per_trail_row(),
            self.state.overdue_seconds,
            self.state.weeks,
            self.events,
            self.dead_letters,
            self.checkpoints,
            of(vacuums, "keys"),
            of(vacuums, "trail"),
            of(vacuums, "others"),
        );
        if self.number == 1 { format!("{HEADER}\n{row}") } else { row }
    }
}
