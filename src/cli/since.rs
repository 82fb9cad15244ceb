//! `--since` and `--until`: `15m`, `2h`, `7d`, `2026-09-01`, `2026-09-01T10:00Z`, `yesterday`.

use chrono::{DateTime, Days, Local, NaiveDate, NaiveDateTime, TimeZone as _, Utc};

/// Reads a point in time; a date without an offset is local.
pub(super) fn parse(text: &str) -> Result<DateTime<Utc>, String> {
    at(text, Utc::now())
}

fn at(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    let local = |naive: NaiveDateTime| {
        Local.from_local_datetime(&naive).earliest().map(|time| time.with_timezone(&Utc))
    };
    let midnight = |date: NaiveDate| date.and_hms_opt(0, 0, 0).and_then(local);
    let today = now.with_timezone(&Local).date_naive();
    let found = match text {
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
    found
        .ok_or_else(|| "not a time; write 15m, 2h, 7d, yesterday, 2026-09-01 or 2026-09-01T10:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_dates_and_instants_are_understood() {
        let now: DateTime<Utc> = "2026-11-20T12:00:00Z".parse().unwrap();
        let of = |text: &str| at(text, now).unwrap();
        assert_eq!(of("15m"), "2026-11-20T11:45:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("7d"), "2026-11-13T12:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("2026-09-01T10:00Z"), "2026-09-01T10:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(of("2026-09-01T10:00:00+02:00"), "2026-09-01T08:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert!(of("2026-09-01") < of("2026-09-02"));
        assert!(of("yesterday") < of("today"));
        assert!(at("soon", now).is_err());
    }
}
