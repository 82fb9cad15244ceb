//! Areas on top of each other: what adds up.

use maud::{Markup, html};

use super::axis::{HEIGHT, WIDTH, px, round_up};
use super::{Axis, Caption, Values};

/// Draws them, the first at the bottom. What is missing counts as nothing.
pub(crate) fn stacked(caption: Caption, axis: Axis, series: &[Values]) -> Markup {
    let spans = series.iter().map(|values| values.values.len()).max().unwrap_or(0);
    let value = |values: &Values, index: usize| values.values.get(index).copied().flatten().unwrap_or(0.0);
    let mut lower = vec![0.0; spans];
    let mut layers = Vec::new();
    for values in series {
        let upper: Vec<f64> = (0..spans).map(|index| lower[index] + value(values, index)).collect();
        layers.push((values, lower, upper.clone()));
        lower = upper;
    }
    let most = lower.iter().copied().fold(0.0, f64::max);
    let top = round_up(most);
    let levels: Vec<(f64, String)> =
        [0.0, 0.5, 1.0].into_iter().map(|share| (share, (caption.written)(share * top))).collect();
    let told = |index: usize| {
        let parts = series.iter().map(|values| format!("{} {}", values.name, (caption.written)(value(values, index))));
        Some(parts.collect::<Vec<_>>().join(", "))
    };
    let id = caption.id;
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby=(format!("{id}-title")) {
            title id=(format!("{id}-title")) { (caption.title) ": at most " (caption.written)(most) }
            defs { @for values in series { (pattern(id, values.style)) } }
            (axis.levels(&levels))
            @for (values, lower, upper) in &layers {
                @if upper.iter().zip(lower).any(|(upper, lower)| upper > lower) {
                    path class=(format!("area {}", values.style)) fill=(format!("url(#{id}-{})", values.style))
                        d=(area(axis, lower, upper, top)) {}
                    path class=(format!("edge {}", values.style)) d=(edge(axis, upper, top)) {}
                }
            }
            (axis.times())
            (axis.points(told))
        }
    }
}

fn point(axis: Axis, index: usize, value: f64, top: f64) -> String {
    format!("{} {}", px(axis.middle(index)), px(axis.y(value / top)))
}

fn edge(axis: Axis, values: &[f64], top: f64) -> String {
    let points: Vec<String> =
        values.iter().enumerate().map(|(index, value)| point(axis, index, *value, top)).collect();
    format!("M{}", points.join("L"))
}

fn area(axis: Axis, lower: &[f64], upper: &[f64], top: f64) -> String {
    let back: Vec<String> =
        lower.iter().enumerate().rev().map(|(index, value)| point(axis, index, *value, top)).collect();
    format!("{}L{}Z", edge(axis, upper, top), back.join("L"))
}

/// What fills an area: colour and pattern, for whoever sees only one of them.
pub(super) fn pattern(id: &str, style: &str) -> Markup {
    html! {
        pattern id=(format!("{id}-{style}")) class=(style) width="6" height="6" patternUnits="userSpaceOnUse" {
            rect.ground width="6" height="6" {}
            @match style {
                "duplicates" => path.mark d="M-1 1L1 -1M0 6L6 0M5 7L7 5" {},
                "retried" => circle.mark-dot cx="3" cy="3" r="1.2" {},
                "dead" => path.mark d="M0 0L6 6M6 0L0 6" {},
                _ => {}
            }
        }
    }
}
