//! The write-ahead log (WAL) and its checkpoints: `pg.wal`.

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use super::words::format_size;
use oncely_postgres::{self as pg, WalActivity};
use oncely_process::preflight::CheckFindings;

const CHECK: &str = "pg.wal";

/// Runs the check of the WAL's settings.
pub(super) async fn run_checks(limits: &Limits, session: &mut CheckSession<'_>) {
    if let Some(activity) = query_or_skip!(session, CHECK, pg::read_wal_activity) {
        check_wal(&activity, limits, session.findings);
    }
}

/// Checks that checkpoints come in time, and that pages written whole are compressed where they are most of the WAL.
fn check_wal(activity: &WalActivity, limits: &Limits, findings: &mut CheckFindings) {
    let WalActivity { compression, max_size, checkpoint_timeout, bytes, page_bytes, seconds, .. } = activity;
    let (timed, requested) = (activity.timed_checkpoints, activity.requested_checkpoints);
    let since = activity.since.map_or_else(|| "the server's start".to_owned(), |since| since.to_rfc3339());
    let share = percent(*page_bytes, *bytes).min(100);
    findings.add_read(
        CHECK,
        format!(
            "wal_compression {compression}, max_wal_size {}, checkpoint_timeout {checkpoint_timeout}s; since {since}: {} of WAL, up to \
             {share} % of it pages written whole, {timed} checkpoints in time and {requested} requested",
            format_size(*max_size),
            format_size(*bytes)
        ),
    );
    if requested >= limits.requested_checkpoints && requested > timed {
        // PostgreSQL starts a checkpoint early enough to stay below max_wal_size until it ends: at about half of it.
        let wanted = size_in(*bytes, *seconds, *checkpoint_timeout).saturating_mul(2);
        let advice = match wanted > *max_size {
            true => format!("raise it to {} or more", format_size(wanted)),
            false => "raise it if that goes on".to_owned(),
        };
        let text = format!(
            "is {}: {requested} of {} checkpoints were requested, most often because it was reached, and not due by checkpoint_timeout \
             ({checkpoint_timeout}s). After each, every page that changes is written whole: {advice}, then begin to count anew (select \
             pg_stat_reset_shared('checkpointer'), and before PostgreSQL 17 'bgwriter')",
            format_size(*max_size),
            requested.saturating_add(timed)
        );
        findings.add_warning(CHECK, "max_wal_size", text);
    }
    if compression == "off" && *bytes > limits.wal_bytes && share >= 50 {
        let text = format!(
            "is off, and up to {share} % of the WAL ({} since {since}) is pages written whole: lz4 makes it smaller where the server has \
             it, else pglz",
            format_size(*bytes)
        );
        findings.add_info(CHECK, "wal_compression", text);
    }
}

/// Computes the share of a part in percent; 0 of nothing.
fn percent(part: i64, whole: i64) -> i64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// Computes the size that is written within a time, by the size that was written in `seconds`; 0 if these are fewer.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // shown with one decimal
fn size_in(bytes: i64, seconds: f64, time: i64) -> i64 {
    if seconds < time as f64 { 0 } else { (bytes as f64 / seconds * time as f64) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_rates_of_nothing_are_zero() {
        assert_eq!((percent(1, 0), percent(3, 4)), (0, 75));
        assert_eq!((size_in(1_000, 0.0, 300), size_in(1_000, 600.0, 300)), (0, 500));
    }
}
