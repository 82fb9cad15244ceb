//! The live view: looks, draws, listens.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ratatui::crossterm::event::Event;
use tokio::sync::{Notify, mpsc};

use super::super::consent;
use super::super::output::{self, Times, safe};
use super::keys::{Command, press};
use super::servers::{Asked, Servers};
use super::terminal::{Screen, events};
use super::view::View;
use crate::config::Config;
use crate::{exit, pg, shutdown};

/// A clock that stands still looks like a program that does.
const TICK: Duration = Duration::from_secs(1);

pub(super) async fn run(config: Config, every: Duration, times: Times) -> anyhow::Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        output::note(
            "top draws on a terminal, and there is none: --once prints one frame, --json a line for each look",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    let stop = shutdown::on_signal()?;
    tokio::pin!(stop);
    let soon = Arc::new(Notify::new());
    let mut answers = look_again(Servers::new(config.clone()), every, Arc::clone(&soon));
    let (tell, mut told) = mpsc::channel(4);
    let mut view = View::new(&config, times);
    let mut screen = Screen::open()?;
    let mut happened = events();
    loop {
        screen.draw(&view)?;
        let command = tokio::select! {
            () = &mut stop => Command::Quit,
            () = tokio::time::sleep(TICK) => Command::Nothing,
            asked = answers.recv() => match asked {
                Some(asked) => {
                    view.take(asked?);
                    Command::Nothing
                }
                // It has panicked, and that is told.
                None => return Ok(ExitCode::from(shutdown::SOFTWARE)),
            },
            Some(text) = told.recv() => {
                view.told = Some(text);
                soon.notify_one();
                Command::Nothing
            }
            event = happened.recv() => match event {
                Some(Ok(Event::Key(key))) => press(&mut view, key),
                Some(Ok(_)) => Command::Nothing,
                // The terminal is gone.
                Some(Err(_)) | None => Command::Quit,
            },
        };
        match command {
            Command::Nothing => {}
            Command::Quit => return Ok(ExitCode::SUCCESS),
            change => {
                let (config, tell) = (config.clone(), tell.clone());
                tokio::spawn(async move {
                    let text = carry_out(&config, change).await;
                    // Nobody is there to be told any more.
                    let _ = tell.send(text).await;
                });
            }
        }
    }
}

/// Looks again and again, sooner where somebody says so; ends where the database does not fit the configuration.
fn look_again(
    mut servers: Servers,
    every: Duration,
    soon: Arc<Notify>,
) -> mpsc::Receiver<anyhow::Result<Asked>> {
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

/// Pauses or resumes, and says what became of it.
async fn carry_out(config: &Config, change: Command) -> String {
    let done = async {
        let mut connection = config.postgres.connect("oncely top").await?;
        let user = consent::user();
        Ok::<_, sqlx::Error>(match &change {
            Command::Pause { consumer, reason } => {
                pg::pause_consumer(&mut connection, consumer, None, reason, &user).await?;
                format!("{} is paused; its workers obey within five seconds", safe(consumer))
            }
            Command::Resume { consumer, reason } => {
                match pg::resume_consumer(&mut connection, consumer, reason.as_deref(), &user).await? {
                    true => format!("{} goes on; its workers obey within five seconds", safe(consumer)),
                    false => format!("{} was not paused", safe(consumer)),
                }
            }
            Command::Nothing | Command::Quit => String::new(),
        })
    };
    match done.await {
        Ok(text) => text,
        Err(error) => format!("nothing was changed (role oncely_operator): {}", safe(&pg::describe(&error))),
    }
}
