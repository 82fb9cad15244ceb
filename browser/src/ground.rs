//! What checks stand on.

use std::path::PathBuf;

use crate::browser::Chromium;
use crate::site::Site;

/// A console with something to look at, and a browser.
pub(crate) struct Ground {
    pub(crate) site: Site,
    pub(crate) chromium: Chromium,
    /// axe-core's file.
    pub(crate) axe: PathBuf,
}
