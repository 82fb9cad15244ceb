//! `oncely failed requeue` and `oncely failed discard`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::confirmation::{ChangePlan as _, Confirmation};
use super::super::operator;
use super::super::output;
use super::plan::LetterChangeArguments;
use super::sweep::print_sweeps;
use oncely_config::Config;
use oncely_ops::exit;
use oncely_ops::letters::{
    self, LetterChangePlan, LetterOutcome, Operation, OperationProgress, Order, Overrides, SweepReport,
    requeue_refusal,
};
use oncely_postgres::PlannedLetter;
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
#[command(
    after_help = "If interrupted, run it again: publishing twice is harmless. Exit 1: no dead letter matches, or \
                  some could not be published. 4: not confirmed."
)]
pub(crate) struct RequeueArguments {
    #[command(flatten)]
    change: LetterChangeArguments,
    /// Include those older than keys and trail remember: check first, they may run a second time
    #[arg(long)]
    even_if_forgotten: bool,
    /// Include those given up as outcome_unknown, if they are named: check first, their calls to other services may be repeated
    #[arg(long)]
    repeat_unknown: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A discarded message does not run, and its key stays unchanged. If a requeue was interrupted, a \
                  copy may be on its way already: that one runs. Exit 1: no dead letter matches. 4: not confirmed."
)]
pub(crate) struct DiscardArguments {
    #[command(flatten)]
    change: LetterChangeArguments,
}

pub(super) async fn requeue(file: &Path, arguments: RequeueArguments) -> crate::VerbResult {
    let RequeueArguments { change, even_if_forgotten, repeat_unknown } = arguments;
    run(file, &change, letters::Change::Requeue, Overrides { even_if_forgotten, repeat_unknown }).await
}

pub(super) async fn discard(file: &Path, arguments: DiscardArguments) -> crate::VerbResult {
    run(file, &arguments.change, letters::Change::Discard, Overrides::default()).await
}

/// Plans a change of dead letters, asks for confirmation, carries the change out, and prints the outcomes.
async fn run(
    file: &Path,
    arguments: &LetterChangeArguments,
    change: letters::Change,
    overrides: Overrides,
) -> crate::VerbResult {
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let refuse = |letter: &PlannedLetter| match change {
        letters::Change::Requeue => requeue_refusal(letter, arguments.names_letters(), overrides),
        letters::Change::Discard => None,
    };
    let now = session.clock.now();
    let plan =
        LetterChangePlan::make(&mut session.connection, now, change, arguments.to_filter(), refuse).await?;
    if let Confirmation::Exit(code) = arguments.confirm(&plan)? {
        return Ok(code);
    }
    let order = Order {
        plan: plan.clone(),
        actor: operator::name(),
        reason: arguments.options.note.clone(),
        rate: None,
        overrides,
        application: "oncely failed requeue",
    };
    let operation = Operation::new(order, CancellationToken::new());
    let result = operation.run(&config, &mut session).await;
    let progress = operation.progress();
    let is_untouched = progress.count(|outcome| *outcome != LetterOutcome::Waits) == 0;
    let result = match result {
        Err(error) if is_untouched => return Err(error),
        result => result,
    };
    let outcomes = match change {
        letters::Change::Requeue => report_requeue(&progress),
        letters::Change::Discard => report_discard(&progress),
    };
    result?;
    if arguments.options.json {
        plan.print_json(false, outcomes)?;
    }
    session.close().await;
    Ok(match progress.count(LetterOutcome::is_failure) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::NO),
    })
}

/// Prints the outcomes of a discard; returns them as JSON.
fn report_discard(progress: &OperationProgress) -> Value {
    let done = progress.count(|outcome| *outcome == LetterOutcome::Discarded);
    output::print_note(&format!("discarded {done}"));
    let swept: Vec<&SweepReport> = print_sweeps(&progress.swept);
    json!({ "done": done, "swept": swept })
}

/// Prints the outcomes of a requeue; returns them as JSON.
fn report_requeue(progress: &OperationProgress) -> Value {
    let mut unread = BTreeMap::<String, usize>::new();
    for item in &progress.items {
        if let LetterOutcome::FromQueue(Some(why)) = &item.outcome {
            *unread.entry(why.to_string()).or_default() += 1;
        }
    }
    for (why, letters) in unread {
        output::print_note(&format!(
            "! {letters} published from the dead-letter queue, not from the row: the body is {why}"
        ));
    }
    let swept = print_sweeps(&progress.swept);
    let count_of = |counted: LetterOutcome| progress.count(|outcome| *outcome == counted);
    let (done, closed) = (count_of(LetterOutcome::Published), count_of(LetterOutcome::TookEffect));
    let (discarded, by_another) = (count_of(LetterOutcome::GivenUp), count_of(LetterOutcome::ByAnother));
    let failed = progress.count(LetterOutcome::is_failure);
    let total = done + discarded + by_another + failed + progress.count(LetterOutcome::is_from_queue);
    output::print_note(&format!("requeued {done} of {total}"));
    for (number, outcome) in [
        (closed, "had taken effect: nothing was published"),
        (discarded, "were discarded meanwhile: not published"),
        (by_another, "were published by another requeue or by a sweep"),
    ] {
        if number > 0 {
            output::print_note(&format!("{number} {outcome}"));
        }
    }
    let first = progress.items.iter().find_map(|item| match &item.outcome {
        LetterOutcome::Failed(why) => Some(why),
        _ => None,
    });
    if let Some(first) = first {
        output::print_note(&format!(
            "{failed} could not be published and stay in state requeueing; fix the cause and run it again: {first}"
        ));
    }
    json!({
        "done": done, "closed": closed, "discarded": discarded, "by_another": by_another, "failed": failed,
        "swept": swept,
    })
}
