//! The state of a consumer, as a sign, a word and a sentence.

use maud::{Markup, html};

use super::super::html::{ago, text, time};
use oncely_ops::overview::ConsumerState;
use oncely_ops::status::DatabaseSnapshot;

/// Renders sign and word of a state.
pub(super) fn state_sign(state: ConsumerState) -> Markup {
    let (style, sign) = match state {
        ConsumerState::Running => ("fine", "●"),
        ConsumerState::Paused => ("look", "‖"),
        ConsumerState::Contended => ("look", "≡"),
        ConsumerState::Stalled | ConsumerState::Failing => ("bad", "■"),
        ConsumerState::NoQueue => ("bad", "✗"),
        ConsumerState::Unattended | ConsumerState::NoWorker => ("bad", "○"),
    };
    // The words of `oncely top`, in lower case.
    let word = state.label().to_lowercase();
    html! { span class=(format!("state {style}")) { span aria-hidden="true" { (sign) } " " (word) } }
}

/// Renders a consumer's pause: its author, time, reason and end; nothing if it is not paused.
pub(super) fn pause_details(database: &DatabaseSnapshot, consumer: &str) -> Markup {
    html! {
        @if let Some(pause) = database.pause(consumer) {
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
