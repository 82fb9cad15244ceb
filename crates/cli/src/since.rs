//! `--since` and `--until`.

use chrono::{DateTime, Utc};

use oncely_core::units;

/// Reads a point in time, as [`units::since`] does.
pub(super) fn parse(text: &str) -> Result<DateTime<Utc>, String> {
    units::since(text, Utc::now())
}
