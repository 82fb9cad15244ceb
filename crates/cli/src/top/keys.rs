//! Effects of pressed keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::{ScreenMode, ScreenState};

/// Maximum length of a typed reason, in characters.
const MAX_REASON: usize = 200;

/// An action besides redrawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Nothing,
    Quit,
    Pause { consumer: String, reason: String },
    Resume { consumer: String, reason: Option<String> },
}

/// Handles a pressed key; returns the action that is left to the caller.
pub(super) fn handle_key(screen: &mut ScreenState, key: KeyEvent) -> KeyAction {
    if key.kind == KeyEventKind::Release {
        return KeyAction::Nothing;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::Nothing };
    }
    match std::mem::take(&mut screen.mode) {
        ScreenMode::Table => return handle_table_key(screen, key.code),
        // Any key leaves the help.
        ScreenMode::Help => {}
        ScreenMode::Reason { consumer, pause, mut text } => match key.code {
            KeyCode::Esc => {}
            KeyCode::Enter if pause && text.trim().is_empty() => {
                screen.message = Some("a pause has a reason".to_owned());
                screen.mode = ScreenMode::Reason { consumer, pause, text };
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
                    KeyCode::Char(typed) if text.chars().count() < MAX_REASON => text.push(typed),
                    KeyCode::Backspace => drop(text.pop()),
                    _ => {}
                }
                screen.mode = ScreenMode::Reason { consumer, pause, text };
            }
        },
    }
    KeyAction::Nothing
}

/// Handles a key that was pressed in the table.
fn handle_table_key(screen: &mut ScreenState, code: KeyCode) -> KeyAction {
    screen.message = None;
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
        KeyCode::Down | KeyCode::Char('j') => screen.move_selection(true),
        KeyCode::Up | KeyCode::Char('k') => screen.move_selection(false),
        KeyCode::Char('s') => screen.sort = screen.sort.next(),
        KeyCode::Char('p') => screen.begin_reason_input(),
        KeyCode::Char('?' | 'h') => screen.mode = ScreenMode::Help,
        _ => {}
    }
    KeyAction::Nothing
}
