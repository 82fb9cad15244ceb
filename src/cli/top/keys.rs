//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{Mode, View};

/// Longest reason that is typed, in characters.
const REASON: usize = 200;

/// What is to be done beside drawing again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Nothing,
    Quit,
    Pause { consumer: String, reason: String },
    Resume { consumer: String, reason: Option<String> },
}

/// A key was pressed.
pub(super) fn press(view: &mut View, key: KeyEvent) -> Command {
    if key.kind == KeyEventKind::Release {
        return Command::Nothing;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { Command::Quit } else { Command::Nothing };
    }
    match std::mem::take(&mut view.mode) {
        Mode::Table => return in_table(view, key.code),
        // Any key leaves the help.
        Mode::Help => {}
        Mode::Reason { consumer, pause, mut text } => match key.code {
            KeyCode::Esc => {}
            KeyCode::Enter if pause && text.trim().is_empty() => {
                view.told = Some("a pause has a reason".to_owned());
                view.mode = Mode::Reason { consumer, pause, text };
            }
            KeyCode::Enter => {
                let reason = text.trim().to_owned();
                return match pause {
                    true => Command::Pause { consumer, reason },
                    false => {
                        Command::Resume { consumer, reason: Some(reason).filter(|text| !text.is_empty()) }
                    }
                };
            }
            code => {
                match code {
                    KeyCode::Char(typed) if text.chars().count() < REASON => text.push(typed),
                    KeyCode::Backspace => drop(text.pop()),
                    _ => {}
                }
                view.mode = Mode::Reason { consumer, pause, text };
            }
        },
    }
    Command::Nothing
}

fn in_table(view: &mut View, code: KeyCode) -> Command {
    view.told = None;
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return Command::Quit,
        KeyCode::Down | KeyCode::Char('j') => view.select(true),
        KeyCode::Up | KeyCode::Char('k') => view.select(false),
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('p') => view.ask_reason(),
        KeyCode::Char('?' | 'h') => view.mode = Mode::Help,
        _ => {}
    }
    Command::Nothing
}
