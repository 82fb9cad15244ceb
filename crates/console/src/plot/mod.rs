//! Plots as SVG, rendered as text, without scripts.

mod axis;
mod lines;
mod spark;
mod stacked;

pub(crate) use axis::Axis;
pub(crate) use lines::lines;
pub(crate) use spark::spark;
pub(crate) use stacked::stacked_areas;

/// Values over time. Their style in the stylesheet distinguishes them by colour, pattern or dash, and name.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) name: &'static str,
    pub(crate) style: &'static str,
    pub(crate) values: Vec<Option<f64>>,
}

/// Name of a plot, and the format of its values.
#[derive(Clone, Copy)]
pub(crate) struct Caption {
    /// Unique on its page.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) format: fn(f64) -> String,
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::super::html::{format_duration, format_rate};
    use super::super::series::{Range, Series};
    use super::*;

    fn axis() -> Axis {
        let now = DateTime::from_timestamp(1_800_000_015, 0).unwrap();
        Axis::from_series(&Series::new(Range::Hour, now, Vec::new(), Vec::new()))
    }

    fn values(name: &'static str, style: &'static str, of: impl Fn(usize) -> Option<f64>) -> Values {
        Values { name, style, values: (0..120).map(of).collect() }
    }

    /// Compares a plot with its snapshot: one element per line, for readable differences.
    #[track_caller]
    fn assert_drawing(name: &str, markup: maud::Markup) {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, markup.into_string().replace("><", ">\n<")));
    }

    #[test]
    fn a_layer_of_one_span_has_a_visible_edge() {
        let one = values("done", "done", |index| Some(if index == 60 { 5.0 } else { 0.0 }));
        let caption = Caption { id: "plot", title: "Messages a second", format: format_rate };
        let text = stacked_areas(caption, axis(), &[one], &values("dead", "dead", |_| None)).into_string();
        let edge = text.split("class=\"edge done\" d=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert!(edge.is_some_and(|edge| edge.contains('L')), "{edge:?}");
    }

    #[test]
    fn plots_look_as_the_snapshots_show() {
        let done = values("done", "done", |index| {
            Some(if index < 10 { 0.0 } else { 1_000.0 + 10.0 * (index % 7) as f64 })
        });
        let duplicates = values("duplicates", "duplicates", |index| (index % 20 > 10).then_some(150.0));
        let dead = values("dead", "dead", |index| {
            [(30, 0.1), (31, 1.0), (90, 10.0)].iter().find(|(at, _)| *at == index).map(|(_, value)| *value)
        });
        let caption = Caption { id: "plot", title: "Messages a second", format: format_rate };
        assert_drawing("stacked", stacked_areas(caption, axis(), &[done, duplicates], &dead));
        let none = values("dead", "dead", |_| None);
        assert_drawing(
            "stacked_nothing",
            stacked_areas(caption, axis(), &[values("done", "done", |_| None)], &none),
        );
        let usual = values("half within", "usual", |index| (!(40..50).contains(&index)).then_some(0.0035));
        let slow = values("99 % within", "slow", |index| (index % 30 == 0).then_some(2.0));
        let caption = Caption { id: "plot", title: "Delivery to settlement", format: format_duration };
        assert_drawing("lines", lines(caption, axis(), &[usual, slow], 0.001));
        assert_drawing("spark", spark("Done", "done", &[0.0, 1.0, 2.0, 1.5, 0.01]));
    }
}
