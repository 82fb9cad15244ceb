//! Times as stored: microseconds; points in time since 1970.

use std::time::Duration;

/// Converts a duration to microseconds; one that is too long to the maximum.
#[doc(hidden)]
pub fn to_micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Converts microseconds to a duration; a negative number to zero.
pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
