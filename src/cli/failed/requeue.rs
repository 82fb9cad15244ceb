//! `oncely failed requeue`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::consent::{self, Consent};
use super::super::output::{self, Times};
use super::super::session;
use super::plan::{Change, print_json};
use super::sweep;
use crate::config::Config;
use crate::exit;
use crate::letters::{self, Decision, Fate, Overrides, Plan, Requeue, fates_of, requeue_refusal};
use crate::pg::{Begun, Named, Planned, Session};

#[derive(Debug, Args)]
#[command(
    after_help = "Broken off half-way? Run it again: publishing twice is harmless. Exit 1: none matches, or some could not \
                  be published. 4: nobody agreed."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    change: Change,
    /// Also those of which nobody can say any more whether they took effect: look first, they may run a second time
    #[arg(long)]
    even_if_forgotten: bool,
    /// Also those given up as outcome_unknown, if they are named: look first, what they called outside may happen again
    #[arg(long)]
    repeat_unknown: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments, _times: Times) -> anyhow::Result<ExitCode> {
    let change = arguments.change;
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let overrides = Overrides {
        even_if_forgotten: arguments.even_if_forgotten,
        repeat_unknown: arguments.repeat_unknown,
    };
    let refuse = |letter: &Planned| requeue_refusal(letter, change.names_letters(), overrides);
    let now = session.clock.now();
    let made =
        Plan::make(&mut session.connection, now, letters::Change::Requeue, change.filter(), refuse).await;
    let plan = made?;
    if let Consent::Over(code) = change.agree(&plan)? {
        return Ok(code);
    }
    let prepared = Requeue::prepare(&config, &mut session, "oncely failed requeue", overrides).await;
    let requeue = prepared?;
    let (filter, user) = (serde_json::to_value(&plan.filter)?, consent::user());
    let decision = Decision { user: &user, filter: &filter, reason: change.agreement.note.as_deref() };
    let Begun { taken, closed } = requeue.decide(&mut session, &plan.names(), decision).await?;

    let mut fates = Vec::new();
    let published = requeue.publish(&mut session, &taken, &mut fates).await;
    let in_queue: Vec<Named> = fates
        .iter()
        .filter(|(_, fate)| matches!(fate, Fate::InQueue(_)))
        .map(|(named, _)| named.clone())
        .collect();
    let mut unread = BTreeMap::<String, usize>::new();
    for (_, fate) in &fates {
        if let Fate::InQueue(Some(why)) = fate {
            *unread.entry(why.to_string()).or_default() += 1;
        }
    }
    for (why, letters) in unread {
        output::note(&format!(
            "! {letters} come from their dead-letter queue, and not from their row: the body is {why}"
        ));
    }
    let open =
        |fates: &[(Named, Fate)]| fates.iter().filter(|(_, fate)| matches!(fate, Fate::Failed(_))).count();
    let mut swept = Vec::new();
    // Without a letter that only its queue has, a sweep would try the same again.
    let swept_all = if !in_queue.is_empty() || published.is_ok() && open(&fates) == 0 {
        match sweep::after_change(&config, &mut session, &plan.queues(), &in_queue).await {
            Ok(passes) => {
                swept = passes;
                settle(&mut session, &mut fates).await
            }
            Err(error) => Err(error),
        }
    } else {
        Ok(())
    };
    let of = |fate: &Fate| fates.iter().filter(|(_, found)| found == fate).count();
    let (done, discarded, by_another) = (of(&Fate::Published), of(&Fate::Discarded), of(&Fate::ByAnother));
    let failed = open(&fates);
    output::note(&format!("requeued {done} of {}", taken.len()));
    for (number, told) in [
        (closed.len(), "had taken effect: nothing was published"),
        (discarded, "were discarded meanwhile: not published"),
        (by_another, "were published by another requeue or by a sweep"),
    ] {
        if number > 0 {
            output::note(&format!("{number} {told}"));
        }
    }
    let mut failures = fates.iter().filter_map(|(_, fate)| match fate {
        Fate::Failed(why) => Some(why),
        _ => None,
    });
    if let Some(first) = failures.next() {
        output::note(&format!(
            "{failed} could not be published and stand as requeueing; run it again when this is mended: {first}"
        ));
    }
    published?;
    swept_all?;
    if change.agreement.json {
        print_json(
            &plan,
            false,
            json!({
                "done": done, "closed": closed.len(), "discarded": discarded, "by_another": by_another, "failed": failed,
                "swept": swept,
            }),
        )?;
    }
    session.close().await;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Asks again for what had not been published before the sweep.
async fn settle(session: &mut Session, fates: &mut [(Named, Fate)]) -> anyhow::Result<()> {
    let open = |fate: &Fate| matches!(fate, Fate::InQueue(_) | Fate::Failed(_));
    let asked: Vec<Named> =
        fates.iter().filter(|(_, fate)| open(fate)).map(|(named, _)| named.clone()).collect();
    let known = fates_of(session, &asked).await?;
    for (named, fate) in fates.iter_mut().filter(|(_, fate)| open(fate)) {
        match known.iter().find(|(one, _)| one == named) {
            // Why it failed is known better.
            Some((_, Fate::Failed(_))) if matches!(fate, Fate::Failed(_)) => {}
            // From its queue: counted there.
            Some((_, Fate::ByAnother)) => *fate = Fate::InQueue(None),
            Some((_, now)) => *fate = now.clone(),
            None => {}
        }
    }
    Ok(())
}
