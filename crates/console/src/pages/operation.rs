//! An operation's page: progress, and the result for each letter.

use std::sync::Arc;

use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{exact_time, format_number, text};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::rows::key_link;
use oncely_amqp::Topology;
use oncely_ops::letters::{
    Change, LetterOutcome, MAX_AUTOMATIC_MESSAGES, Operation, OperationItem, OperationPhase,
    OperationProgress, SweepResult,
};
use oncely_postgres as pg;

/// Maximum number of letters in the list; those with errors come first.
const MAX_LISTED: usize = 500;

/// Finds the operation with the request's `id`.
///
/// # Errors
/// If this console has no such operation.
fn find_operation(request: &PageRequest) -> Result<Arc<Operation>, PageError> {
    let id = request.parameters.get_trimmed("id").and_then(|id| Uuid::try_parse(id).ok());
    id.and_then(|id| request.app.operations.get(id)).ok_or_else(|| {
        PageError::NotFound(
            "This console knows of no such operation: it was begun by another one, or before a restart. What was done stands in operator_actions \
             (Operator actions on Overview); letters that stand as half requeued are found by the next requeue."
                .to_owned(),
        )
    })
}

/// Renders `/failed/operation`: the progress of an operation, named by `id`.
///
/// # Errors
/// If this console has no such operation, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let operation = find_operation(&request)?;
    let progress = operation.progress();
    let changed_letters = operation.changed_letters();
    let return_counts = if operation.change == Change::Requeue && !changed_letters.is_empty() {
        let mut pooled = request.app.pool.acquire().await?;
        let number = pg::count_returned_letters(&mut pooled.session.connection, &changed_letters).await?;
        pooled.give_back();
        Some((number, changed_letters.len()))
    } else {
        None
    };
    let title = match operation.change {
        Change::Requeue => "Requeue",
        Change::Discard => "Discard",
    };
    let mut page = Page::new(Tab::Failed, title);
    page.verdict = Some(summary(&operation, &progress));
    page.live = html! {
        (progress_bar(&progress))
        @if let Some((number, of)) = return_counts {
            p { "Came back: " b { (format_number(number)) } " of " (format_number(i128::try_from(of).unwrap_or(0))) "." }
        }
        dl.facts {
            dt { "Begun" } dd { (exact_time(operation.began)) " by " (text(&operation.actor)) }
            dt { "Why" } dd { (text(operation.reason.as_deref().unwrap_or_default())) }
            @if operation.change == Change::Requeue && let Some(rate) = operation.rate { dt { "At most" } dd { (rate) " per second" } }
            @for result in &progress.swept { dt { "Swept" } dd { (text(&format_sweep(result))) } }
        }
        (stop_form(&request, &operation, &progress))
        (items(&request, &progress))
    };
    page.equivalents =
        EquivalentCommands { cli: Vec::new(), sql: vec![pg::equivalent_sql::operation(operation.id)] };
    Ok(page.into())
}

fn is_done(outcome: &LetterOutcome) -> bool {
    !matches!(outcome, LetterOutcome::Waits)
}

/// Renders the phase in one word, for lists.
pub(super) fn phase(progress: &OperationProgress) -> Markup {
    let done_count = progress.count(is_done);
    html! {
        @match &progress.phase {
            OperationPhase::Running => { "at " (done_count) " of " (progress.items.len()) },
            OperationPhase::Sweeping => "sweeping the dead-letter queues",
            OperationPhase::Done => "done",
            OperationPhase::Stopped => { "stopped at " (done_count) },
            OperationPhase::Broken(_) => { span.bad { "broken off at " (done_count) } },
        }
    }
}

/// Renders the progress and the results in a few sentences.
fn summary(operation: &Operation, progress: &OperationProgress) -> Markup {
    let of = |outcome: LetterOutcome| progress.count(|known| *known == outcome);
    let (published, from_queue) =
        (of(LetterOutcome::Published), progress.count(LetterOutcome::is_from_queue));
    let failed = progress.count(LetterOutcome::is_failure);
    let (given_up, by_another) = (of(LetterOutcome::GivenUp), of(LetterOutcome::ByAnother));
    let (took_effect, changed) = (of(LetterOutcome::TookEffect), of(LetterOutcome::Changed));
    html! {
        @match &progress.phase {
            OperationPhase::Running => b { "Under way. " },
            OperationPhase::Sweeping => b { "Sweeping the dead-letter queues. " },
            OperationPhase::Done if failed > 0 => b { "Done, but for some. " },
            OperationPhase::Done => b { "Done. " },
            OperationPhase::Stopped => b { "Stopped. " },
            OperationPhase::Broken(_) => b { "Broken off. " },
        }
        @match operation.change {
            Change::Requeue => { (published) " published" @if from_queue > 0 { ", " (from_queue) " from their queue" } },
            Change::Discard => { (of(LetterOutcome::Discarded)) " discarded" },
        }
        " of " (progress.items.len()) "."
        @if took_effect > 0 { " " (took_effect) " had taken effect." }
        @if given_up > 0 { " " (given_up) " were discarded meanwhile." }
        @if by_another > 0 { " " (by_another) " were published by another requeue." }
        @if changed > 0 { " " (changed) " had changed meanwhile." }
        @if failed > 0 { " " span.bad { (failed) " could not be published" } " and stand as half requeued: requeue them again when it is mended." }
        @if let OperationPhase::Broken(why) = &progress.phase { " " (text(why)) }
        @if progress.phase == OperationPhase::Stopped { " The rest is as it was." }
    }
}

fn progress_bar(progress: &OperationProgress) -> Markup {
    let done_count = progress.count(is_done);
    html! {
        p.progress {
            label.unseen for="progress" { "How far it is" }
            progress #progress max=(progress.items.len()) value=(done_count) { (done_count) " of " (progress.items.len()) }
            span { (done_count) " of " (progress.items.len()) }
        }
    }
}

fn stop_form(request: &PageRequest, operation: &Operation, progress: &OperationProgress) -> Markup {
    html! {
        @if progress.phase == OperationPhase::Running && request.viewer.is_operator() {
            form.inline method="post" action=(request.app.access.site().path("/failed/stop")) {
                (csrf_field(&request.viewer))
                input type="hidden" name="id" value=(operation.id);
                button #stop { "Stop" }
            }
        }
    }
}

fn items(request: &PageRequest, progress: &OperationProgress) -> Markup {
    let rank = |item: &&OperationItem| match item.outcome {
        LetterOutcome::Failed(_) => 0,
        LetterOutcome::Changed => 1,
        LetterOutcome::TookEffect => 2,
        _ => 3,
    };
    let mut items: Vec<&OperationItem> = progress.items.iter().collect();
    items.sort_by_key(rank);
    html! {
        div.scroll tabindex="0" role="group" aria-label="Letters" {
            table #items {
                caption.unseen { "What became of each letter" }
                thead { tr { th scope="col" { "Key" } th scope="col" { "Tenant" } th scope="col" { "Consumer" } th scope="col" { "Result" } } }
                tbody {
                    @for item in items.iter().take(MAX_LISTED) {
                        @let letter = &item.letter;
                        tr {
                            th.keys scope="row" {
                                a id=(format!("item-{}", letter.id)) href=(request.link("/failed/letter").with("id", letter.id.to_string())) {
                                    @if letter.key.is_empty() { "unknown" } @else { (super::super::html::code(&letter.key)) }
                                }
                            }
                            td.keys {
                                @if letter.key.is_empty() { (text(&letter.tenant)) } @else {
                                    a id=(format!("item-key-{}", letter.id)) href=(key_link(request, &letter.tenant, &letter.consumer, &letter.key)) { (text(&letter.tenant)) }
                                }
                            }
                            td.keys { (text(&letter.consumer)) }
                            td { (outcome_cell(&item.outcome)) }
                        }
                    }
                }
            }
        }
        @if items.len() > MAX_LISTED { p.quiet { "And " (items.len() - MAX_LISTED) " more." } }
    }
}

/// Renders the outcome of one letter.
fn outcome_cell(outcome: &LetterOutcome) -> Markup {
    html! {
        @match outcome {
            LetterOutcome::Waits => span.quiet { "waits" },
            LetterOutcome::Published => span.fine { "● published" },
            LetterOutcome::FromQueue(_) => span.fine { "● from its dead-letter queue, by the sweep" },
            LetterOutcome::Discarded => span.quiet { "– discarded" },
            LetterOutcome::GivenUp => span.look { "▲ discarded meanwhile: not published" },
            LetterOutcome::ByAnother => span.look { "▲ published by another requeue" },
            LetterOutcome::TookEffect => span.look { "▲ took effect meanwhile: not published" },
            LetterOutcome::Changed => span.look { "▲ changed meanwhile: left alone" },
            LetterOutcome::Failed(why) => span.bad { "✗ " (text(why)) },
        }
    }
}

/// Describes the result of a sweep.
fn format_sweep(result: &SweepResult) -> String {
    match result {
        SweepResult::Done(report) => format!(
            "{}: {} gone, {} requeued from there, {} stay",
            Topology::dead_letter_queue(&report.queue),
            report.dropped,
            report.requeued,
            report.kept
        ),
        SweepResult::TooLong(queue) => format!(
            "{} holds more than {MAX_AUTOMATIC_MESSAGES} messages and was not swept: oncely failed sweep --queue {queue}",
            Topology::dead_letter_queue(queue)
        ),
    }
}

/// Stops an operation after its current steps; recorded. It stops even if the record can't be written.
pub(super) async fn stop_operation(request: PageRequest) -> PageResult {
    let operation = find_operation(&request)?;
    operation.stop();
    let done_count = operation.progress().count(is_done);
    let mut pooled = request.app.pool.acquire().await?;
    let action = pg::Action {
        tenant: "",
        verb: "stop",
        user: &request.viewer.session.user.actor(),
        filter: &serde_json::json!({ "operation": operation.id, "verb": operation.change.verb() }),
        count: i64::try_from(done_count).unwrap_or(i64::MAX),
        reason: None,
    };
    pg::record_action(&mut pooled.session.connection, &action).await?;
    pooled.give_back();
    Ok(PageReply::SeeOther(request.link("/failed/operation").with("id", operation.id.to_string())))
}
