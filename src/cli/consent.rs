//! Whether somebody agrees to a change, and who.

use std::io::{BufRead as _, IsTerminal as _};

use super::output;

/// Asks whoever sits at the terminal to type the number of rows; nobody sits where there is none.
pub(super) fn ask(count: usize) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        output::note("nothing was changed: agree with --yes");
        return Ok(false);
    }
    output::note(&format!("type {count} to go on"));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let agreed = answer.trim() == count.to_string();
    if !agreed {
        output::note("nothing was changed");
    }
    Ok(agreed)
}

/// The user of the operating system.
pub(super) fn user() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    user.unwrap_or_else(|| "unknown user".to_owned())
}
