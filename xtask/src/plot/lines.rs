//! Lines over the minutes of a run: small panels, two a row.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::bars::{COLOURS, INK};

/// A figure.
pub(crate) struct Panels {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
}

/// Lines with a common vertical axis, which begins at 0.
pub(crate) struct Panel {
    /// With the unit.
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

pub(crate) struct Line {
    /// Shown where the panel has several.
    pub(crate) name: String,
    /// Minute and value.
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: i32 = 900;
const TOP: i32 = 50;
/// Width and height of a panel, and the space in it that is not for lines.
const PANEL: (i32, i32) = (440, 210);
const LEFT: i32 = 66;
const RIGHT: i32 = 14;
const ABOVE: i32 = 46;
const BELOW: i32 = 38;
/// Steps of an axis, about.
const STEPS: f64 = 4.0;
const GRID: RGBColor = RGBColor(225, 225, 225);

impl Panels {
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        let rows = i32::try_from(self.panels.len().div_ceil(2))?;
        let size = (WIDTH.unsigned_abs(), (TOP + rows * PANEL.1).unsigned_abs());
        let area = SVGBackend::new(path, size).into_drawing_area();
        // A page may be dark.
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title.clone(), (20, 22), style(17, HPos::Left)))?;
        for (number, panel) in (0..).zip(&self.panels) {
            panel.draw(&area, (10 + number % 2 * PANEL.0, TOP + number / 2 * PANEL.1))?;
        }
        area.present()?;
        Ok(())
    }
}

impl Panel {
    fn draw<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
        (x, y): (i32, i32),
    ) -> anyhow::Result<()>
    where
        <SVGBackend<'a> as DrawingBackend>::ErrorType: 'static,
    {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let step = step(points().map(|point| point.1).fold(0.0, f64::max));
        let top = (points().map(|point| point.1).fold(0.0, f64::max) / step).ceil().max(1.0) * step;
        let minutes = points().map(|point| point.0).fold(1.0, f64::max);
        let (left, right) = (x + LEFT, x + PANEL.0 - RIGHT);
        let (ceiling, floor) = (y + ABOVE, y + PANEL.1 - BELOW);
        let across = |minute: f64| left + (minute / minutes * f64::from(right - left)).round() as i32;
        let up = |value: f64| floor - (value / top * f64::from(floor - ceiling)).round() as i32;
        area.draw(&Text::new(self.title.clone(), (left, y + 12), style(14, HPos::Left)))?;
        for tick in ticks(step, top) {
            let level = up(tick);
            area.draw(&PathElement::new(vec![(left, level), (right, level)], GRID.stroke_width(1)))?;
            area.draw(&Text::new(label(tick, step), (left - 6, level), style(12, HPos::Right)))?;
        }
        let every = self::step(minutes).max(1.0);
        for tick in ticks(every, minutes) {
            let at = across(tick);
            area.draw(&PathElement::new(vec![(at, floor), (at, floor + 4)], INK.stroke_width(1)))?;
            area.draw(&Text::new(label(tick, every), (at, floor + 13), style(12, HPos::Center)))?;
        }
        area.draw(&Text::new("minutes", (right, floor + 28), style(12, HPos::Right)))?;
        area.draw(&PathElement::new(vec![(left, floor), (right, floor)], INK.stroke_width(1)))?;
        let mut legend = left;
        for (line, colour) in self.lines.iter().zip(COLOURS) {
            let places: Vec<_> =
                line.points.iter().map(|(minute, value)| (across(*minute), up(*value))).collect();
            area.draw(&PathElement::new(places, colour.stroke_width(2)))?;
            if self.lines.len() > 1 {
                area.draw(&Rectangle::new([(legend, y + 25), (legend + 10, y + 35)], colour.filled()))?;
                area.draw(&Text::new(line.name.clone(), (legend + 15, y + 30), style(12, HPos::Left)))?;
                legend += 32 + 7 * i32::try_from(line.name.chars().count())?;
            }
        }
        Ok(())
    }
}

fn style(size: i32, side: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(side, VPos::Center))
}

/// The step of an axis to this value: 1, 2 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let wanted = most.max(f64::MIN_POSITIVE) / STEPS;
    let power = 10_f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= wanted)
        .unwrap_or(wanted)
}

fn ticks(step: f64, most: f64) -> impl Iterator<Item = f64> {
    (0..=(most / step + 1e-6) as u32).map(move |number| f64::from(number) * step)
}

/// With as many digits as the step has.
fn label(value: f64, step: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if step >= 100_000.0 => format!("{} M", value / 1e6),
        value => format!("{value:.*}", (-step.log10().floor()).max(0.0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_steps() {
        assert_eq!([step(60.0), step(9.0), step(1.0)], [20.0, 5.0, 0.5]);
        assert_eq!(ticks(0.5, 1.0).collect::<Vec<_>>(), [0.0, 0.5, 1.0]);
        assert_eq!(label(1_500_000.0, 500_000.0), "1.5 M");
        assert_eq!(label(0.5, 0.5), "0.5");
        assert_eq!(label(40.0, 20.0), "40");
    }
}
