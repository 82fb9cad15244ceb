//! Spans for the exporter, complete when they are created.

use std::borrow::Cow;
use std::str::FromStr as _;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

use oncely_core::message::{HeaderValue, RawMessage};
use oncely_core::trace_parent::TraceParent;

/// Maximum length in bytes of a `tracestate` that all systems must carry; a longer one is dropped.
const MAX_STATE_BYTES: usize = 512;

/// Both clocks at one time: spans have wall-clock times, and lanes measure by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    instant: Instant,
    wall: SystemTime,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// Returns the instant at which both clocks were read.
    pub(super) fn began(&self) -> Instant {
        self.instant
    }

    /// Returns the wall-clock time of an instant.
    pub(super) fn wall(&self, at: Instant) -> SystemTime {
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        let before: Duration = since(self.instant, at);
        let time = self.wall + since(at, self.instant);
        time.checked_sub(before).unwrap_or(time)
    }
}

/// Creates a span context in the trace of `parent`, or in a new trace.
pub(super) fn new_context(parent: Option<&SpanContext>) -> SpanContext {
    let ids = RandomIdGenerator::default();
    let trace_id = parent.map_or_else(|| ids.new_trace_id(), SpanContext::trace_id);
    let state = parent.map(|parent| parent.trace_state().clone()).unwrap_or_default();
    SpanContext::new(trace_id, ids.new_span_id(), TraceFlags::SAMPLED, false, state)
}

/// Finds the context of the span that sent a message; `None` if its headers name none.
pub(super) fn find_sender_context(message: &RawMessage) -> Option<SpanContext> {
    let state = match message.headers.get("tracestate") {
        Some(HeaderValue::Text(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    to_span_context(message.trace_parent()?, state)
}

/// Converts the trace context of another process to a span context; `None` if an id is not hexadecimal.
pub(super) fn to_span_context(parent: TraceParent<'_>, state: Option<&str>) -> Option<SpanContext> {
    let state = state.filter(|text| text.len() <= MAX_STATE_BYTES);
    let flags = if parent.sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    Some(SpanContext::new(
        TraceId::from_hex(parent.trace_id).ok()?,
        SpanId::from_hex(parent.span_id).ok()?,
        flags,
        true,
        state.and_then(|text| TraceState::from_str(text).ok()).unwrap_or_default(),
    ))
}

/// Builds the context of a trace without a known span: a link to it has a zero span id.
pub(super) fn build_trace_context(trace_id: TraceId) -> SpanContext {
    SpanContext::new(trace_id, SpanId::INVALID, TraceFlags::NOT_SAMPLED, true, TraceState::NONE)
}

/// Creates a link to a span, with its relation to the span that has the link.
pub(super) fn new_link(context: SpanContext, relation: &'static str) -> Link {
    Link::new(context, vec![KeyValue::new("oncely.link", relation)], 0)
}

/// Creates a span without links, events and status.
pub(super) fn new_span(
    context: SpanContext,
    parent: Option<&SpanContext>,
    kind: SpanKind,
    name: impl Into<Cow<'static, str>>,
    (start_time, end_time): (SystemTime, SystemTime),
    attributes: Vec<KeyValue>,
) -> SpanData {
    SpanData {
        span_context: context,
        parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
        parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
        span_kind: kind,
        name: name.into(),
        start_time,
        end_time: end_time.max(start_time),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("oncely")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

/// Marks a span as failed with an error of this kind: a stable code, never a text.
pub(super) fn set_error(span: &mut SpanData, kind: impl Into<Cow<'static, str>>) {
    let kind: Cow<'static, str> = kind.into();
    span.attributes.push(KeyValue::new("error.type", kind.clone().into_owned()));
    span.status = Status::error(kind);
}

/// Converts a number of messages or bytes to OTLP's type.
pub(super) fn to_i64(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_before_and_after_has_its_time_of_day() {
        let clocks = Clocks::now();
        let second = Duration::from_secs(1);
        assert_eq!(clocks.wall(clocks.began() + second), clocks.wall + second);
        let earlier = clocks.began().checked_sub(second).unwrap();
        assert_eq!(clocks.wall(earlier), clocks.wall - second);
    }

    #[test]
    fn a_trace_state_that_is_too_long_is_left_out() {
        let parent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        let state = |text: &str| to_span_context(parent, Some(text)).unwrap().trace_state().header();
        assert_eq!(state("vendor=value"), "vendor=value");
        assert_eq!(state(&format!("vendor={}", "x".repeat(MAX_STATE_BYTES))), "");
    }
}
