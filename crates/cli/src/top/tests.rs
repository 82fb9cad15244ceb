//! Tests of the drawn screen and of pressed keys.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::output::Times;
use super::frame::{ScreenContent, to_text};
use super::keys::{KeyAction, handle_key};
use super::servers::{DatabaseAnswer, ServerAnswers};
use super::terminal::draw;
use super::view::{ScreenMode, ScreenState};
use oncely_config::Config;
use oncely_ops::overview::{
    ConsumerOverview, ConsumerState, Overview, ProcessOverview, QueueState, TargetOverview,
};
use oncely_ops::status::{ServerFailure, StatusSnapshot};
use oncely_postgres::ProcessRow;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

fn process(kind: &str) -> ProcessOverview {
    let row = ProcessRow {
        kind: kind.to_owned(),
        name: kind.to_owned(),
        version: String::new(),
        host: String::new(),
        pid: 1,
        config_digest: String::new(),
        state: "ready".to_owned(),
        reason: None,
        login: String::new(),
        started_at: at(-60),
        last_seen_at: at(0),
        consumers: serde_json::Value::Null,
    };
    ProcessOverview { row, reports: Vec::new(), silent: false }
}

fn consumers() -> Vec<ConsumerOverview> {
    let payments = ConsumerOverview {
        consumer: "payments".to_owned(),
        state: ConsumerState::Running,
        configured: Some(true),
        workers: 2,
        inflight: 512,
        delivered: 186_600,
        done: 187_200,
        duplicates: 3_919,
        p50: Some(0.004),
        p99: Some(0.031),
        done_by_span: vec![20_000, 31_000, 31_200, 35_000, 35_000, 35_000],
        completed_at: Some(at(0)),
        ..ConsumerOverview::default()
    };
    let ledger = ConsumerOverview {
        consumer: "ledger".to_owned(),
        state: ConsumerState::Stalled,
        reason: Some("undefined table (SQLSTATE 42P01)".to_owned()),
        since: Some(at(-372)),
        configured: Some(true),
        workers: 1,
        inflight: 7,
        delivered: 20,
        done_by_span: vec![0; 6],
        completed_at: Some(at(-400)),
        ..ConsumerOverview::default()
    };
    let mails = ConsumerOverview {
        consumer: "mails\u{1b}[2J".to_owned(),
        state: ConsumerState::Paused,
        reason: Some("schema change".to_owned()),
        paused_by: Some("postgres (ana)".to_owned()),
        since: Some(at(-60)),
        until: Some(at(1_740)),
        configured: Some(false),
        done_by_span: vec![0; 6],
        ..ConsumerOverview::default()
    };
    let audit = ConsumerOverview {
        consumer: "audit".to_owned(),
        done_by_span: vec![0; 6],
        ..ConsumerOverview::default()
    };
    vec![audit, ledger, mails, payments]
}

fn queue(name: &str, ready: Option<u32>) -> QueueState {
    QueueState {
        consumer: name.to_owned(),
        queue: name.to_owned(),
        ready,
        retrying: 0,
        dead: Some(0),
        subscriptions: ready.map(|_| 1),
        missing: if ready.is_none() { vec![name.to_owned()] } else { Vec::new() },
    }
}

fn answers() -> ServerAnswers {
    let target = |target: &str, records, oldest_age| TargetOverview {
        target: target.to_owned(),
        records,
        oldest_age,
        relayed: 1_300,
        failed: 2,
        parked: 0,
    };
    let overview = Overview {
        now: at(0),
        consumers: consumers(),
        targets: vec![target("rabbitmq", 0, 0.0), target("redis", 8_112, 41.0)],
        processes: vec![process("relay"), process("worker"), process("worker"), process("worker")],
        pauses: Vec::new(),
        leases: Vec::new(),
    };
    let snapshot = StatusSnapshot {
        postgres: Ok(DatabaseAnswer {
            cell: "main".to_owned(),
            overview,
            letters: BTreeMap::from([("payments".to_owned(), 3)]),
            latency: Duration::from_micros(800),
        }),
        has_broker: true,
        rabbitmq: Ok(vec![queue("payments", Some(1_204)), queue("ledger", None)]),
        redis: Some(Ok(())),
    };
    ServerAnswers { at: at(0), snapshot }
}

fn screen() -> ScreenState {
    let consumer = |name: &str| {
        format!(
            "[[consumers]]\nname = \"{name}\"\nqueue = \"{name}\"\ntenant = {{ fixed = \"t\" }}\nkey = \"body_hash\"\nprefetch = 256\nbatch = 64\n"
        )
    };
    let servers = "[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n";
    let text = format!("{servers}{}{}", consumer("payments"), consumer("ledger"));
    let mut screen = ScreenState::new(&Config::parse(&text).unwrap(), Times { utc: true });
    screen.update(answers());
    screen
}

fn content_text(screen: &ScreenState, width: usize) -> String {
    to_text(&ScreenContent::from_screen(screen, width).into_lines())
}

fn draw_screen(screen: &ScreenState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|area| draw(screen, area)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width)).map(|row| {
        let text: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_frame_says_how_each_consumer_stands_and_why() {
    insta::assert_snapshot!(draw_screen(&screen(), 120, 16), @r#"
oncely top · main · 08:00:00Z · 3 workers · 1 relay · PostgreSQL 0.8 ms · RabbitMQ ok · Redis ok

CONSUMER        STATE      READY  INFLIGHT   IN/s  DONE/s  DUP%   P50    P99  DEAD  LAST DONE  LAST 60 s
audit           NO WORKER      –         0      0       0     –     –      –     0          –  ▁▁▁▁▁▁
  no worker has it: its messages are not taken
ledger          STALLED        –     7/256    0.3       0   0.0     –      –     0     6m 40s  ▁▁▁▁▁▁
  no success for 6m 12s: undefined table (SQLSTATE 42P01)
mails\u{1b}[2J  PAUSED         –         0      0       0     –     –      –     0          –  ▁▁▁▁▁▁
  by postgres (ana) for 1m: schema change, goes on in 29m
payments        running    1,204   512/512  3,110   3,120   2.1  4 ms  31 ms     3         0s  ▅▇▇███

OUTBOX        0 waiting · 1,300 relayed in the last minute, 2 failed
MIRROR QUEUE  8,112 waiting, the oldest for 41 s · 1,300 relayed in the last minute, 2 failed


q quit   p pause/resume   s sort: name   ? help
"#);
}

#[test]
fn a_narrow_terminal_has_fewer_columns_and_the_same_reasons() {
    insta::assert_snapshot!(draw_screen(&screen(), 60, 14), @r#"
oncely top · main · 08:00:00Z · 3 workers · 1 relay · Postg…

CONSUMER        STATE      READY  INFLIGHT   IN/s  DONE/s
audit           NO WORKER      –         0      0       0
  no worker has it: its messages are not taken
ledger          STALLED        –     7/256    0.3       0
  no success for 6m 12s: undefined table (SQLSTATE 42P01)
mails\u{1b}[2J  PAUSED         –         0      0       0
  by postgres (ana) for 1m: schema change, goes on in 29m
payments        running    1,204   512/512  3,110   3,120

OUTBOX        0 waiting · 1,300 relayed in the last minute,…
MIRROR QUEUE  8,112 waiting, the oldest for 41 s · 1,300 re…
q quit   p pause/resume   s sort: name   ? help
"#);
    for width in 1..140 {
        let text = content_text(&screen(), width);
        let widest = text.lines().map(|line| ratatui::text::Span::raw(line).width()).max().unwrap();
        assert!(widest <= width.max(24), "{width}: {text}");
        draw_screen(&screen(), u16::try_from(width).unwrap(), 3);
    }
}

#[test]
fn a_server_that_is_away_is_said_and_what_was_known_stays() {
    let mut screen = screen();
    let mut away = answers();
    away.at = at(90);
    away.snapshot.postgres = Err(ServerFailure { text: "no answer within 4s".to_owned(), is_away: true });
    away.snapshot.rabbitmq = Err("connection refused\u{1b}[2J".to_owned());
    away.snapshot.redis = Some(Err(ServerFailure { text: "timed out".to_owned(), is_away: true }));
    screen.update(away.clone());
    insta::assert_snapshot!(draw_screen(&screen, 100, 17), @r#"
oncely top · 08:01:30Z
✗ PostgreSQL (below: what it said 1m 30s ago): no answer within 4s
✗ RabbitMQ: connection refused\u{1b}[2J
✗ Redis (only slower, PostgreSQL alone knows the duplicates): timed out

CONSUMER        STATE      READY  INFLIGHT   IN/s  DONE/s  DUP%   P50    P99  DEAD  LAST DONE
audit           NO WORKER      –         0      0       0     –     –      –     0          –
  no worker has it: its messages are not taken
ledger          STALLED        –     7/256    0.3       0   0.0     –      –     0     6m 40s
  no success for 6m 12s: undefined table (SQLSTATE 42P01)
mails\u{1b}[2J  PAUSED         –         0      0       0     –     –      –     0          –
  by postgres (ana) for 1m: schema change, goes on in 29m
payments        running        –   512/512  3,110   3,120   2.1  4 ms  31 ms     3         0s

OUTBOX        0 waiting · 1,300 relayed in the last minute, 2 failed
MIRROR QUEUE  8,112 waiting, the oldest for 41 s · 1,300 relayed in the last minute, 2 failed
q quit   p pause/resume   s sort: name   ? help
"#);
    let config = minimal_config();
    let mut first = ScreenState::new(&config, Times { utc: true });
    assert_eq!(content_text(&first, 80), "oncely top · asking the servers\n");
    first.update(away);
    assert!(content_text(&first, 80).contains("✗ PostgreSQL: no answer within 4s"));
}

#[test]
fn where_there_are_more_consumers_than_lines_the_selected_one_is_seen() {
    let mut screen = screen();
    let mut many = answers();
    if let Ok(database) = &mut many.snapshot.postgres {
        let name = |number| ConsumerOverview {
            consumer: format!("c{number:02}"),
            state: ConsumerState::Running,
            ..ConsumerOverview::default()
        };
        database.overview.consumers = (0..50).map(name).collect();
    }
    screen.update(many);
    for (downs, seen) in [(0, "c00"), (30, "c30"), (30, "c49")] {
        type_in(&mut screen, &vec![KeyCode::Down; downs]);
        for height in [6, 8, 12, 20] {
            let text = draw_screen(&screen, 80, height);
            assert!(
                text.contains("CONSUMER") && text.contains(seen) && text.contains("q quit"),
                "{height}: {text}"
            );
        }
    }
}

fn minimal_config() -> Config {
    Config::parse("[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n")
        .unwrap()
}

fn type_in(screen: &mut ScreenState, keys: &[KeyCode]) -> KeyAction {
    let mut last = KeyAction::Nothing;
    for code in keys {
        last = handle_key(screen, KeyEvent::new(*code, KeyModifiers::NONE));
    }
    last
}

fn order(screen: &ScreenState) -> String {
    screen.rows().iter().map(|row| row.overview.consumer.chars().next().unwrap()).collect()
}

#[test]
fn keys_select_and_sort() {
    let mut screen = screen();
    assert_eq!(order(&screen), "almp");
    let orders: Vec<String> = (0..5)
        .map(|_| {
            type_in(&mut screen, &[KeyCode::Char('s')]);
            order(&screen)
        })
        .collect();
    assert_eq!(orders, ["lamp", "palm", "palm", "palm", "almp"], "state, ready, done, dead letters, name");
    type_in(&mut screen, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::Up]);
    assert_eq!(screen.selected.as_deref(), Some("ledger"));
    type_in(&mut screen, &[KeyCode::Up, KeyCode::Up, KeyCode::Up]);
    assert_eq!(screen.selected.as_deref(), Some("audit"));
    // The selection is a consumer, not a place.
    type_in(&mut screen, &[KeyCode::Char('s')]);
    assert_eq!(screen.selected_index(&screen.rows()), Some(1));
    assert_eq!(type_in(&mut screen, &[KeyCode::Char('?')]), KeyAction::Nothing);
    assert!(draw_screen(&screen, 100, 20).contains("LAST DONE  since a message took effect"));
    assert_eq!(type_in(&mut screen, &[KeyCode::Char('q')]), KeyAction::Nothing, "leaves the help");
    assert_eq!(type_in(&mut screen, &[KeyCode::Char('q')]), KeyAction::Quit);
    assert_eq!(
        handle_key(&mut screen, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        KeyAction::Quit
    );
}

#[test]
fn nobody_is_paused_without_a_reason() {
    let mut screen = screen();
    type_in(&mut screen, &[KeyCode::Down, KeyCode::Char('p'), KeyCode::Enter]);
    assert!(
        draw_screen(&screen, 80, 10).contains("pause ledger: a pause has a reason"),
        "{}",
        draw_screen(&screen, 80, 10)
    );
    let reason =
        [KeyCode::Char('q'), KeyCode::Char('y'), KeyCode::Backspace, KeyCode::Char(' '), KeyCode::Char('s')];
    type_in(&mut screen, &reason);
    let paused = KeyAction::Pause { consumer: "ledger".to_owned(), reason: "q s".to_owned() };
    assert_eq!(type_in(&mut screen, &[KeyCode::Enter]), paused);
    // A paused consumer resumes with or without a reason; Esc changes nothing.
    type_in(&mut screen, &[KeyCode::Down, KeyCode::Char('p')]);
    assert!(
        draw_screen(&screen, 80, 10).contains("resume mails\\u{1b}[2J"),
        "{}",
        draw_screen(&screen, 80, 10)
    );
    assert_eq!(type_in(&mut screen, &[KeyCode::Char('x'), KeyCode::Esc]), KeyAction::Nothing);
    assert_eq!(screen.mode, ScreenMode::Table);
    let resumed = KeyAction::Resume { consumer: "mails\u{1b}[2J".to_owned(), reason: None };
    assert_eq!(type_in(&mut screen, &[KeyCode::Char('p'), KeyCode::Enter]), resumed);
}

#[test]
fn the_clock_goes_on_while_a_server_is_away() {
    let mut screen = screen();
    let mut away = answers();
    away.at = at(0) + TimeDelta::seconds(30);
    away.snapshot.postgres = Err(ServerFailure { text: "gone".to_owned(), is_away: true });
    screen.update(away);
    assert!(content_text(&screen, 120).contains("what it said 30s ago"));
}
