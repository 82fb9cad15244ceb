//! Programs of this machine that look at what we make: no part of what runs in production.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::apt::{in_path, install};

/// A browser's program; Debian's package is installed where there is none.
///
/// # Errors
/// When there is none and none can be installed: says what helps.
pub fn chromium() -> anyhow::Result<PathBuf> {
    // Debian's name, and other people's.
    tool(&["chromium", "google-chrome", "chromium-browser"], "chromium")
}

/// systemd's program that checks units; it needs no running systemd.
///
/// # Errors
/// When there is none and none can be installed: says what helps.
pub fn systemd_analyze() -> anyhow::Result<PathBuf> {
    tool(&["systemd-analyze"], "systemd")
}

/// The program that configures the kernel's network; Debian's package is installed where there is none.
///
/// # Errors
/// When there is none and none can be installed: says what helps.
pub(crate) fn ip() -> anyhow::Result<PathBuf> {
    tool(&["ip"], "iproute2")
}

/// The program of nginx; Debian's package is installed where there is none.
///
/// # Errors
/// When there is none and none can be installed: says what helps.
pub fn nginx() -> anyhow::Result<PathBuf> {
    // Not in the PATH of each user.
    let installed = PathBuf::from("/usr/sbin/nginx");
    match installed.is_file() {
        true => Ok(installed),
        false => tool(&["nginx"], "nginx"),
    }
}

fn tool(names: &'static [&'static str], package: &'static str) -> anyhow::Result<PathBuf> {
    let found = || names.iter().find_map(|name| in_path(name));
    install(|| found().is_none().then(|| (package.to_owned(), vec![package]))).map_err(|failure| {
        anyhow::anyhow!(
            "{} is needed, and {}. Install it yourself, or run as root on Debian, so that its package can be installed.",
            failure.missing,
            failure.why
        )
    })?;
    found().with_context(|| format!("{package} has vanished"))
}
