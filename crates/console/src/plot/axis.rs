//! Coordinates of a plot.

use chrono::{DateTime, SecondsFormat, Utc};
use maud::{Markup, html};

use super::super::series::Series;

/// Size of every plot in its own units; browsers scale it.
pub(super) const WIDTH: f64 = 440.0;
pub(super) const HEIGHT: f64 = 176.0;
const LEFT_MARGIN: f64 = 48.0;
const RIGHT_MARGIN: f64 = 8.0;
const TOP_MARGIN: f64 = 10.0;
const BOTTOM_MARGIN: f64 = 22.0;

/// The time axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    since: i64,
    until: i64,
    width: i64,
}

/// Possible steps between labels, in seconds.
const LABEL_STEPS: [i64; 9] = [60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 172_800];
/// Maximum number of labels.
const MAX_LABELS: i64 = 5;

impl Axis {
    pub(crate) fn from_series(series: &Series) -> Self {
        Self { since: series.since, until: series.until, width: series.width }
    }

    pub(super) fn bottom(self) -> f64 {
        HEIGHT - BOTTOM_MARGIN
    }

    /// Returns the position of the beginning of a span.
    #[allow(clippy::cast_precision_loss)] // a few hundred
    pub(super) fn x(self, index: usize) -> f64 {
        let spans = ((self.until - self.since) / self.width).max(1) as f64;
        LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * index as f64 / spans
    }

    /// Returns the position of the middle of a span.
    pub(super) fn middle(self, index: usize) -> f64 {
        (self.x(index) + self.x(index + 1)) / 2.0
    }

    /// Returns the position of a share of the height.
    pub(super) fn y(self, share: f64) -> f64 {
        HEIGHT - BOTTOM_MARGIN - (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN) * share.clamp(0.0, 1.0)
    }

    pub(crate) fn time(self, index: usize) -> DateTime<Utc> {
        let seconds = self.since + self.width * i64::try_from(index).unwrap_or(0);
        DateTime::from_timestamp(seconds, 0).unwrap_or_default()
    }

    /// Renders the labels.
    pub(super) fn times(self) -> Markup {
        let length = self.until - self.since;
        let step = LABEL_STEPS.into_iter().find(|step| length / step <= MAX_LABELS).unwrap_or(length.max(1));
        let days = step >= 86_400;
        let first = self.since.div_euclid(step) * step + step;
        let times: Vec<i64> = (0..).map(|n| first + n * step).take_while(|at| *at < self.until).collect();
        html! {
            g.times {
                @for seconds in times {
                    @let at = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
                    @let x = self.position(seconds);
                    line x1=(px(x)) x2=(px(x)) y1=(px(self.bottom())) y2=(px(self.bottom() + 3.0)) {}
                    text x=(px(x)) y=(px(HEIGHT - 6.0)) text-anchor="middle"
                        data-time=(at.to_rfc3339_opts(SecondsFormat::Secs, true)) data-form=(if days { "day" } else { "minute" }) {
                        (if days { at.format("%d %b") } else { at.format("%H:%M") })
                    }
                }
            }
        }
    }

    /// Returns the horizontal position of a time in seconds since 1970.
    #[allow(clippy::cast_precision_loss)] // seconds of a week
    fn position(self, seconds: i64) -> f64 {
        let share = (seconds - self.since) as f64 / (self.until - self.since).max(1) as f64;
        LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * share
    }

    /// Renders horizontal lines with labels.
    pub(super) fn levels(self, levels: &[(f64, String)]) -> Markup {
        html! {
            g.levels {
                @for (share, label) in levels {
                    @let y = self.y(*share);
                    line x1=(px(LEFT_MARGIN)) x2=(px(WIDTH - RIGHT_MARGIN)) y1=(px(y)) y2=(px(y)) {}
                    text x=(px(LEFT_MARGIN - 6.0)) y=(px(y + 4.0)) text-anchor="end" { (label) }
                }
            }
        }
    }

    /// Renders the spans' areas with their tooltips; `tooltip` returns the text of a span.
    pub(super) fn points(self, tooltip: impl Fn(usize) -> Option<String>) -> Markup {
        let spans = usize::try_from((self.until - self.since) / self.width).unwrap_or(0);
        html! {
            g.points {
                @for index in 0..spans {
                    @if let Some(tooltip) = tooltip(index) {
                        rect x=(px(self.x(index))) y=(px(TOP_MARGIN)) width=(px(self.x(index + 1) - self.x(index))) height=(px(HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)) {
                            title { (self.time(index).format("%Y-%m-%d %H:%M:%SZ")) ": " (tooltip) }
                        }
                    }
                }
            }
        }
    }
}

/// Formats a coordinate.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Returns the smallest round number that is not below a value: 1, 2 or 5 times a power of ten.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let rounds = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
    rounds.into_iter().find(|round| *round >= value * (1.0 - 1e-9)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_a_plot_is_a_round_number() {
        for (value, round) in
            [(0.0, 1.0), (1.0, 1.0), (1.01, 2.0), (3_120.0, 5_000.0), (0.03, 0.05), (9_999.0, 10_000.0)]
        {
            assert!((round_up(value) - round).abs() < 1e-9, "{value}: {}", round_up(value));
        }
    }
}
