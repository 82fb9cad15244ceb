//! Lines on a logarithmic scale, for values of several orders of magnitude.

use maud::{Markup, html};

use super::axis::{HEIGHT, WIDTH, px};
use super::{Axis, Caption, Values};

/// Draws lines, with gaps for unknown values. `floor`: the start of the scale; smaller values are drawn at the bottom.
pub(crate) fn lines(caption: Caption, axis: Axis, series: &[Values], floor: f64) -> Markup {
    let known_values = || series.iter().flat_map(|values| values.values.iter().flatten().copied());
    let maximum = known_values().fold(floor * 10.0, f64::max);
    let low = floor.log10().floor();
    let high = maximum.log10().ceil().max(low + 1.0);
    let share = |value: f64| (value.max(floor).log10() - low) / (high - low);
    let mut levels = Vec::new();
    let mut power = low;
    // At most four lines: every second power of ten if there are more.
    let step = ((high - low) / 4.0).ceil().max(1.0);
    while power <= high + 0.5 {
        levels.push(((power - low) / (high - low), (caption.format)(10_f64.powf(power))));
        power += step;
    }
    let tooltip = |index: usize| {
        let parts: Vec<String> = series
            .iter()
            .filter_map(|values| {
                let value = values.values.get(index).copied().flatten()?;
                Some(format!("{} {}", values.name, (caption.format)(value)))
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    };
    let id = caption.id;
    let largest = known_values().fold(0.0, f64::max);
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-labelledby=(format!("{id}-title")) {
            title id=(format!("{id}-title")) { (caption.title) ": at most " ((caption.format)(largest)) }
            (axis.levels(&levels))
            @for values in series {
                path class=(format!("line {}", values.style)) d=(path(axis, &values.values, share)) {}
            }
            (axis.times())
            (axis.points(tooltip))
        }
    }
}

/// Returns the path data of the runs of known values; a single value is a short dash.
fn path(axis: Axis, values: &[Option<f64>], share: impl Fn(f64) -> f64) -> String {
    let mut out = String::new();
    let mut is_open = false;
    for (index, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_open = false;
            continue;
        };
        let y = px(axis.y(share(*value)));
        let is_alone = !is_open && values.get(index + 1).is_none_or(Option::is_none);
        if is_alone {
            out.push_str(&format!("M{} {y}L{} {y}", px(axis.x(index)), px(axis.x(index + 1))));
        } else {
            out.push_str(&format!("{}{} {y}", if is_open { "L" } else { "M" }, px(axis.middle(index))));
        }
        is_open = true;
    }
    out
}
