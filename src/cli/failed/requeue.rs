//! `oncely failed requeue`.

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
use crate::letters::{self, Decision, Fate, Plan, Requeue, requeue_refusal};
use crate::pg::{Begun, Named, Planned};

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
}

pub(super) async fn run(file: &Path, arguments: Arguments, _times: Times) -> anyhow::Result<ExitCode> {
    let change = arguments.change;
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let even_if_forgotten = arguments.even_if_forgotten;
    let refuse = |letter: &Planned| requeue_refusal(letter, change.names_letters(), even_if_forgotten);
    let now = session.clock.now();
    let made =
        Plan::make(&mut session.connection, now, letters::Change::Requeue, change.filter(), refuse).await;
    let plan = made?;
    if let Consent::Over(code) = change.agree(&plan)? {
        return Ok(code);
    }
    let prepared = Requeue::prepare(&config, &mut session, "oncely failed requeue", even_if_forgotten).await;
    let requeue = prepared?;
    let (filter, user) = (serde_json::to_value(&plan.filter)?, consent::user());
    let decision = Decision { user: &user, filter: &filter, reason: change.agreement.note.as_deref() };
    let Begun { taken, closed } = requeue.decide(&mut session, &plan.names(), decision).await?;

    let fates = requeue.publish(&mut session, &taken).await?;
    let of = |fate: &Fate| fates.iter().filter(|(_, found)| found == fate).count();
    let done = of(&Fate::Published);
    let in_queue: Vec<Named> =
        fates.iter().filter(|(_, fate)| *fate == Fate::InQueue).map(|(named, _)| named.clone()).collect();
    let mut failures = fates.iter().filter_map(|(_, fate)| match fate {
        Fate::Failed(why) => Some(why),
        Fate::Published | Fate::InQueue => None,
    });
    let failed = failures.clone().count();
    output::note(&format!("requeued {done} of {}", taken.len()));
    if !closed.is_empty() {
        output::note(&format!("{} had taken effect: nothing was published", closed.len()));
    }
    if let Some(first) = failures.next() {
        output::note(&format!(
            "{failed} could not be published and stand as requeueing; run it again when this is mended: {first}"
        ));
    }
    let swept = if failed == 0 {
        sweep::after_change(&config, &mut session, &plan.queues(), &in_queue).await?
    } else {
        // It would try the same again.
        Vec::new()
    };
    if change.agreement.json {
        print_json(
            &plan,
            false,
            json!({ "done": done, "closed": closed.len(), "failed": failed, "swept": swept }),
        )?;
    }
    session.close().await;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}
