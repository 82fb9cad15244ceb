//! Effects of pressed keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{ScreenMode, ScreenState};

/// Maximum length of a typed reason, in characters.
const REASON: usize = 200;

/// An action besides redrawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Nothing,
    Quit,
    Pause { consumer: String, reason: String },
    Resume { consumer: String, reason: Option<String> },
}

/// Handles a pressed key.
pub(super) fn handle_key(view: &mut ScreenState, key: KeyEvent) -> KeyAction {
    if key.kind == KeyEventKind::Release {
        return KeyAction::Nothing;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::Nothing };
    }
    match std::mem::take(&mut view.mode) {
        ScreenMode::Table => return in_table(view, key.code),
        // Any key leaves the help.
        ScreenMode::Help => {}
        ScreenMode::Reason { consumer, pause, mut text } => match key.code {
            KeyCode::Esc => {}
            KeyCode::Enter if pause && text.trim().is_empty() => {
                view.told = Some("a pause has a reason".to_owned());
                view.mode = ScreenMode::Reason { consumer, pause, text };
            }
            KeyCode::Enter => {
                let reason = text.trim().to_owned();
                return match pause {
                    true => KeyAction::Pause { consumer, reason },
                    false => {
                        KeyAction::Resume { consumer, reason: Some(reason).filter(|text| !text.is_empty()) }
                    }
                };
            }
            code => {
                match code {
                    KeyCode::Char(typed) if text.chars().count() < REASON => text.push(typed),
                    KeyCode::Backspace => drop(text.pop()),
                    _ => {}
                }
                view.mode = ScreenMode::Reason { consumer, pause, text };
            }
        },
    }
    KeyAction::Nothing
}

fn in_table(view: &mut ScreenState, code: KeyCode) -> KeyAction {
    view.told = None;
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
        KeyCode::Down | KeyCode::Char('j') => view.select(true),
        KeyCode::Up | KeyCode::Char('k') => view.select(false),
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('p') => view.ask_reason(),
        KeyCode::Char('?' | 'h') => view.mode = ScreenMode::Help,
        _ => {}
    }
    KeyAction::Nothing
}
