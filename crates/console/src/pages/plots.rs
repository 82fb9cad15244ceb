//! Plots of the work of consumers and relays, each with its legend and its table.

use maud::{Markup, html};

use super::super::ask::PageRequest;
use super::super::html::{PageLink, format_duration, format_number, format_rate};
use super::super::plot::{Axis, Caption, Values, lines, stacked_areas};
use super::super::series::{Range, Series, Span};

/// The requested form of a page's plots.
pub(super) struct PlotQuery {
    pub(super) range: Range,
    pub(super) as_table: bool,
}

impl PlotQuery {
    /// Parses the parameters of a request; one hour as plots by default.
    pub(super) fn from_request(request: &PageRequest) -> Self {
        let range = request.parameters.get_trimmed("range").and_then(Range::parse).unwrap_or(Range::Hour);
        Self { range, as_table: request.parameters.get_trimmed("as") == Some("table") }
    }

    /// Renders links to the other ranges, and to the table. `base`: the page without either.
    pub(super) fn choices(&self, base: &PageLink) -> Markup {
        let link = |range: Range, as_table: bool| {
            base.clone()
                .with("range", range.as_str())
                .with_some("as", as_table.then_some("table"))
                .with_anchor("plots")
        };
        html! {
            p.choices {
                span { "Last" }
                @for range in Range::ALL {
                    a id=(format!("range-{}", range.as_str())) href=(link(range, self.as_table))
                        aria-current=[(range == self.range).then_some("true")] { (range.as_str()) }
                }
                a #as-table href=(link(self.range, !self.as_table)) { @if self.as_table { "Show as plots" } @else { "Show as tables" } }
            }
        }
    }
}

/// Maximum number of rows of a table: spans are merged until they fit.
const MAX_ROWS: usize = 30;

/// Plots outcomes of messages: done, duplicates, retried, dead.
pub(super) fn outcomes(query: &PlotQuery, series: &Series, consumer: Option<&str>) -> Markup {
    let spans = series.spans(consumer);
    let of = |of: fn(&Span) -> i64| series.rates(&spans, of).into_iter().map(Some).collect::<Vec<_>>();
    let parts = vec![
        Values { name: "done", style: "done", values: of(|span| span.done) },
        Values { name: "duplicates", style: "duplicates", values: of(|span| span.duplicates) },
        Values { name: "retried", style: "retried", values: of(|span| span.retried) },
        // Rare, and each one matters: a tick, independent of the scale.
        Values { name: "dead", style: "dead", values: of(|span| span.dead) },
    ];
    let caption = Caption { id: "plot-outcomes", title: "Messages per second", format: format_rate };
    figure(caption, query, series, &parts, true, |axis| stacked_areas(caption, axis, &parts[..3], &parts[3]))
}

/// Plots the times from delivery to settlement.
pub(super) fn durations(query: &PlotQuery, series: &Series, consumer: Option<&str>) -> Markup {
    let spans = series.spans(consumer);
    let of = |share: f64| spans.iter().map(|span| span.quantile(share)).collect::<Vec<_>>();
    let parts = vec![
        Values { name: "99 % within", style: "slow", values: of(0.99) },
        Values { name: "half within", style: "usual", values: of(0.5) },
    ];
    let caption = Caption { id: "plot-durations", title: "Delivery to settlement", format: format_duration };
    figure(caption, query, series, &parts, false, |axis| lines(caption, axis, &parts, 0.001))
}

/// Plots the age of the oldest entry in the outbox.
pub(super) fn ages(query: &PlotQuery, series: &Series) -> Markup {
    let parts = vec![
        Values { name: "events to RabbitMQ", style: "events", values: series.ages("rabbitmq") },
        Values { name: "mirror records to Redis", style: "mirror", values: series.ages("redis") },
    ];
    let caption =
        Caption { id: "plot-ages", title: "Age of the oldest in the outbox", format: format_duration };
    figure(caption, query, series, &parts, false, |axis| lines(caption, axis, &parts, 0.1))
}

/// Plots the rates of relayed events and records.
pub(super) fn relay_rates(query: &PlotQuery, series: &Series) -> Markup {
    let parts = vec![
        Values { name: "events", style: "events", values: series.relay_rates("rabbitmq") },
        Values { name: "mirror records", style: "mirror", values: series.relay_rates("redis") },
    ];
    let caption = Caption { id: "plot-relayed", title: "Delivered per second", format: format_rate };
    figure(caption, query, series, &parts, false, |axis| lines(caption, axis, &parts, 0.1))
}

/// Renders a plot, or its table, with title and legend. `draw`: draws the plot.
fn figure(
    caption: Caption,
    query: &PlotQuery,
    series: &Series,
    parts: &[Values],
    has_areas: bool,
    draw: impl FnOnce(Axis) -> Markup,
) -> Markup {
    let is_empty = parts.iter().all(|part| part.values.iter().all(|value| value.unwrap_or(0.0) == 0.0));
    let format_value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), caption.format);
    #[allow(clippy::cast_precision_loss)] // seconds of a span
    let width = series.width as f64;
    html! {
        figure id=(caption.id) {
            figcaption {
                // The time to which the legend's numbers refer.
                span.title { (caption.title) " " small { "last " (format_duration(width)) } }
                ul.legend {
                    @for part in parts {
                        li {
                            (swatch(caption.id, part.style, has_areas))
                            (part.name) " " b { (format_value(part.values.last().copied().flatten())) }
                        }
                    }
                }
            }
            @if query.as_table {
                (table(caption, series, parts))
            } @else {
                (draw(Axis::from_series(series)))
                @if is_empty { p.empty { "Nothing in these " (query.range.as_str()) "." } }
            }
        }
    }
}

fn swatch(id: &str, style: &str, has_areas: bool) -> Markup {
    html! {
        svg.swatch viewBox="0 0 14 10" width="14" height="10" aria-hidden="true" {
            @if style == "dead" {
                path class="tick dead" d="M3 10V5M7 10V1M11 10V6" {}
            } @else if has_areas {
                rect class=(format!("area {style}")) width="14" height="10" fill=(format!("url(#{id}-{style})")) {}
            } @else {
                path class=(format!("line {style}")) d="M0 5H14" {}
            }
        }
    }
}

/// Renders the table, newest first; neighbouring spans are merged if there are many.
fn table(caption: Caption, series: &Series, parts: &[Values]) -> Markup {
    let axis = Axis::from_series(series);
    let spans = parts.iter().map(|part| part.values.len()).max().unwrap_or(0);
    let spans_per_row = spans.div_ceil(MAX_ROWS).max(1);
    let value = |part: &Values, from: usize| {
        let known: Vec<f64> = part.values.iter().skip(from).take(spans_per_row).flatten().copied().collect();
        #[allow(clippy::cast_precision_loss)] // a few dozen
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    html! {
        div.scroll tabindex="0" {
            table {
                caption.unseen { (caption.title) ", by spans of " (format_number(series.width * i64::try_from(spans_per_row).unwrap_or(1))) " s" }
                thead { tr { th scope="col" { "From" } @for part in parts { th.number scope="col" { (part.name) } } } }
                tbody {
                    @for from in (0..spans).step_by(spans_per_row).rev() {
                        tr {
                            th scope="row" { (super::super::html::time(axis.time(from))) }
                            @for part in parts {
                                td.number { (value(part, from).map_or_else(|| "–".to_owned(), caption.format)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
