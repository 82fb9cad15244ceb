//! The content of the screen, as lines and as JSON.

use ratatui::style::{Color, Stylize as _};
use ratatui::text::Line;
use serde_json::{Value, json};

use super::super::output::{escape, format_age, format_seconds};
use super::numbers::format_number;
use super::servers::{DatabaseAnswer, ServerAnswers};
use super::table::{Table, shorten};
use super::view::{ScreenMode, ScreenState};
use oncely_config::Config;
use oncely_ops::overview::Overview;

/// Width of the content in columns, without a terminal.
pub(super) const DEFAULT_WIDTH: usize = 120;

/// Number up to which records are counted.
const MAX_COUNT: i64 = 10_000;

const HELP: [&str; 14] = [
    "READY      messages in the queue, not delivered yet, by RabbitMQ",
    "INFLIGHT   deliveries in workers' hands, of as many as there may be (prefetch)",
    "IN/s       deliveries of the last whole minute",
    "DONE/s     of these, completed or refused",
    "DUP%       of these, duplicates: they did not run",
    "P50, P99   half of the deliveries, and 99 of 100, were settled within this",
    "DEAD       dead letters to requeue or discard: oncely failed groups",
    "LAST DONE  since a message took effect, as running workers report",
    "LAST 60 s  DONE in six spans of ten seconds, the newest on the right",
    "",
    "PAUSED: by an operator. STALLED: no message succeeds, for a cause that is not the message's own. FAILING: every",
    "new message fails, and is retried. NO QUEUE: one of its queues is missing. UNATTENDED: workers are running,",
    "and none is subscribed.",
    "q quit   up, down (k, j) select   p pause or resume   s sort   any key leaves this help",
];

/// Content of the screen: head and foot are fixed, the body scrolls if there is no room for all of it.
pub(super) struct ScreenContent {
    head: Vec<Line<'static>>,
    body: Vec<Line<'static>>,
    foot: Vec<Line<'static>>,
    /// The line of the body that must be visible.
    selected: usize,
}

/// Minimum number of visible lines of the body; below it, the foot is dropped.
const MIN_BODY_LINES: usize = 3;

impl ScreenContent {
    /// Builds the content with lines of at most this width.
    pub(super) fn from_screen(screen: &ScreenState, width: usize) -> Self {
        let mut head = format_servers(screen, width);
        head.push(Line::default());
        if screen.mode == ScreenMode::Help {
            let body = HELP.map(|text| Line::from(shorten(text, width))).to_vec();
            return Self { head, body, foot: Vec::new(), selected: 0 };
        }
        let Some((database, _)) = &screen.last_database else {
            return Self { head, body: Vec::new(), foot: Vec::new(), selected: 0 };
        };
        let rows = screen.rows();
        let table = Table::from_rows(&rows, screen.selected_index(&rows), database.overview.now, width);
        head.push(table.heads);
        let none = "no consumer is configured, and no worker has started on this database";
        let body = if rows.is_empty() { vec![Line::from(shorten(none, width))] } else { table.lines };
        let foot =
            format_backlogs(&database.overview).into_iter().map(|text| Line::from(shorten(&text, width)));
        Self { head, body, foot: foot.collect(), selected: table.selected }
    }

    /// Returns all lines, without cutting: head, body, and the foot after an empty line.
    pub(super) fn into_lines(self) -> Vec<Line<'static>> {
        let mut lines = self.head;
        lines.extend(self.body);
        if !self.foot.is_empty() {
            lines.push(Line::default());
            lines.extend(self.foot);
        }
        lines
    }

    /// Returns the lines that fit into this height: scrolls the body to the selected line, and drops the foot if the body has too little
    /// room. The head is never cut.
    pub(super) fn into_lines_within(mut self, height: usize) -> Vec<Line<'static>> {
        let room = height.saturating_sub(self.head.len());
        let with_foot = room.saturating_sub(self.foot.len() + 1);
        if with_foot < self.body.len().min(MIN_BODY_LINES) {
            self.foot.clear();
        }
        let room = if self.foot.is_empty() { room } else { with_foot };
        let hidden = self.body.len().saturating_sub(room);
        let from = self.selected.saturating_sub(room / 2).min(hidden);
        self.body = self.body.into_iter().skip(from).take(room).collect();
        self.into_lines()
    }
}

/// Formats the head: the facts of the servers that were queried, and a line for each server that does not answer.
fn format_servers(screen: &ScreenState, width: usize) -> Vec<Line<'static>> {
    let Some(answers) = &screen.answers else { return vec![Line::from("oncely top · asking the servers")] };
    let at = screen.times.format_time_of_day(answers.at);
    let mut title = vec!["oncely top".to_owned()];
    let mut failures = Vec::new();
    match (&answers.snapshot.postgres, &screen.last_database) {
        (Ok(database), _) => title.extend(describe_database(database, &at)),
        (Err(error), last_database) => {
            title.push(at);
            let as_of = last_database.as_ref().map(|(_, at_then)| {
                format!(" (below: what it said {} ago)", format_age(*at_then, answers.at))
            });
            failures.push(format!(
                "✗ PostgreSQL{}: {}",
                as_of.unwrap_or_default(),
                strip_server_name("PostgreSQL", &error.text)
            ));
        }
    }
    match &answers.snapshot.rabbitmq {
        Ok(_) => title.extend(answers.snapshot.has_broker.then(|| "RabbitMQ ok".to_owned())),
        Err(error) => failures.push(format!("✗ RabbitMQ: {}", strip_server_name("RabbitMQ", error))),
    }
    match &answers.snapshot.redis {
        Some(Ok(())) => title.push("Redis ok".to_owned()),
        Some(Err(failure)) => {
            let error = strip_server_name("Redis", &failure.text);
            failures.push(format!("✗ Redis (only slower, PostgreSQL alone knows the duplicates): {error}"));
        }
        None => {}
    }
    let mut lines = vec![Line::from(shorten(&title.join(" · "), width)).bold()];
    lines.extend(failures.into_iter().map(|text| Line::from(shorten(&text, width)).fg(Color::Red)));
    lines
}

/// Formats an error without the server's name, which the line has already.
fn strip_server_name(server: &str, error: &str) -> String {
    let message = error.strip_prefix(server).map(|message| message.trim_start_matches(':').trim_start());
    escape(message.unwrap_or(error))
}

/// Describes the cell, the time of the answers, the live processes, and the latency of PostgreSQL.
fn describe_database(database: &DatabaseAnswer, at: &str) -> Vec<String> {
    let many = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let gateways = database.overview.count_living("gateway");
    let mut facts = vec![
        escape(&database.cell),
        at.to_owned(),
        many(database.overview.count_living("worker"), "worker"),
        many(database.overview.count_living("relay"), "relay"),
    ];
    // Most installations have no gateway.
    facts.extend((gateways > 0).then(|| many(gateways, "gateway")));
    facts.push(format!("PostgreSQL {}", format_seconds(database.latency.as_secs_f64())));
    facts
}

/// Formats the backlogs of Redis and RabbitMQ, and a warning if no relay runs.
fn format_backlogs(overview: &Overview) -> Vec<String> {
    let mut lines = Vec::new();
    if overview.count_living("relay") == 0 {
        lines.push(
            "! no relay runs: no event is published, nothing is mirrored, nothing is collected".to_owned(),
        );
    }
    for target in &overview.targets {
        let name = if target.target == "redis" { "MIRROR QUEUE" } else { "OUTBOX" };
        let records = match target.records {
            MAX_COUNT.. => format!("≥ {}", format_number(MAX_COUNT.unsigned_abs())),
            count => format_number(count.unsigned_abs()),
        };
        let mut text = format!("{name:<12}  {records} waiting");
        if target.records > 0 {
            text.push_str(&format!(", the oldest for {}", format_seconds(target.oldest_age)));
        }
        text.push_str(&format!(
            " · {} relayed in the last minute",
            format_number(target.relayed.unsigned_abs())
        ));
        for (count, what) in [(target.failed, "failed"), (target.parked, "parked")] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        lines.push(text);
    }
    lines
}

/// Formats the bottom line: the prompt for a reason, the result of the last change, or the keys.
pub(super) fn format_bottom_line(screen: &ScreenState, width: usize) -> Line<'static> {
    let text = match (&screen.mode, &screen.message) {
        (ScreenMode::Reason { consumer, pause, text }, message) => {
            let what = if *pause { "pause" } else { "resume" };
            let hint = if *pause { message.as_deref().unwrap_or("why?") } else { "why? (may be empty)" };
            format!("{what} {}: {hint} {}▏  Enter does it, Esc leaves it", escape(consumer), escape(text))
        }
        (_, Some(message)) => message.clone(),
        (_, None) => format!("q quit   p pause/resume   s sort: {}   ? help", screen.sort.as_str()),
    };
    Line::from(shorten(&text, width))
}

/// Joins lines as text.
pub(super) fn to_text(lines: &[Line<'_>]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Formats the answers as JSON.
pub(super) fn to_json(answers: &ServerAnswers, config: &Config) -> Value {
    let mut screen = ScreenState::new(config, super::super::output::Times { utc: true });
    screen.update(answers.clone());
    let consumers: Vec<Value> = screen
        .rows()
        .iter()
        .map(|row| {
            let mut object = json!(row.overview);
            if let Value::Object(fields) = &mut object {
                fields.insert("ready".to_owned(), json!(row.ready));
                fields.insert("prefetch".to_owned(), json!(row.prefetch.unwrap_or(0)));
                fields.insert("dead_letters_waiting".to_owned(), json!(row.letters));
            }
            object
        })
        .collect();
    let snapshot = &answers.snapshot;
    let postgres = snapshot.postgres.as_ref();
    let overview = postgres.map(|database| &database.overview);
    let living = |kind: &str| overview.map(|overview| overview.count_living(kind)).ok();
    json!({
        "now": overview.map_or(answers.at, |overview| overview.now),
        "cell": postgres.map(|database| &database.cell).ok(),
        "workers": living("worker"),
        "relays": living("relay"),
        "gateways": living("gateway"),
        "postgres": {
            "reachable": postgres.is_ok(), "latency": postgres.map(|database| database.latency.as_secs_f64()).ok(),
            "error": postgres.err().map(|failure| &failure.text),
        },
        "rabbitmq": snapshot.has_broker
            .then(|| json!({ "reachable": snapshot.rabbitmq.is_ok(), "error": snapshot.rabbitmq.as_ref().err() })),
        "redis": snapshot.redis.as_ref()
            .map(|redis| json!({ "reachable": redis.is_ok(), "error": redis.as_ref().err().map(|failure| &failure.text) })),
        "consumers": consumers,
        "targets": overview.map(|overview| json!(overview.targets)).unwrap_or_else(|_| json!([])),
    })
}
