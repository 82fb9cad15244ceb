//! Empty traces, without the feature `otel`. The configuration refuses an endpoint then.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use oncely_config::{Config, ConsumerSettings, Problems};
use oncely_core::fault::Fault;
use oncely_core::identity::IdentityPart;
use oncely_core::message::RawMessage;
use oncely_core::outcome::Outcome;
use oncely_handler::ConsumerHandler;
use oncely_postgres::{TakenEvent, Timelines};
use oncely_process::metrics::Stage;

#[derive(Debug, Default)]
pub struct Traces;

#[derive(Clone, Debug, Default)]
pub struct ConsumerTraces;

#[derive(Clone, Debug, Default)]
pub struct BatchTrace;

#[derive(Clone, Debug, Default)]
pub struct MessageTrace;

#[derive(Clone, Debug, Default)]
pub struct EventTraces;

#[derive(Clone, Copy, Debug)]
#[allow(dead_code)]
pub struct SettledMessage<'a> {
    pub message: &'a RawMessage,
    pub tag: u64,
    pub tenant: Option<&'a IdentityPart>,
    pub key: Option<&'a IdentityPart>,
    pub outcome: &'a Outcome,
    pub arrived_at: Instant,
}

#[allow(clippy::unused_self, clippy::unused_async, clippy::unnecessary_wraps)]
impl Traces {
    pub fn start(_program: &str, _config: &Config) -> Result<Self, Problems> {
        Ok(Self)
    }

    pub fn start_consumer(
        &mut self,
        _: &Config,
        _: &ConsumerSettings,
        _: &ConsumerHandler,
        _: &Timelines,
    ) -> ConsumerTraces {
        ConsumerTraces
    }

    pub fn events(&self) -> EventTraces {
        EventTraces
    }

    pub async fn end(self) {}
}

impl ConsumerTraces {
    pub fn begin_batch(&self, _messages: usize) -> BatchTrace {
        BatchTrace
    }
}

impl BatchTrace {
    pub fn record_stage(&self, _: Stage, _began: Instant, _took: Duration) {}

    pub fn record_setback(&self, _: &Fault) {}

    pub fn begin_message(&self, _: &RawMessage, _: &Outcome, _arrived_at: Instant) -> MessageTrace {
        MessageTrace
    }

    pub fn end(self) {}
}

impl MessageTrace {
    pub fn has_span(&self) -> bool {
        false
    }

    pub fn end_message(&self, _: &SettledMessage<'_>) {}

    pub fn record_acknowledgement(&self, _queue: &str, _messages: usize, _sent_at: Instant, _is_sent: bool) {}
}

impl EventTraces {
    pub fn record_publish(
        &self,
        _: &TakenEvent,
        _taken_at: DateTime<Utc>,
        _began: Instant,
        _failure: Option<&'static str>,
    ) {
    }
}
