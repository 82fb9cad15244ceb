//! Formats of numbers in columns.

use super::super::output::format_seconds;

/// An unknown value.
pub(super) const UNKNOWN_VALUE: &str = "–";

/// Formats a number as `1,204`.
pub(super) fn format_number(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Formats a count of the last minute as a rate per second: `0.3`, `7.5`, `3,110`.
pub(super) fn format_rate(per_minute: i64) -> String {
    let per_minute = u64::try_from(per_minute).unwrap_or(0);
    match per_minute {
        0 => "0".to_owned(),
        few if few < 600 => format!("{}.{}", few / 60, few % 60 * 10 / 60),
        many => format_number(many / 60),
    }
}

/// Formats a part of a whole in percent.
#[allow(clippy::cast_precision_loss)] // shown with one decimal
pub(super) fn format_percent(part: i64, whole: i64) -> String {
    if whole <= 0 { UNKNOWN_VALUE.to_owned() } else { format!("{:.1}", part as f64 * 100.0 / whole as f64) }
}

/// Formats a duration in seconds; an unknown one as [`UNKNOWN_VALUE`].
pub(super) fn format_duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| UNKNOWN_VALUE.to_owned(), format_seconds)
}

/// Draws a bar for each number, with the highest at full height.
pub(super) fn draw_sparkline(numbers: &[i64]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let maximum = numbers.iter().copied().max().unwrap_or(0).max(1);
    let height = |number: i64| usize::try_from(number.max(0) * 7 / maximum).unwrap_or(0);
    numbers.iter().map(|number| HEIGHTS[height(*number).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1_204, 1_000_000].map(format_number), ["0", "999", "1,204", "1,000,000"]);
        assert_eq!([0, 20, 450, 186_600].map(format_rate), ["0", "0.3", "7.5", "3,110"]);
        assert_eq!((format_percent(21, 1_000), format_percent(0, 0)), ("2.1".to_owned(), "–".to_owned()));
        assert_eq!(
            (format_duration(Some(0.031)), format_duration(None)),
            ("31 ms".to_owned(), "–".to_owned())
        );
    }

    #[test]
    fn a_sparkline_is_as_high_as_its_highest() {
        assert_eq!(draw_sparkline(&[0, 5, 10, 0, 10, 1]), "▁▄█▁█▁");
        assert_eq!(draw_sparkline(&[0; 6]), "▁▁▁▁▁▁");
    }
}
