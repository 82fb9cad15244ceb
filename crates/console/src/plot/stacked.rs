//! Stacked areas, for values that add up; and ticks at the bottom for rare ones.

use maud::{Markup, html};

use super::axis::{HEIGHT, WIDTH, px, round_up};
use super::{Axis, Caption, Values};

/// Draws areas, the first at the bottom; missing values count as 0. `ticks`: drawn for each span with any, independent of the scale.
pub(crate) fn stacked_areas(caption: Caption, axis: Axis, series: &[Values], ticks: &Values) -> Markup {
    let spans = series.iter().map(|values| values.values.len()).max().unwrap_or(0);
    let value = |values: &Values, index: usize| values.values.get(index).copied().flatten().unwrap_or(0.0);
    let mut lower = vec![0.0; spans];
    let mut layers = Vec::new();
    for values in series {
        let upper: Vec<f64> = (0..spans).map(|index| lower[index] + value(values, index)).collect();
        layers.push((values, lower, upper.clone()));
        lower = upper;
    }
    let maximum = lower.iter().copied().fold(0.0, f64::max);
    let top = round_up(maximum);
    let levels: Vec<(f64, String)> =
        [0.0, 0.5, 1.0].into_iter().map(|share| (share, (caption.format)(share * top))).collect();
    let tooltip = |index: usize| {
        let all = series.iter().chain([ticks]);
        let parts = all.map(|values| format!("{} {}", values.name, (caption.format)(value(values, index))));
        Some(parts.collect::<Vec<_>>().join(", "))
    };
    let id = caption.id;
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby=(format!("{id}-title")) {
            title id=(format!("{id}-title")) { (caption.title) ": at most " ((caption.format)(maximum)) }
            defs { @for values in series { (pattern(id, values.style)) } }
            (axis.levels(&levels))
            @for (values, lower, upper) in &layers {
                @if upper.iter().zip(lower).any(|(upper, lower)| upper > lower) {
                    path class=(format!("area {}", values.style)) fill=(format!("url(#{id}-{})", values.style))
                        d=(area(axis, lower, upper, top)) {}
                    path class=(format!("edge {}", values.style)) d=(upper_edge(axis, lower, upper, top)) {}
                }
            }
            (tick_marks(axis, ticks))
            (axis.times())
            (axis.points(tooltip))
        }
    }
}

fn point(axis: Axis, index: usize, value: f64, top: f64) -> String {
    format!("{} {}", px(axis.middle(index)), px(axis.y(value / top)))
}

/// Returns the path data of a layer's upper edge. It has gaps where the layer is empty, since its edge would cover that of the layer below.
/// A single span is a short dash.
fn upper_edge(axis: Axis, lower: &[f64], upper: &[f64], top: f64) -> String {
    let is_visible = |index: usize| upper.get(index) > lower.get(index);
    let mut out = String::new();
    for (index, value) in upper.iter().enumerate().filter(|(index, _)| is_visible(*index)) {
        let is_open = index > 0 && is_visible(index - 1);
        if !is_open && !is_visible(index + 1) {
            let y = px(axis.y(value / top));
            out.push_str(&format!("M{} {y}L{} {y}", px(axis.x(index)), px(axis.x(index + 1))));
        } else {
            out.push_str(if is_open { "L" } else { "M" });
            out.push_str(&point(axis, index, *value, top));
        }
    }
    out
}

fn area(axis: Axis, lower: &[f64], upper: &[f64], top: f64) -> String {
    let upper_points = upper.iter().enumerate().map(|(index, value)| point(axis, index, *value, top));
    let lower_points = lower.iter().enumerate().rev().map(|(index, value)| point(axis, index, *value, top));
    format!("M{}Z", upper_points.chain(lower_points).collect::<Vec<_>>().join("L"))
}

/// Draws a tick for each span with any value; a taller one for ten times as many.
fn tick_marks(axis: Axis, values: &Values) -> Markup {
    let maximum = values.values.iter().flatten().copied().fold(0.0, f64::max);
    let known = values.values.iter().enumerate().filter_map(|(index, value)| Some((index, (*value)?)));
    html! {
        @for (index, value) in known.filter(|(_, value)| *value > 0.0) {
            @let height = 6.0 + 8.0 * (1.0 + (value / maximum).log10()).max(0.0);
            line class=(format!("tick {}", values.style)) x1=(px(axis.middle(index))) x2=(px(axis.middle(index)))
                y1=(px(axis.bottom())) y2=(px(axis.bottom() - height)) {}
        }
    }
}

/// Renders the fill of an area: colour and pattern, for users who can distinguish only one of them.
fn pattern(id: &str, style: &str) -> Markup {
    html! {
        pattern id=(format!("{id}-{style}")) class=(style) width="6" height="6" patternUnits="userSpaceOnUse" {
            rect.ground width="6" height="6" {}
            @match style {
                "duplicates" => path.mark d="M-1 1L1 -1M0 6L6 0M5 7L7 5" {},
                "retried" => circle.mark-dot cx="3" cy="3" r="1.2" {},
                _ => {}
            }
        }
    }
}
