//! Horizontal bars, one or several parts each.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A figure.
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Names of the colours.
    pub(crate) series: Vec<String>,
    pub(crate) rows: Vec<Row>,
    /// A line across at this value.
    pub(crate) mark: Option<f64>,
}

pub(crate) struct Row {
    pub(crate) label: String,
    /// Series and length, left to right.
    pub(crate) parts: Vec<(usize, f64)>,
    /// Written behind the bar.
    pub(crate) note: String,
}

pub(crate) const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(214, 39, 40), RGBColor(148, 148, 148)];
const WIDTH: i32 = 900;
const LEFT: i32 = 200;
const RIGHT: i32 = 170;
const TOP: i32 = 70;
const STEP: i32 = 24;
const BAR: i32 = 16;
pub(crate) const INK: RGBColor = RGBColor(40, 40, 40);

impl Bars {
    pub(crate) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        let rows = i32::try_from(self.rows.len())?;
        let height = TOP + rows * STEP + 20;
        let area = SVGBackend::new(path, (WIDTH.unsigned_abs(), height.unsigned_abs())).into_drawing_area();
        // A page may be dark.
        area.fill(&WHITE)?;
        let text = |size: i32| ("sans-serif", size).into_font().color(&INK);
        let left = |size: i32| text(size).pos(Pos::new(HPos::Left, VPos::Center));
        let right = |size: i32| text(size).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(self.title.clone(), (20, 22), left(17)))?;
        let mut x = LEFT;
        for (name, colour) in self.series.iter().zip(COLOURS) {
            area.draw(&Rectangle::new([(x, 42), (x + 12, 54)], colour.filled()))?;
            area.draw(&Text::new(name.clone(), (x + 18, 48), left(13)))?;
            x += 40 + 8 * i32::try_from(name.chars().count())?;
        }
        let lengths = self.rows.iter().map(|row| row.parts.iter().map(|(_, length)| length).sum::<f64>());
        let longest = lengths.chain(self.mark).fold(f64::MIN_POSITIVE, f64::max);
        let scale = |length: f64| LEFT + (length / longest * f64::from(WIDTH - LEFT - RIGHT)).round() as i32;
        for (row, y) in self.rows.iter().zip((TOP..).step_by(STEP.unsigned_abs() as usize)) {
            let mut end = 0.0;
            for (series, length) in &row.parts {
                let colour = COLOURS.get(*series).copied().unwrap_or(INK);
                let corners = [(scale(end), y), (scale(end + length), y + BAR)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                end += length;
            }
            area.draw(&Text::new(row.label.clone(), (LEFT - 8, y + BAR / 2), right(13)))?;
            area.draw(&Text::new(row.note.clone(), (scale(end) + 6, y + BAR / 2), left(13)))?;
        }
        if let Some(mark) = self.mark {
            let line = vec![(scale(mark), TOP - 6), (scale(mark), TOP + rows * STEP)];
            area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        }
        area.present()?;
        Ok(())
    }
}

/// With as many digits as mean something.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
