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
    pub arrived: Instant,
}

#[allow(clippy::unused_self, clippy::unused_async, clippy::unnecessary_wraps)]
impl Traces {
    pub fn start(_program: &str, _config: &Config) -> Result<Self, Problems> {
        Ok(Self)
    }

    pub fn consumer(
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
    pub fn batch(&self, _messages: usize) -> BatchTrace {
        BatchTrace
    }
}

impl BatchTrace {
    pub fn stage(&self, _: Stage, _began: Instant, _took: Duration) {}

    pub fn setback(&self, _: &Fault) {}

    pub fn message(&self, _: &RawMessage, _: &Outcome, _arrived: Instant) -> MessageTrace {
        MessageTrace
    }

    pub fn end(self) {}
}

impl MessageTrace {
    pub fn is_wanted(&self) -> bool {
        false
    }

    pub fn settled(&self, _: &SettledMessage<'_>) {}

    pub fn acknowledged(&self, _queue: &str, _messages: usize, _asked: Instant, _sent: bool) {}
}

impl EventTraces {
    pub fn published(
        &self,
        _: &TakenEvent,
        _taken: DateTime<Utc>,
        _began: Instant,
        _failure: Option<&'static str>,
    ) {
    }
}
