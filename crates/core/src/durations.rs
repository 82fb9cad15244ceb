//! Durations, counted in buckets.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds: those of OpenTelemetry's semantic conventions for `messaging.process.duration`, extended below
/// and above for the commit of a batch and for slow handlers. A further bucket holds longer durations.
pub const BUCKET_BOUNDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
];

/// Number of buckets.
pub const BUCKET_COUNT: usize = BUCKET_BOUNDS.len() + 1;

/// Returns the position of the bucket that counts a duration, below [`BUCKET_COUNT`].
#[must_use]
pub fn bucket(duration: Duration) -> usize {
    let seconds = duration.as_secs_f64();
    BUCKET_BOUNDS.partition_point(|bound| *bound < seconds)
}

/// Returns the duration in seconds that a `share` (0 to 1) of all counted ones does not exceed, interpolated within its bucket; `None` if
/// nothing is counted. Durations over the last bound count as that bound.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub fn quantile(counts: &[i64], share: f64) -> Option<f64> {
    let total: i64 = counts.iter().sum();
    if total <= 0 {
        return None;
    }
    let rank = share.clamp(0.0, 1.0) * total as f64;
    let mut cumulative = 0.0;
    for (bucket, count) in counts.iter().enumerate() {
        let count = *count as f64;
        if cumulative + count >= rank && count > 0.0 {
            let lower =
                bucket.checked_sub(1).map_or(0.0, |below| BUCKET_BOUNDS[below.min(BUCKET_BOUNDS.len() - 1)]);
            let upper = BUCKET_BOUNDS.get(bucket).copied().unwrap_or(lower);
            return Some(lower + (upper - lower) * ((rank - cumulative) / count).clamp(0.0, 1.0));
        }
        cumulative += count;
    }
    BUCKET_BOUNDS.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::from_micros(500)), 0);
        assert_eq!(bucket(Duration::from_micros(501)), 1);
        assert_eq!(bucket(Duration::from_secs(60)), 18);
        assert_eq!(bucket(Duration::from_secs(61)), 19);
    }

    #[test]
    fn quantiles_are_interpolated() {
        let mut counts = vec![0; BUCKET_COUNT];
        assert_eq!(quantile(&counts, 0.5), None);
        counts[4] = 100;
        let median = quantile(&counts, 0.5).unwrap();
        assert!((median - 0.0075).abs() < 1e-9, "{median}");
        assert_eq!(quantile(&counts, 1.0), Some(0.01));
        counts[BUCKET_COUNT - 1] = 1_000;
        assert_eq!(quantile(&counts, 0.99), Some(60.0));
    }
}
