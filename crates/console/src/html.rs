//! Formats of values in pages.

use chrono::{DateTime, SecondsFormat, Utc};
use maud::{Markup, Render, html};
use url::form_urlencoded;

use oncely_core::shown;
use oncely_core::units::{format_age, format_bytes as size};

/// Formats an untrusted text: no markup, no hidden characters, and isolated text direction.
pub(crate) fn text(value: &str) -> Markup {
    html! { bdi { (shown::escape_value(value)) } }
}

/// Formats an untrusted text that may be empty.
pub(crate) fn text_or(value: &str, placeholder: &str) -> Markup {
    if value.is_empty() {
        html! { span.quiet { (placeholder) } }
    } else {
        text(value)
    }
}

/// Formats a name or key in a monospaced font.
pub(crate) fn code(value: &str) -> Markup {
    html! { code { bdi { (shown::escape_value(value)) } } }
}

/// Formats a time. The browser shows it in its own zone, if it can.
pub(crate) fn time(at: DateTime<Utc>) -> Markup {
    let timestamp = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    html! { time datetime=(timestamp) { (at.format("%Y-%m-%d %H:%M:%SZ")) } }
}

/// Formats a time to the millisecond.
pub(crate) fn exact_time(at: DateTime<Utc>) -> Markup {
    let timestamp = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    html! { time datetime=(timestamp) data-form="exact" { (at.format("%Y-%m-%d %H:%M:%S%.3fZ")) } }
}

/// Formats how long ago a time was, with the time itself as tooltip.
pub(crate) fn ago(at: DateTime<Utc>, now: DateTime<Utc>) -> Markup {
    let timestamp = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    html! { time datetime=(timestamp) data-form="age" title=(at.format("%Y-%m-%d %H:%M:%SZ")) { (format_age(at, now)) " ago" } }
}

/// Formats 1234567 as `1,234,567`.
pub(crate) fn format_number(number: impl Into<i128>) -> String {
    let number: i128 = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// Formats a number that was counted up to 10,000.
pub(crate) fn format_capped(number: i64) -> String {
    if number >= 10_000 { "≥ 10,000".to_owned() } else { format_number(number) }
}

/// Formats bytes with a unit.
pub(crate) fn format_bytes(number: i64) -> String {
    size(number)
}

/// Formats a rate: `3,120`, `41`, `0.3`.
pub(crate) fn format_rate(per_second: f64) -> String {
    #[allow(clippy::cast_possible_truncation)] // rates are far below 2^63
    match per_second {
        r if r >= 9.95 => format_number(r.round() as i64),
        r if r >= 0.05 => format!("{r:.1}"),
        r if r > 0.0 => "< 0.1".to_owned(),
        _ => "0".to_owned(),
    }
}

/// Formats a duration in seconds: `3.1 ms`, `2.4 s`.
pub(crate) fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s >= 99.5 => format!("{:.0} min", s / 60.0),
        s if s >= 9.95 => format!("{s:.0} s"),
        s if s >= 0.995 => format!("{s:.1} s"),
        s if s >= 0.00995 => format!("{:.0} ms", s * 1_000.0),
        s => format!("{:.1} ms", s * 1_000.0),
    }
}

/// Formats a duration as the configuration writes it: `7d`, `90d`, `2h`, `1m 30s`.
pub(crate) fn format_config_duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_nanos() == 0 && seconds > 0 {
        for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
            if seconds.is_multiple_of(unit) {
                return format!("{}{name}", seconds / unit);
            }
        }
    }
    humantime::format_duration(duration).to_string()
}

/// Formats a trusted sentence with commands between backticks.
pub(crate) fn sentence_with_commands(sentence: &str) -> Markup {
    html! {
        @for (index, part) in sentence.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Formats a share as a percentage.
pub(crate) fn format_percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.05 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}

/// A path with a query that is built value by value.
#[derive(Clone, Debug)]
pub(crate) struct PageLink {
    path: String,
    query: String,
    /// The part after the `#`.
    anchor: Option<&'static str>,
}

impl PageLink {
    pub(crate) fn new(path: String) -> Self {
        Self { path, query: String::new(), anchor: None }
    }

    /// Adds a parameter.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<str>) -> Self {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        self.query.extend(form_urlencoded::byte_serialize(name.as_bytes()));
        self.query.push('=');
        self.query.extend(form_urlencoded::byte_serialize(value.as_ref().as_bytes()));
        self
    }

    /// Adds a parameter if it has a value.
    pub(crate) fn with_some(self, name: &str, value: Option<impl AsRef<str>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Sets the part after the `#`.
    pub(crate) fn with_anchor(mut self, anchor: &'static str) -> Self {
        self.anchor = Some(anchor);
        self
    }
}

impl std::fmt::Display for PageLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        match self.anchor {
            Some(anchor) => write!(f, "#{anchor}"),
            None => Ok(()),
        }
    }
}

impl Render for PageLink {
    fn render_to(&self, buffer: &mut String) {
        self.to_string().as_str().render_to(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_is_markup_or_hidden() {
        let shown = text("<script>\u{202e}\n'\"&").into_string();
        assert_eq!(shown, "<bdi>&lt;script&gt;\\u{202e}\\u{a}'&quot;&amp;</bdi>");
        let link =
            PageLink::new("/key".to_owned()).with("key", "a/b\"<\n&%00é").with_some("none", None::<&str>);
        let link = html! { a href=(link) {} }.into_string();
        assert_eq!(link, "<a href=\"/key?key=a%2Fb%22%3C%0A%26%2500%C3%A9\"></a>");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [format_number(0), format_number(999), format_number(1_000), format_number(-1_234_567)],
            ["0", "999", "1,000", "-1,234,567"]
        );
        assert_eq!([format_capped(9_999), format_capped(10_000)], ["9,999", "≥ 10,000"]);
        assert_eq!(
            [format_rate(3_120.4), format_rate(9.96), format_rate(0.31), format_rate(0.01), format_rate(0.0)],
            ["3,120", "10", "0.3", "< 0.1", "0"]
        );
        assert_eq!(
            [
                format_duration(0.0031),
                format_duration(0.031),
                format_duration(2.41),
                format_duration(41.0),
                format_duration(372.0)
            ],
            ["3.1 ms", "31 ms", "2.4 s", "41 s", "6 min"]
        );
        let seconds = std::time::Duration::from_secs;
        assert_eq!(
            [
                format_config_duration(seconds(604_800)),
                format_config_duration(seconds(90)),
                format_config_duration(seconds(60))
            ],
            ["7d", "1m 30s", "1m"]
        );
        assert_eq!(
            [format_percent(0.021), format_percent(0.0001), format_percent(0.0)],
            ["2.1 %", "< 0.1 %", "0.0 %"]
        );
    }
}
