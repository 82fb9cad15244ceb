//! The state of a consumer, as a word, a sign and a sentence.

use maud::{Markup, html};

use super::super::html::{ago, text, time};
use oncely_ops::status::{DatabaseSnapshot, StatusSnapshot};
use oncely_postgres::Pause;

/// The worst known state of a consumer.
pub(super) enum ConsumerIssue<'a> {
    /// A queue is missing.
    Missing,
    Paused(&'a Pause),
    /// No message succeeds.
    Stalled,
    /// No new message succeeds.
    Failing,
    /// No worker subscribes to its queue.
    Unattended,
    Running,
    /// Batches run one after another, because its own transactions conflict.
    Contended,
    /// No live worker has it, and the state of its queue is unknown here.
    NoWorker,
}

impl<'a> ConsumerIssue<'a> {
    pub(super) fn assess(
        picture: &'a StatusSnapshot,
        database: &'a DatabaseSnapshot,
        consumer: &str,
    ) -> Self {
        let queues = picture.rabbitmq.as_deref().unwrap_or_default();
        let own = || queues.iter().filter(|state| state.consumer == consumer);
        if let Some(pause) = database.pause(consumer) {
            return Self::Paused(pause);
        }
        if own().any(|state| !state.missing.is_empty()) {
            return Self::Missing;
        }
        if picture.workers(consumer).any(|(_, report)| report.condition.stalled.is_some()) {
            return Self::Stalled;
        }
        if own().any(|state| state.subscriptions == Some(0)) {
            return Self::Unattended;
        }
        if own().next().is_some() && picture.workers(consumer).count() == 0 {
            // Subscribed, but no heartbeat arrives.
            return Self::Unattended;
        }
        if picture.workers(consumer).any(|(_, report)| report.condition.failing.is_some()) {
            return Self::Failing;
        }
        if picture.workers(consumer).any(|(_, report)| report.condition.contended.is_some()) {
            return Self::Contended;
        }
        match (picture.rabbitmq.is_ok(), picture.workers(consumer).count()) {
            (true, _) if own().next().is_some() => Self::Running,
            (_, 0) => Self::NoWorker,
            _ => Self::Running,
        }
    }

    fn word(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Missing => ("bad", "✗", "queue missing"),
            Self::Paused(_) => ("look", "‖", "paused"),
            Self::Stalled => ("bad", "■", "stalled"),
            Self::Failing => ("bad", "■", "failing"),
            Self::Unattended => ("bad", "○", "not taken"),
            Self::Contended => ("look", "≡", "contended"),
            Self::Running => ("fine", "●", "running"),
            // Same word as in `oncely top`.
            Self::NoWorker => ("bad", "○", "no worker"),
        }
    }

    /// Renders sign and word.
    pub(super) fn sign(&self) -> Markup {
        let (style, sign, word) = self.word();
        html! { span class=(format!("state {style}")) { span aria-hidden="true" { (sign) } " " (word) } }
    }

    /// Renders who paused it, and the reason.
    pub(super) fn details(&self, database: &DatabaseSnapshot) -> Markup {
        html! {
            @if let Self::Paused(pause) = self {
                span.note {
                    " by " (text(&pause.paused_by)) " " (ago(pause.paused_at, database.now)) ": " q { (text(&pause.reason)) } ". "
                    @match pause.paused_until {
                        Some(until) => { "It continues at " (time(until)) "." },
                        None => "It continues when it is resumed.",
                    }
                }
            }
        }
    }
}
