//! What is left of the traces without the feature `otel`: nothing. The configuration refuses an endpoint then.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::config::{Config, Consumer, Problems};
use crate::fault::Fault;
use crate::handler::Run;
use crate::identity::IdentityPart;
use crate::message::RawMessage;
use crate::metrics::Stage;
use crate::outcome::Outcome;
use crate::pg::{TakenEvent, Timelines};

#[derive(Debug, Default)]
pub(crate) struct Traces;

#[derive(Clone, Debug, Default)]
pub(crate) struct ConsumerTraces;

#[derive(Clone, Debug, Default)]
pub(crate) struct BatchTrace;

#[derive(Clone, Debug, Default)]
pub(crate) struct MessageTrace;

#[derive(Clone, Debug, Default)]
pub(crate) struct EventTraces;

#[derive(Clone, Copy, Debug)]
#[allow(dead_code)]
pub(crate) struct SettledMessage<'a> {
    pub(crate) message: &'a RawMessage,
    pub(crate) tag: u64,
    pub(crate) tenant: Option<&'a IdentityPart>,
    pub(crate) key: Option<&'a IdentityPart>,
    pub(crate) outcome: &'a Outcome,
    pub(crate) arrived: Instant,
}

#[allow(clippy::unused_self, clippy::unused_async, clippy::unnecessary_wraps)]
impl Traces {
    pub(crate) fn start(_program: &str, _config: &Config) -> Result<Self, Problems> {
        Ok(Self)
    }

    pub(crate) fn consumer(&mut self, _: &Config, _: &Consumer, _: &Run, _: &Timelines) -> ConsumerTraces {
        ConsumerTraces
    }

    pub(crate) fn events(&self) -> EventTraces {
        EventTraces
    }

    pub(crate) async fn end(self) {}
}

impl ConsumerTraces {
    pub(crate) fn batch(&self, _messages: usize) -> BatchTrace {
        BatchTrace
    }
}

impl BatchTrace {
    pub(crate) fn stage(&self, _: Stage, _began: Instant, _took: Duration) {}

    pub(crate) fn setback(&self, _: &Fault) {}

    pub(crate) fn message(&self, _: &RawMessage, _: &Outcome, _arrived: Instant) -> MessageTrace {
        MessageTrace
    }

    pub(crate) fn end(self) {}
}

impl MessageTrace {
    pub(crate) fn is_wanted(&self) -> bool {
        false
    }

    pub(crate) fn settled(&self, _: &SettledMessage<'_>) {}

    pub(crate) fn acknowledged(&self, _queue: &str, _messages: usize, _asked: Instant, _sent: bool) {}
}

impl EventTraces {
    pub(crate) fn published(
        &self,
        _: &TakenEvent,
        _taken: DateTime<Utc>,
        _began: Instant,
        _failure: Option<&'static str>,
    ) {
    }
}
