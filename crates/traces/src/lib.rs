//! Spans of workers and relays, for a receiver of OTLP (feature `otel`, `[traces]`).
//!
//! A lane notes when its batch passed each stage, which costs a batch a few clock readings. Spans are built when a batch is settled, and
//! only if the sender of a message records its trace, or the message failed or was slow. Export never blocks: spans that the receiver does
//! not accept are dropped, and counted in the log.
//!
//! By default a span holds nothing of a message except its size: neither tenant nor key nor payload.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

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
pub use batch::{BatchTrace, MessageTrace, SettledMessage};
#[cfg(feature = "otel")]
pub use consumer::ConsumerTraces;
#[cfg(feature = "otel")]
pub use event::EventTraces;
#[cfg(not(feature = "otel"))]
pub use off::{BatchTrace, ConsumerTraces, EventTraces, MessageTrace, SettledMessage, Traces};
#[cfg(feature = "otel")]
pub use process::Traces;
