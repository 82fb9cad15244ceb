//! How a consumer stands, in a word, a sign and a sentence.

use maud::{Markup, html};

use super::super::html::{ago, text, time};
use crate::pg::Pause;
use crate::status::{Database, Picture};

/// The worst that is known of a consumer.
pub(super) enum Standing<'a> {
    /// A queue is not there.
    Missing,
    Paused(&'a Pause),
    /// Nothing succeeds.
    Stalled,
    /// No new message does.
    Failing,
    /// No worker takes from its queue.
    Unattended,
    Running,
    /// It runs in turns: its own transactions collide.
    Contended,
    /// No worker lives that has it, and of its queue nothing is known here.
    NoWorker,
}

impl<'a> Standing<'a> {
    pub(super) fn of(picture: &'a Picture, database: &'a Database, consumer: &str) -> Self {
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
            // Subscribed and silent.
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
            Self::Unattended => ("bad", "○", "nobody takes"),
            Self::Contended => ("look", "≡", "contended"),
            Self::Running => ("fine", "●", "running"),
            // As `oncely top` has it.
            Self::NoWorker => ("bad", "○", "no worker"),
        }
    }

    /// A sign and a word.
    pub(super) fn sign(&self) -> Markup {
        let (style, sign, word) = self.word();
        html! { span class=(format!("state {style}")) { span aria-hidden="true" { (sign) } " " (word) } }
    }

    /// Whoever paused it, and why.
    pub(super) fn told(&self, database: &Database) -> Markup {
        html! {
            @if let Self::Paused(pause) = self {
                span.note {
                    " by " (text(&pause.paused_by)) " " (ago(pause.paused_at, database.now)) ": " q { (text(&pause.reason)) } ". "
                    @match pause.paused_until {
                        Some(until) => { "It goes on at " (time(until)) "." },
                        None => "It goes on when somebody resumes it.",
                    }
                }
            }
        }
    }
}
