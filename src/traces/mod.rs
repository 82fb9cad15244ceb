//! Spans of what worker and relay do, for a receiver of OTLP (feature `otel`, `[traces]`).
//!
//! A lane notes when its batch passed which stage, which costs a batch a few clock readings. Spans are made when a batch is settled, and only
//! where somebody wants one: the sender of a message records its trace, or the message failed or was slow. Nothing here waits for anything:
//! what the receiver does not take is dropped, and counted in the log.
//!
//! By default a span says nothing that a message says, but its size: neither tenant nor key nor payload.

#[cfg(feature = "otel")]
mod batch;
#[cfg(feature = "otel")]
mod consumer;
#[cfg(feature = "otel")]
mod consumer_spans;
#[cfg(feature = "otel")]
mod event;
#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod first_run;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod process;
#[cfg(feature = "otel")]
mod receiver;
#[cfg(feature = "otel")]
mod span;
#[cfg(feature = "otel")]
mod tracer;

#[cfg(feature = "otel")]
pub(crate) use batch::{BatchTrace, MessageTrace, SettledMessage};
#[cfg(feature = "otel")]
pub(crate) use consumer::ConsumerTraces;
#[cfg(feature = "otel")]
pub(crate) use event::EventTraces;
#[cfg(not(feature = "otel"))]
pub(crate) use off::{BatchTrace, ConsumerTraces, EventTraces, MessageTrace, SettledMessage, Traces};
#[cfg(feature = "otel")]
pub(crate) use process::Traces;
