//! The browser that looks at the console.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::install::{in_path, install};

/// What the program is called: Debian's way, and other people's.
const NAMES: [&str; 3] = ["chromium", "google-chrome", "chromium-browser"];

/// Chromium's program; Debian's package is installed where there is none.
///
/// # Errors
/// When there is none and none can be installed: says what helps.
pub fn chromium() -> anyhow::Result<PathBuf> {
    let found = || NAMES.into_iter().find_map(in_path);
    install(|| found().is_none().then(|| ("Chromium".to_owned(), vec!["chromium"]))).map_err(|failure| {
        anyhow::anyhow!(
            "Chromium is needed, and {}. Install it yourself, or run as root on Debian, so that its package can be installed.",
            failure.why
        )
    })?;
    found().context("Chromium has vanished")
}
