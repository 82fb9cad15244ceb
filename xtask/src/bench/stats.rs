//! Medians.

/// The middle of some values; of two middles, their mean.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len().is_multiple_of(2)) {
        (None, _) => 0.0,
        (Some(high), false) => *high,
        (Some(high), true) => (sorted.get(middle - 1).unwrap_or(high) + high) / 2.0,
    }
}

/// The value that so much (0 to 1) of the others are not above.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil().max(1.0) as usize - 1;
    sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// Least and most.
pub(crate) fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(*value), most.max(*value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_are_of_sorted_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), 99.0);
        assert_eq!(percentile(&hundred, 1.0), 100.0);
        assert_eq!(spread(&hundred), (1.0, 100.0));
    }
}
