//! Times, ages, sizes and counts in readable form.

use chrono::{DateTime, Days, Local, NaiveDate, NaiveDateTime, TimeZone as _, Utc};

/// Format of times: local with their offset, or UTC.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    #[doc(hidden)]
    pub utc: bool,
}

impl Times {
    /// Formats the time of day, to the second.
    pub fn format_time_of_day(self, time: DateTime<Utc>) -> String {
        if self.utc {
            time.format("%H:%M:%SZ").to_string()
        } else {
            time.with_timezone(&Local).format("%H:%M:%S").to_string()
        }
    }

    /// Formats a date and time, to the millisecond.
    #[doc(hidden)]
    pub fn format_time(self, time: DateTime<Utc>) -> String {
        if self.utc {
            time.format("%Y-%m-%d %H:%M:%S%.3fZ").to_string()
        } else {
            time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S%.3f %:z").to_string()
        }
    }
}

/// Formats 1,234,567 bytes as `1.2 MB`.
pub fn format_bytes(count: i64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let mut amount = count as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if amount < 1_000.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{amount:.1} {unit}") };
        }
        amount /= 1_000.0;
    }
    format!("{amount:.1} TB")
}

/// Formats a count with its noun: `1 message`, `2 messages`.
pub fn format_count(count: impl TryInto<i128>, noun: &str) -> String {
    // Every integer here fits.
    let count = count.try_into().unwrap_or(i128::MAX);
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats seconds for a narrow column: `0.4 ms`, `31 ms`, `2.5 s`, `75 s`.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        short if short < 0.001 => format!("{:.1} ms", short * 1_000.0),
        short if short < 1.0 => format!("{:.0} ms", short * 1_000.0),
        short if short < 10.0 => format!("{short:.1} s"),
        long => format!("{long:.0} s"),
    }
}

/// Formats an age in its two largest units: `41s`, `6m 12s`, `3days 4h`.
pub fn format_age(from: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = u64::try_from((now - from).num_seconds()).unwrap_or(0);
    let text = humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Parses a point in time: `15m`, `2h`, `7d` (before `now`), `2026-09-01`, `2026-09-01T10:00Z`, `yesterday`. Without an
/// offset a date is local.
///
/// # Errors
/// If the text has none of these forms: a description of them.
pub fn parse_time(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    let local = |naive: NaiveDateTime| {
        Local.from_local_datetime(&naive).earliest().map(|time| time.with_timezone(&Utc))
    };
    let midnight = |date: NaiveDate| date.and_hms_opt(0, 0, 0).and_then(local);
    let today = now.with_timezone(&Local).date_naive();
    let time = match text {
        "today" => midnight(today),
        "yesterday" => today.checked_sub_days(Days::new(1)).and_then(midnight),
        _ => humantime::parse_duration(text)
            .ok()
            .and_then(|ago| now.checked_sub_signed(chrono::Duration::from_std(ago).ok()?))
            .or_else(|| DateTime::parse_from_rfc3339(text).ok().map(|time| time.with_timezone(&Utc)))
            .or_else(|| {
                let time = NaiveDateTime::parse_from_str(text.strip_suffix('Z')?, "%Y-%m-%dT%H:%M").ok()?;
                Some(time.and_utc())
            })
            .or_else(|| {
                ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
                    .iter()
                    .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
                    .and_then(local)
            })
            .or_else(|| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(midnight)),
    };
    time.ok_or_else(|| "not a time; write 15m, 2h, 7d, yesterday, 2026-09-01 or 2026-09-01T10:00Z".to_owned())
}

/// Returns the sum of counts from other processes, or the maximum of the type.
pub fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_short() {
        assert_eq!(format_bytes(999), "999 B");
        assert_eq!(format_bytes(1_250_000), "1.2 MB");
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        assert_eq!(format_age(at(0), at(372)), "6m 12s");
        assert_eq!(format_age(at(10), at(0)), "0s");
        assert_eq!([format_count(1, "message"), format_count(0, "message")], ["1 message", "0 messages"]);
    }

    #[test]
    fn ages_dates_and_instants_are_understood() {
        let now: DateTime<Utc> = "2026-11-20T12:00:00Z".parse().unwrap();
        let of = |text: &str| parse_time(text, now).unwrap();
        assert_eq!(of("15m"), "2026-11-20T11:45:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("7d"), "2026-11-13T12:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("2026-09-01T10:00Z"), "2026-09-01T10:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("2026-09-01T10:00:00+02:00"), "2026-09-01T08:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert!(of("2026-09-01") < of("2026-09-02"));
        assert!(of("yesterday") < of("today"));
        assert!(parse_time("soon", now).is_err());
    }
}
