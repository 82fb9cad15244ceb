//! Decides whether the database's clock is plausible before rows are deleted by it.

use std::time::Duration;

use oncely_postgres::ObservedClock;

/// Describes why nothing is deleted by this reading of the database's clock; `None` if the reading is plausible.
pub fn describe_clock_refusal(clock: &ObservedClock) -> Option<String> {
    if clock.explained {
        return None;
    }
    let time = |at: chrono::DateTime<chrono::Utc>| at.format("%Y-%m-%d %H:%M:%SZ").to_string();
    let whole =
        |duration: Duration| humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    let jump = (clock.at - clock.seen_at).to_std().unwrap_or_default();
    Some(format!(
        "the database's clock says {}, {} after {}, and nothing was decided for {} or more of that: a jump would make every key look \
         old, so nothing is deleted. If the clock is right (nothing ran for so long): `oncely gc run --accept-clock`. If it is \
         not: set it right",
        time(clock.at),
        whole(jump),
        time(clock.seen_at),
        whole(clock.bound)
    ))
}
