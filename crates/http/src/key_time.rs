//! The creation time that a key carries.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use http::HeaderMap;
use uuid::Uuid;

use super::problem::{ProblemDetails, ProblemKind};

/// Header with the time of a key's first request: OASIS Repeatable Requests, section 6, as Azure implements it.
const FIRST_SENT: &str = "repeatability-first-sent";
/// Tolerated error of the clocks of clients and of this machine.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3_600);

/// Parses the time of a key: that of a UUIDv7 or of the header, the earlier one of both; `None` if neither exists. An invalid header is an
/// error.
pub(super) fn parse_key_time(
    headers: &HeaderMap,
    key: &str,
) -> Result<Option<DateTime<Utc>>, ProblemDetails> {
    let uuid_time = Uuid::parse_str(key).ok().filter(|uuid| uuid.get_version_num() == 7);
    let uuid_time = uuid_time.and_then(|uuid| {
        let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    });
    let mut values = headers.get_all(FIRST_SENT).iter();
    let header_time = match (values.next(), values.next()) {
        (None, _) => return Ok(uuid_time),
        (Some(value), None) => value.to_str().ok().and_then(parse_imf_fixdate),
        (Some(_), Some(_)) => None,
    };
    let invalid = || {
        let why = "Repeatability-First-Sent is one date, such as Tue, 01 Dec 2026 08:00:00 GMT";
        ProblemDetails::new(ProblemKind::KeyInvalid, why)
    };
    let header_time = header_time.ok_or_else(invalid)?;
    Ok(Some(uuid_time.map_or(header_time, |uuid_time| uuid_time.min(header_time))))
}

/// Parses an IMF-fixdate (RFC 9110, section 5.6.7), the only form that is still generated; `None` for any other text.
fn parse_imf_fixdate(text: &str) -> Option<DateTime<Utc>> {
    const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";
    let time = NaiveDateTime::parse_from_str(text, HTTP_DATE).ok()?.and_utc();
    // Refuses numbers without leading zeros and names in another case.
    (time.format(HTTP_DATE).to_string() == text).then_some(time)
}

/// Refuses a key that is older than the retention less [`CLOCK_TOLERANCE`], as it may have been forgotten, and one with a time in the
/// future, as its age is unknown.
pub(super) fn check_age(
    key_time: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    retention: Duration,
) -> Result<(), ProblemDetails> {
    let Some(key_time) = key_time else { return Ok(()) };
    let tolerance = TimeDelta::from_std(CLOCK_TOLERANCE).unwrap_or_default();
    let age = now.signed_duration_since(key_time);
    let max_age = TimeDelta::from_std(retention.saturating_sub(CLOCK_TOLERANCE)).unwrap_or(TimeDelta::MAX);
    if age > max_age {
        let hours = max_age.num_hours();
        let detail = format!(
            "Keys are remembered for {hours} hours, and this one is older: it is unknown whether it took effect, and nothing ran"
        );
        return Err(ProblemDetails::new(ProblemKind::KeyTooOld, detail));
    }
    if -age > tolerance {
        return Err(ProblemDetails::new(
            ProblemKind::KeyInvalid,
            "The time of the key is more than an hour ahead",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FIRST_SENT, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_key_tells_its_time_by_itself_or_by_a_header() {
        // 2022-02-22T19:22:22Z: RFC 9562, A.6.
        let seven = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";
        let parse = |values: &[&str], key: &str| {
            parse_key_time(&headers(values), key).map_err(|problem| problem.kind)
        };
        assert_eq!(parse(&[], seven), Ok(Some(at("2022-02-22T19:22:22Z"))));
        assert_eq!(parse(&[], "017F22E279B07CC398C4DC0C0C07398F"), Ok(Some(at("2022-02-22T19:22:22Z"))));
        assert_eq!(parse(&[], "919108f7-52d1-4320-9bac-f847db4148a8"), Ok(None), "version 4");
        assert_eq!(parse(&[], "order 7"), Ok(None));
        let day = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(parse(&[day], "order 7"), Ok(Some(at("1994-11-06T08:49:37Z"))));
        assert_eq!(parse(&[day], seven), Ok(Some(at("1994-11-06T08:49:37Z"))), "the earlier one");
        let later = "Sat, 01 Jan 2050 00:00:00 GMT";
        assert_eq!(parse(&[later], seven), Ok(Some(at("2022-02-22T19:22:22Z"))), "the earlier one");
        for wrong in
            ["Mon, 06 Nov 1994 08:49:37 GMT", "Sun, 6 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z", ""]
        {
            assert_eq!(parse(&[wrong], "order 7"), Err(ProblemKind::KeyInvalid), "{wrong:?}");
        }
        assert_eq!(parse(&[day, day], "order 7"), Err(ProblemKind::KeyInvalid), "twice");
    }

    #[test]
    fn what_may_have_been_forgotten_is_refused_and_so_is_what_is_ahead() {
        let now = at("2026-12-08T12:00:00Z");
        let check = |key_time: &str| check_age(Some(at(key_time)), now, WEEK).map_err(|problem| problem.kind);
        assert_eq!(check("2026-12-08T12:00:00Z"), Ok(()));
        assert_eq!(check("2026-12-08T13:00:00Z"), Ok(()));
        assert_eq!(check("2026-12-08T13:00:01Z"), Err(ProblemKind::KeyInvalid));
        assert_eq!(check("2026-12-01T13:00:00Z"), Ok(()));
        assert_eq!(
            check("2026-12-01T12:59:59Z"),
            Err(ProblemKind::KeyTooOld),
            "an hour before it is forgotten"
        );
        assert!(check_age(None, now, WEEK).is_ok());
    }
}
