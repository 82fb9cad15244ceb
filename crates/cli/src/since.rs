//! `--since` and `--until`.

use chrono::{DateTime, Utc};

use oncely_core::units;

/// Parses a point in time like [`units::parse_time`], relative to the current time.
pub(super) fn parse(text: &str) -> Result<DateTime<Utc>, String> {
    units::parse_time(text, Utc::now())
}
