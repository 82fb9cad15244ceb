//! The figure of `cargo xtask bench long`, over its minutes.

use serde_json::Value;

use super::lines::{Line, Panel, Panels};

/// The figure of these minutes.
pub(crate) fn minutes(minutes: &[Value]) -> Panels {
    let line = |name: &str, path: &str, unit: f64| {
        let points = minutes.iter().filter_map(|minute| {
            Some((minute.pointer("/minute")?.as_f64()?, minute.pointer(path)?.as_f64()? / unit))
        });
        Line { name: name.to_owned(), points: points.collect() }
    };
    let panel = |title: &str, lines: Vec<Line>| Panel { title: title.to_owned(), lines };
    let panels = vec![
        panel(
            "From publish to commit, milliseconds",
            vec![line("99th percentile", "/p99_ms", 1.0), line("median", "/p50_ms", 1.0)],
        ),
        panel(
            "CPU time a message, microseconds",
            vec![
                line("all", "/cpu_us_total", 1.0),
                line("PostgreSQL", "/cpu_us/postgres", 1.0),
                line("RabbitMQ", "/cpu_us/rabbitmq", 1.0),
                line("worker", "/cpu_us/worker", 1.0),
            ],
        ),
        panel("WAL a message, bytes", vec![line("", "/wal_bytes", 1.0)]),
        panel(
            "Dead rows",
            vec![
                line("keys", "/dead_tuples/keys", 1.0),
                line("trail", "/dead_tuples/trail", 1.0),
                line("others", "/dead_tuples/others", 1.0),
            ],
        ),
        panel(
            "Bytes a live key, bytes a row of the trail",
            vec![line("key", "/bytes_per_key", 1.0), line("row", "/bytes_per_trail_row", 1.0)],
        ),
        panel(
            "Live keys and rows of the trail",
            vec![line("keys", "/live_keys", 1.0), line("rows", "/trail_rows", 1.0)],
        ),
        panel("The oldest key past its retention, seconds", vec![line("", "/overdue_seconds", 1.0)]),
        panel("Messages a second", vec![line("", "/rate", 1.0)]),
    ];
    Panels { title: "A month of data, minute by minute".to_owned(), panels }
}
