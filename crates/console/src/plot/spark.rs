//! A sparkline of bars beside a number.

use maud::{Markup, html};

use super::axis::px;

/// Height of a sparkline.
const HEIGHT: f64 = 16.0;
/// Width of a bar, including its gap.
const BAR_STEP: f64 = 3.0;

/// Draws the values, the newest at the right. `name` describes them.
#[allow(clippy::cast_precision_loss)] // a few dozen
pub(crate) fn spark(name: &str, style: &str, values: &[f64]) -> Markup {
    let maximum = values.iter().copied().fold(0.0, f64::max);
    let width = BAR_STEP * values.len().max(1) as f64;
    let height =
        |value: f64| if maximum > 0.0 && value > 0.0 { (HEIGHT * value / maximum).max(1.0) } else { 0.0 };
    html! {
        svg class=(format!("spark {style}")) viewBox=(format!("0 0 {} {}", px(width), px(HEIGHT))) width=(px(width)) height=(px(HEIGHT)) role="img"
            aria-label=(format!("{name} over the last minutes")) {
            line x1="0" x2=(px(width)) y1=(px(HEIGHT - 0.5)) y2=(px(HEIGHT - 0.5)) {}
            @for (index, value) in values.iter().enumerate() {
                @let height = height(*value);
                @if height > 0.0 {
                    rect x=(px(index as f64 * BAR_STEP)) y=(px(HEIGHT - height)) width=(px(BAR_STEP - 1.0)) height=(px(height)) {}
                }
            }
        }
    }
}
