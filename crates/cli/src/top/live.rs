//! The live view: queries, draws and reads keys.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::Event;
use tokio::sync::{Notify, mpsc};

use super::super::operator;
use super::super::output::{self, Times, escape};
use super::keys::{KeyAction, handle_key};
use super::servers::{ServerAnswers, ServerConnections};
use super::terminal::{Screen, spawn_event_reader};
use super::view::ScreenState;
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres as pg;
use oncely_process::shutdown;

/// Redraw interval: a clock that does not move looks like a program that hangs.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(config: Config, every: Duration, times: Times) -> crate::VerbResult {
    if !std::io::stdout().is_terminal() {
        output::print_note(
            "top needs a terminal; without one, use --once for one frame, or --json for one line per query",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    let stop = shutdown::on_signal()?;
    tokio::pin!(stop);
    let query_now = Arc::new(Notify::new());
    let mut answers = spawn_queries(ServerConnections::new(config.clone()), every, Arc::clone(&query_now));
    let (message_sender, mut messages) = mpsc::channel(4);
    let mut screen = ScreenState::new(&config, times);
    let mut terminal = Screen::open()?;
    let mut events = spawn_event_reader();
    loop {
        terminal.draw(&screen)?;
        let action = tokio::select! {
            () = &mut stop => KeyAction::Quit,
            () = tokio::time::sleep(REDRAW_INTERVAL) => KeyAction::Nothing,
            result = answers.recv() => match result {
                Some(result) => {
                    screen.update(result?);
                    KeyAction::Nothing
                }
                // The task has panicked, which has been reported.
                None => return Ok(ExitCode::from(shutdown::SOFTWARE_ERROR_CODE)),
            },
            Some(text) = messages.recv() => {
                screen.message = Some(text);
                query_now.notify_one();
                KeyAction::Nothing
            }
            event = events.recv() => match event {
                Some(Ok(Event::Key(key))) => handle_key(&mut screen, key),
                Some(Ok(_)) => KeyAction::Nothing,
                // The terminal is gone.
                Some(Err(_)) | None => KeyAction::Quit,
            },
        };
        match action {
            KeyAction::Nothing => {}
            KeyAction::Quit => return Ok(ExitCode::SUCCESS),
            change => {
                let (config, message_sender) = (config.clone(), message_sender.clone());
                tokio::spawn(async move {
                    let text = apply_change(&config, change).await;
                    // The view may have ended.
                    let _ = message_sender.send(text).await;
                });
            }
        }
    }
}

/// Starts a task that queries the servers periodically, and at once when notified. It ends after an error, or with its receiver.
fn spawn_queries(
    mut servers: ServerConnections,
    every: Duration,
    query_now: Arc<Notify>,
) -> mpsc::Receiver<anyhow::Result<ServerAnswers>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let result = servers.query().await;
            let is_over = result.is_err();
            if sender.send(result).await.is_err() || is_over {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = query_now.notified() => {}
            }
        }
    });
    receiver
}

/// Pauses or resumes a consumer, and returns a message about the result.
async fn apply_change(config: &Config, change: KeyAction) -> String {
    let message = async {
        let mut connection = config.postgres.connect("oncely top").await?;
        let user = operator::name();
        Ok::<_, sqlx::Error>(match &change {
            KeyAction::Pause { consumer, reason } => {
                pg::pause_consumer(&mut connection, consumer, None, reason, &user).await?;
                format!("{} is paused; its workers obey within five seconds", escape(consumer))
            }
            KeyAction::Resume { consumer, reason } => {
                match pg::resume_consumer(&mut connection, consumer, reason.as_deref(), &user).await? {
                    true => format!("{} is resumed; its workers obey within five seconds", escape(consumer)),
                    false => format!("{} was not paused", escape(consumer)),
                }
            }
            KeyAction::Nothing | KeyAction::Quit => String::new(),
        })
    };
    match message.await {
        Ok(text) => text,
        Err(error) => {
            format!("nothing was changed (role oncely_operator): {}", escape(&pg::describe(&error)))
        }
    }
}
