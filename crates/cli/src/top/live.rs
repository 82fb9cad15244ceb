//! The live view: queries, draws and reads keys.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::Event;
use tokio::sync::{Notify, mpsc};

use super::super::operator;
use super::super::output::{self, Times, safe};
use super::keys::{KeyAction, handle_key};
use super::servers::{ServerAnswers, ServerConnections};
use super::terminal::{Screen, events};
use super::view::ScreenState;
use oncely_config::Config;
use oncely_ops::exit;
use oncely_postgres as pg;
use oncely_process::shutdown;

/// Redraw interval: a clock that does not move looks like a program that hangs.
const TICK: Duration = Duration::from_secs(1);

pub(super) async fn run(config: Config, every: Duration, times: Times) -> crate::VerbResult {
    if !std::io::stdout().is_terminal() {
        output::note(
            "top needs a terminal; without one, use --once for one frame, or --json for one line per query",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    let stop = shutdown::on_signal()?;
    tokio::pin!(stop);
    let soon = Arc::new(Notify::new());
    let mut answers = look_again(ServerConnections::new(config.clone()), every, Arc::clone(&soon));
    let (tell, mut told) = mpsc::channel(4);
    let mut view = ScreenState::new(&config, times);
    let mut screen = Screen::open()?;
    let mut happened = events();
    loop {
        screen.draw(&view)?;
        let command = tokio::select! {
            () = &mut stop => KeyAction::Quit,
            () = tokio::time::sleep(TICK) => KeyAction::Nothing,
            asked = answers.recv() => match asked {
                Some(asked) => {
                    view.take(asked?);
                    KeyAction::Nothing
                }
                // The task has panicked, which has been reported.
                None => return Ok(ExitCode::from(shutdown::SOFTWARE)),
            },
            Some(text) = told.recv() => {
                view.told = Some(text);
                soon.notify_one();
                KeyAction::Nothing
            }
            event = happened.recv() => match event {
                Some(Ok(Event::Key(key))) => handle_key(&mut view, key),
                Some(Ok(_)) => KeyAction::Nothing,
                // The terminal is gone.
                Some(Err(_)) | None => KeyAction::Quit,
            },
        };
        match command {
            KeyAction::Nothing => {}
            KeyAction::Quit => return Ok(ExitCode::SUCCESS),
            change => {
                let (config, tell) = (config.clone(), tell.clone());
                tokio::spawn(async move {
                    let text = carry_out(&config, change).await;
                    // The view may have ended.
                    let _ = tell.send(text).await;
                });
            }
        }
    }
}

/// Queries periodically, sooner when notified; ends if the database does not match the configuration.
fn look_again(
    mut servers: ServerConnections,
    every: Duration,
    soon: Arc<Notify>,
) -> mpsc::Receiver<anyhow::Result<ServerAnswers>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let asked = servers.ask().await;
            let is_over = asked.is_err();
            if sender.send(asked).await.is_err() || is_over {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = soon.notified() => {}
            }
        }
    });
    receiver
}

/// Pauses or resumes a consumer, and returns a message about the result.
async fn carry_out(config: &Config, change: KeyAction) -> String {
    let done = async {
        let mut connection = config.postgres.connect("oncely top").await?;
        let user = operator::name();
        Ok::<_, sqlx::Error>(match &change {
            KeyAction::Pause { consumer, reason } => {
                pg::pause_consumer(&mut connection, consumer, None, reason, &user).await?;
                format!("{} is paused; its workers obey within five seconds", safe(consumer))
            }
            KeyAction::Resume { consumer, reason } => {
                match pg::resume_consumer(&mut connection, consumer, reason.as_deref(), &user).await? {
                    true => format!("{} is resumed; its workers obey within five seconds", safe(consumer)),
                    false => format!("{} was not paused", safe(consumer)),
                }
            }
            KeyAction::Nothing | KeyAction::Quit => String::new(),
        })
    };
    match done.await {
        Ok(text) => text,
        Err(error) => format!("nothing was changed (role oncely_operator): {}", safe(&pg::describe(&error))),
    }
}
