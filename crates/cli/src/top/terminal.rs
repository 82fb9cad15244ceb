//! The terminal, which is restored however the program ends.

use std::io::IsTerminal as _;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal;
use ratatui::text::Text;
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use super::frame::{ScreenContent, format_bottom_line};
use super::view::ScreenState;

/// Returns the terminal's width in columns; `None` if stdout is no terminal.
pub(super) fn width() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    is_terminal.then(terminal::size).and_then(Result::ok).map(|(width, _)| usize::from(width))
}

/// The alternate screen. A panic restores the terminal before it is reported, a normal end by dropping.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Opens the alternate screen.
    ///
    /// # Errors
    /// If there is no terminal to draw on.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }

    pub(super) fn draw(&mut self, screen: &ScreenState) -> std::io::Result<()> {
        self.0.draw(|area| draw(screen, area))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails if the terminal is gone, and then nothing needs restoring.
        let _ = ratatui::try_restore();
    }
}

/// Draws the content of the screen, and the bottom line below it.
pub(super) fn draw(screen: &ScreenState, area: &mut Frame<'_>) {
    let whole = area.area();
    let width = usize::from(whole.width);
    let mut above = whole;
    above.height = whole.height.saturating_sub(1);
    area.render_widget(
        Text::from(ScreenContent::from_screen(screen, width).into_lines_within(usize::from(above.height))),
        above,
    );
    let mut last = whole;
    last.y = whole.y + above.height;
    last.height = whole.height.min(1);
    area.render_widget(format_bottom_line(screen, width), last);
}

/// Interval at which the thread that reads keys checks for a receiver.
const RECEIVER_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a thread that reads the terminal's events, because reading blocks. The thread ends with the receiver.
pub(super) fn spawn_event_reader() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let result = match event::poll(RECEIVER_INTERVAL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let is_error = result.is_err();
            if sender.blocking_send(result).is_err() || is_error {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const MARK: &str = "ONCELY_TEST_PANICS";
    const NAME: &str = "top::terminal::tests::a_panic_gives_the_terminal_back_before_it_is_told";

    /// Runs this test again in a terminal of its own, where it panics.
    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        if std::env::var_os(MARK).is_some() {
            let _screen = Screen::open().unwrap();
            panic!("on purpose");
        }
        let this = std::env::current_exe().unwrap();
        let command = format!("{} --exact {NAME} --nocapture", this.display());
        let output = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &command, "/dev/null"])
            .env(MARK, "1")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{text:?}");
        let entered = text.find("\u{1b}[?1049h").unwrap_or_else(|| panic!("{text:?}"));
        let left = text.find("\u{1b}[?1049l").unwrap_or_else(|| panic!("{text:?}"));
        let told = text.find("on purpose").unwrap_or_else(|| panic!("{text:?}"));
        assert!(entered < left && left < told, "{text:?}");
    }
}
