//! Plots as SVG: text that is drawn here, read by people, and looked at by no script.

mod axis;
mod lines;
mod spark;
mod stacked;

pub(crate) use axis::Axis;
pub(crate) use lines::lines;
pub(crate) use spark::spark;
pub(crate) use stacked::stacked;

/// Values over time, with the style of the stylesheet that tells them apart in colour, in pattern or dash, and in name.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) name: &'static str,
    pub(crate) style: &'static str,
    pub(crate) values: Vec<Option<f64>>,
}

/// What a plot is called, and how its values are written.
#[derive(Clone, Copy)]
pub(crate) struct Caption {
    /// Unique on its page.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) written: fn(f64) -> String,
}
