//! `oncely failed requeue`.
//!
//! Decide and commit; publish, confirmed; note that it is done. After a crash in between, the letters stand as requeueing:
//! the same command finds them again and publishes them again. A copy too many is a duplicate, and runs nothing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use sqlx::Connection as _;

use super::super::consent::Consent;
use super::super::output::{self, Times};
use super::super::session;
use super::copy;
use super::plan::{Change, Plan};
use super::sweep;
use crate::amqp::{Copy, Publisher, connect};
use crate::config::{Config, masked};
use crate::exit;
use crate::letter::{Letter, Memory};
use crate::pg::{self, Begun, Named, Planned, Session};
use crate::reason::Reason;
use crate::signing::SigningKeys;

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

/// Copies published at once.
const CHUNK: usize = 64;

pub(super) async fn run(file: &Path, arguments: Arguments, _times: Times) -> anyhow::Result<ExitCode> {
    let change = arguments.change;
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let even_if_forgotten = arguments.even_if_forgotten;
    let refuse = |letter: &Planned| refusal(letter, change.names_letters(), even_if_forgotten);
    let mut plan = Plan::make(&mut session, &change, "requeue", &["waiting", "requeueing"], refuse).await?;
    let count = |of: fn(&Planned) -> bool| plan.letters.iter().filter(|letter| of(letter)).count();
    let completed = count(|l| l.key_status.as_deref() == Some("COMPLETED"));
    let unfinished = count(|l| l.state == "requeueing");
    let in_queue = count(|l| !l.whole);
    plan.note(completed, "took effect meanwhile: nothing is published, and they leave their queue");
    plan.note(unfinished, "from an earlier requeue that was broken off: published again");
    plan.note(in_queue, "not stored whole: published from the dead-letter queue, by the sweep that follows");
    let now = session.clock.now();
    if let Consent::Over(code) = plan.agree(&change)? {
        return Ok(code);
    }
    // A broker that is away must not leave letters half done.
    let connection = connect(&config.rabbitmq, "oncely failed requeue").await.with_context(|| {
        format!("nothing was changed: cannot connect to {}", masked(&config.rabbitmq.url))
    })?;
    if let Err(error) = connection.close(200, "done".into()).await {
        tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
    }
    let signing_keys = config.signing_keys(&pg::secret(&mut session.connection).await?);

    let mut transaction = session.connection.begin().await?;
    let Begun { taken, closed } =
        pg::begin_requeue(&mut transaction, now, &plan.names(), even_if_forgotten).await?;
    let done: Vec<Named> = taken.iter().chain(&closed).cloned().collect();
    plan.record(&mut transaction, &done, change.agreement.note.as_deref()).await?;
    transaction.commit().await?;

    let published = publish(&config, &mut session, &signing_keys, &taken).await?;
    let failures = published.failures.len();
    output::note(&format!("requeued {} of {}", published.done, taken.len()));
    if !closed.is_empty() {
        output::note(&format!("{} had taken effect: nothing was published", closed.len()));
    }
    if let Some(first) = published.failures.first() {
        output::note(&format!(
            "{failures} could not be published and stand as requeueing; run it again when this is mended: {first}"
        ));
    }
    let swept = if failures == 0 {
        sweep::after_change(&config, &mut session, &plan.queues(), &published.in_queue).await?
    } else {
        // It would try the same again.
        Vec::new()
    };
    if change.agreement.json {
        plan.print_json(
            false,
            json!({ "done": published.done, "closed": closed.len(), "failed": failures, "swept": swept }),
        )?;
    }
    session.close().await;
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Why a letter can't run again as it is, or not with many others.
fn refusal(letter: &Planned, named: bool, even_if_forgotten: bool) -> Option<&'static str> {
    if letter.reason == Reason::KeyConflict.as_str() {
        return Some(
            "key_conflict: their key came before with another payload, so they would be refused again; publish them under a \
             key of their own",
        );
    }
    if letter.reason == Reason::IncompleteClaim.as_str() && !named {
        return Some(
            "incomplete_claim: they may have taken effect, and would run again; look, and name them by id, --key or --reason",
        );
    }
    match Memory::from_column(&letter.memory) {
        Memory::TookEffect => {
            return Some(
                "they took effect, says the audit trail, and their keys are not remembered any more, so they would run a second \
                 time; discard them",
            );
        }
        Memory::Forgotten if !even_if_forgotten => {
            return Some(
                "they are older than what keys and audit trail remember: nobody can say whether they took effect; look, then \
                 discard them, or say --even-if-forgotten",
            );
        }
        _ => {}
    }
    (!letter.same_payload).then_some(
        "their key is another payload's by now, so they would be refused as key_conflict; publish them under a key of their \
         own",
    )
}

/// What became of a requeue.
#[derive(Default)]
struct Published {
    done: usize,
    failures: Vec<String>,
    /// Those that only the queue has.
    in_queue: Vec<Named>,
}

async fn publish(
    config: &Config,
    session: &mut Session,
    signing_keys: &SigningKeys,
    letters: &[Named],
) -> anyhow::Result<Published> {
    let publisher = Publisher::new(config.rabbitmq.clone(), "oncely failed requeue".to_owned());
    let mut published = Published::default();
    for chunk in letters.chunks(CHUNK) {
        let mut copies: Vec<(Named, Copy)> = Vec::new();
        for message in pg::messages(&mut session.connection, chunk).await? {
            let generation = u32::try_from(message.generation).unwrap_or(0);
            let named = (message.tenant.clone(), Letter { id: message.id, generation });
            match copy::stored(signing_keys, &message) {
                Ok(Some(copy)) => copies.push((named, copy)),
                Ok(None) => published.in_queue.push(named),
                Err(error) => published.failures.push(format!("{error:#}")),
            }
        }
        let mut arrived = Vec::new();
        let all: Vec<Copy> = copies.iter().map(|(_, copy)| copy.clone()).collect();
        let results = publisher.publish(&all).await;
        for ((named, _), result) in copies.into_iter().zip(results) {
            match result {
                Ok(()) => arrived.push(named),
                Err(error) => published.failures.push(error.to_string()),
            }
        }
        let now = session.clock.now();
        // One that has come back since is waiting again, in its next generation.
        pg::change_letters(&mut session.connection, now, &arrived, &["requeueing"], "requeued").await?;
        published.done += arrived.len();
    }
    Ok(published)
}
