//! Formats of sizes and durations.

use std::time::Duration;

use chrono::TimeDelta;

/// Formats a duration in whole seconds, or milliseconds if it is shorter: `3h 2m`, `15ms`.
pub(super) fn format_duration(duration: Duration) -> String {
    let rounded = match duration.as_secs() {
        0 => Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(0)),
        seconds => Duration::from_secs(seconds),
    };
    let text = humantime::format_duration(rounded).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Formats a difference of times; a negative one is zero.
pub(super) fn format_delta(difference: TimeDelta) -> String {
    format_duration(difference.to_std().unwrap_or_default())
}

/// Formats a size, such as `1.5 GiB`.
pub(super) fn format_size(count: i64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let mut amount = count as f64;
    for unit in ["B", "KiB", "MiB"] {
        if amount < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{amount:.1} {unit}") };
        }
        amount /= 1024.0;
    }
    format!("{amount:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_are_short() {
        assert_eq!(format_duration(Duration::from_millis(1_500)), "1s");
        assert_eq!(format_duration(Duration::from_millis(15)), "15ms");
        assert_eq!(format_delta(TimeDelta::seconds(3 * 3_600 + 125)), "3h 2m");
        assert_eq!(format_delta(TimeDelta::seconds(-5)), "0s");
        assert_eq!((format_size(999), format_size(3 << 29)), ("999 B".to_owned(), "1.5 GiB".to_owned()));
    }
}
