//! A frame, as lines and as JSON.

use ratatui::style::{Color, Stylize as _};
use ratatui::text::Line;
use serde_json::{Value, json};

use super::super::output::{age, safe, seconds};
use super::numbers::grouped;
use super::servers::{DatabaseAnswer, ServerAnswers};
use super::table::{Table, shortened};
use super::view::{ScreenMode, ScreenState};
use oncely_config::Config;
use oncely_ops::overview::Overview;

/// Width of a frame without a terminal.
pub(super) const WIDE: usize = 120;

/// Limit of counting.
const CAP: i64 = 10_000;

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

/// Content of a frame: head and foot are fixed, the body scrolls if there is no room for all of it.
pub(super) struct ScreenContent {
    head: Vec<Line<'static>>,
    body: Vec<Line<'static>>,
    foot: Vec<Line<'static>>,
    /// The line of the body that must be visible.
    selected: usize,
}

/// Minimum number of visible lines of the body; below it, the foot is dropped.
const BODY: usize = 3;

impl ScreenContent {
    /// Builds a frame of this width.
    pub(super) fn from_view(view: &ScreenState, width: usize) -> Self {
        let mut head = servers(view, width);
        head.push(Line::default());
        if view.mode == ScreenMode::Help {
            let body = HELP.map(|text| Line::from(shortened(text, width))).to_vec();
            return Self { head, body, foot: Vec::new(), selected: 0 };
        }
        let Some((database, _)) = &view.known else {
            return Self { head, body: Vec::new(), foot: Vec::new(), selected: 0 };
        };
        let rows = view.rows();
        let table = Table::from_rows(&rows, view.selection(&rows), database.overview.now, width);
        head.push(table.heads);
        let none = "no consumer is configured, and no worker has started on this database";
        let body = if rows.is_empty() { vec![Line::from(shortened(none, width))] } else { table.lines };
        let foot = targets(&database.overview).into_iter().map(|text| Line::from(shortened(&text, width)));
        Self { head, body, foot: foot.collect(), selected: table.selected }
    }

    /// Returns all lines.
    pub(super) fn whole(self) -> Vec<Line<'static>> {
        let mut lines = self.head;
        lines.extend(self.body);
        if !self.foot.is_empty() {
            lines.push(Line::default());
            lines.extend(self.foot);
        }
        lines
    }

    /// Returns as many lines as fit, including the selected one.
    pub(super) fn within(mut self, height: usize) -> Vec<Line<'static>> {
        let room = height.saturating_sub(self.head.len());
        let with_foot = room.saturating_sub(self.foot.len() + 1);
        if with_foot < self.body.len().min(BODY) {
            self.foot.clear();
        }
        let room = if self.foot.is_empty() { room } else { with_foot };
        let hidden = self.body.len().saturating_sub(room);
        let from = self.selected.saturating_sub(room / 2).min(hidden);
        self.body = self.body.into_iter().skip(from).take(room).collect();
        self.whole()
    }
}

/// Shows the servers that were queried, and those that do not answer.
fn servers(view: &ScreenState, width: usize) -> Vec<Line<'static>> {
    let Some(asked) = &view.asked else { return vec![Line::from("oncely top · asking the servers")] };
    let at = view.times.clock(asked.at);
    let mut title = vec!["oncely top".to_owned()];
    let mut away = Vec::new();
    match (&asked.snapshot.postgres, &view.known) {
        (Ok(database), _) => title.extend(about(database, &at)),
        (Err(error), known) => {
            title.push(at);
            let as_of = known
                .as_ref()
                .map(|(_, then)| format!(" (below: what it said {} ago)", age(*then, asked.at)));
            away.push(format!(
                "✗ PostgreSQL{}: {}",
                as_of.unwrap_or_default(),
                without("PostgreSQL", &error.text)
            ));
        }
    }
    match &asked.snapshot.rabbitmq {
        Ok(_) => title.extend(asked.snapshot.has_broker.then(|| "RabbitMQ ok".to_owned())),
        Err(error) => away.push(format!("✗ RabbitMQ: {}", without("RabbitMQ", error))),
    }
    match &asked.snapshot.redis {
        Some(Ok(())) => title.push("Redis ok".to_owned()),
        Some(Err(missing)) => {
            let error = without("Redis", &missing.text);
            away.push(format!("✗ Redis (only slower, PostgreSQL alone knows the duplicates): {error}"));
        }
        None => {}
    }
    let mut lines = vec![Line::from(shortened(&title.join(" · "), width)).bold()];
    lines.extend(away.into_iter().map(|text| Line::from(shortened(&text, width)).fg(Color::Red)));
    lines
}

/// Formats an error without the server's name, which most errors begin with and which stands before it already.
fn without(server: &str, error: &str) -> String {
    let rest = error.strip_prefix(server).map(|rest| rest.trim_start_matches(':').trim_start());
    safe(rest.unwrap_or(error))
}

fn about(database: &DatabaseAnswer, at: &str) -> Vec<String> {
    let many = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let gateways = database.overview.living("gateway");
    let mut told = vec![
        safe(&database.cell),
        at.to_owned(),
        many(database.overview.living("worker"), "worker"),
        many(database.overview.living("relay"), "relay"),
    ];
    // Most installations have no gateway.
    told.extend((gateways > 0).then(|| many(gateways, "gateway")));
    told.push(format!("PostgreSQL {}", seconds(database.latency.as_secs_f64())));
    told
}

/// Shows the backlogs of Redis and RabbitMQ.
fn targets(overview: &Overview) -> Vec<String> {
    let mut lines = Vec::new();
    if overview.living("relay") == 0 {
        lines.push(
            "! no relay runs: no event is published, nothing is mirrored, nothing is collected".to_owned(),
        );
    }
    for target in &overview.targets {
        let name = if target.target == "redis" { "MIRROR QUEUE" } else { "OUTBOX" };
        let records = match target.records {
            CAP.. => format!("≥ {}", grouped(CAP.unsigned_abs())),
            some => grouped(some.unsigned_abs()),
        };
        let mut text = format!("{name:<12}  {records} waiting");
        if target.records > 0 {
            text.push_str(&format!(", the oldest for {}", seconds(target.oldest_age)));
        }
        text.push_str(&format!(" · {} relayed in the last minute", grouped(target.relayed.unsigned_abs())));
        for (count, what) in [(target.failed, "failed"), (target.parked, "parked")] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        lines.push(text);
    }
    lines
}

/// Returns the bottom line.
pub(super) fn bottom(view: &ScreenState, width: usize) -> Line<'static> {
    let text = match (&view.mode, &view.told) {
        (ScreenMode::Reason { consumer, pause, text }, told) => {
            let what = if *pause { "pause" } else { "resume" };
            let hint = if *pause { told.as_deref().unwrap_or("why?") } else { "why? (may be empty)" };
            format!("{what} {}: {hint} {}▏  Enter does it, Esc leaves it", safe(consumer), safe(text))
        }
        (_, Some(told)) => told.clone(),
        (_, None) => format!("q quit   p pause/resume   s sort: {}   ? help", view.sort.shown()),
    };
    Line::from(shortened(&text, width))
}

/// Joins lines as text.
pub(super) fn plain(lines: &[Line<'_>]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Returns the frame as JSON.
pub(super) fn as_json(asked: &ServerAnswers, config: &Config) -> Value {
    let mut view = ScreenState::new(config, super::super::output::Times { utc: true });
    view.take(asked.clone());
    let consumers: Vec<Value> = view
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
    let snapshot = &asked.snapshot;
    let known = snapshot.postgres.as_ref();
    let overview = known.map(|database| &database.overview);
    let living = |kind: &str| overview.map(|overview| overview.living(kind)).ok();
    json!({
        "now": overview.map_or(asked.at, |overview| overview.now),
        "cell": known.map(|database| &database.cell).ok(),
        "workers": living("worker"),
        "relays": living("relay"),
        "gateways": living("gateway"),
        "postgres": {
            "reachable": known.is_ok(), "latency": known.map(|database| database.latency.as_secs_f64()).ok(),
            "error": known.err().map(|missing| &missing.text),
        },
        "rabbitmq": snapshot.has_broker
            .then(|| json!({ "reachable": snapshot.rabbitmq.is_ok(), "error": snapshot.rabbitmq.as_ref().err() })),
        "redis": snapshot.redis.as_ref()
            .map(|answer| json!({ "reachable": answer.is_ok(), "error": answer.as_ref().err().map(|missing| &missing.text) })),
        "consumers": consumers,
        "targets": overview.map(|overview| json!(overview.targets)).unwrap_or_else(|_| json!([])),
    })
}
