//! Letters that run again, and letters that are given up.
//!
//! A requeue: decide and commit; publish, confirmed; note that it is done. After a crash in between, the letters stand as requeueing:
//! the next requeue finds them again and publishes them again. A copy too many is a duplicate, and runs nothing.

use anyhow::Context as _;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use super::copy::{self, Held};
use super::outcome::LetterOutcome;
use super::plan::Change;
use crate::amqp::{Copy, Publisher, connect};
use crate::config::Config;
use crate::decide::KeyStatus;
use crate::letter::{Letter, Memory};
use crate::pg::{self, Begun, Named, Planned, Session};
use crate::reason::Reason;

/// What somebody has looked at and takes upon himself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    /// Also letters of which nobody can say any more whether they took effect.
    pub(crate) even_if_forgotten: bool,
    /// Also letters whose call outside may have happened: it may happen again.
    pub(crate) repeat_unknown: bool,
}

/// Why a letter can't run again as it is, or not with many others. `named`: the letters are chosen by what they are, and not only by where
/// they came from and when.
pub(crate) fn requeue_refusal(letter: &Planned, named: bool, overrides: Overrides) -> Option<&'static str> {
    if letter.reason == Reason::KeyConflict.as_str() {
        return Some(
            "key_conflict: their key came before with another payload, so they would be refused again; publish them under a \
             key of their own",
        );
    }
    if letter.from_client && !letter.whole {
        return Some(
            "a client of the SQL protocol has them in a dead-letter queue of its own (oncely failed show says why they are not \
             stored): once that is mended, move them back to their queue, and the client stores them",
        );
    }
    // What the key says counts, which may have been settled since; of one that is gone its letter's word.
    let reason = match letter.key_status.as_deref() {
        Some(status) if status == KeyStatus::Failed.as_str() => letter.key_reason.as_deref(),
        Some(_) => None,
        None => Some(letter.reason.as_str()),
    };
    if reason == Some(Reason::IncompleteClaim.as_str()) && !named {
        return Some(
            "incomplete_claim: they may have taken effect, and would run again; look, and name them by id, --key or --reason",
        );
    }
    if reason == Some(Reason::OutcomeUnknown.as_str()) && !(named && overrides.repeat_unknown) {
        return Some(
            "outcome_unknown: what they called outside may have happened; look, then settle their keys (oncely keys settle), or name \
             them by id, --key or --reason and say --repeat-unknown",
        );
    }
    match Memory::from_column(&letter.memory) {
        Memory::TookEffect => {
            return Some(
                "they took effect, says the audit trail, and their keys are not remembered any more, so they would run a second \
                 time; discard them",
            );
        }
        Memory::Forgotten if !overrides.even_if_forgotten => {
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

/// Who decides, and why: what is recorded in the transaction of the decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision<'a> {
    /// As the person calls himself; the database adds who it is.
    pub(super) user: &'a str,
    pub(super) filter: &'a Value,
    pub(super) reason: Option<&'a str>,
}

impl Decision<'_> {
    async fn record(
        &self,
        connection: &mut PgConnection,
        change: Change,
        done: &[Named],
    ) -> Result<(), sqlx::Error> {
        let action = pg::Action {
            tenant: pg::one_tenant(done.iter().map(|(tenant, _)| tenant.as_str())),
            verb: change.verb(),
            user: self.user,
            filter: self.filter,
            count: i64::try_from(done.len()).unwrap_or(i64::MAX),
            reason: self.reason,
        };
        pg::record_action(connection, &action).await
    }
}

/// Gives letters up, and records it; returns those that were open.
///
/// # Errors
/// When the database fails: nothing is changed then, unless the reply to the COMMIT is lost.
pub(super) async fn discard(
    session: &mut Session,
    letters: &[Named],
    decision: Decision<'_>,
) -> Result<Vec<Named>, sqlx::Error> {
    let now = session.clock.now();
    let mut transaction = session.connection.begin().await?;
    let done =
        pg::change_letters(&mut transaction, now, letters, Change::Discard.open(), "discarded").await?;
    decision.record(&mut transaction, Change::Discard, &done).await?;
    transaction.commit().await?;
    Ok(done)
}

/// What a requeue needs.
pub(super) struct Requeue {
    publisher: Publisher,
    config: Config,
    overrides: Overrides,
}

impl Requeue {
    /// Gets ready. Nothing is changed: a broker that is away must not leave letters half done.
    ///
    /// # Errors
    /// When the broker does not answer, or the database's keys can't be read.
    pub(super) async fn prepare(
        config: &Config,
        session: &mut Session,
        application: &str,
        overrides: Overrides,
    ) -> anyhow::Result<Self> {
        let connection = connect(&config.rabbitmq, application)
            .await
            .with_context(|| format!("nothing was changed: cannot connect to {}", config.rabbitmq.shown()))?;
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
        pg::announce_requeue(&mut session.connection).await?;
        pg::signing_secrets(&mut session.connection).await?;
        let publisher = Publisher::new(config.rabbitmq.clone(), application.to_owned());
        Ok(Self { publisher, config: config.clone(), overrides })
    }

    /// Decides, and records it: from the commit on the letters are [`Requeue::publish`]ed, now or by the next requeue.
    ///
    /// # Errors
    /// When the database fails: nothing is changed then, unless the reply to the COMMIT is lost.
    pub(super) async fn decide(
        &self,
        session: &mut Session,
        letters: &[Named],
        decision: Decision<'_>,
    ) -> Result<Begun, sqlx::Error> {
        let now = session.clock.now();
        let mut transaction = session.connection.begin().await?;
        let begun = pg::begin_requeue(
            &mut transaction,
            now,
            letters,
            self.overrides.even_if_forgotten,
            self.overrides.repeat_unknown,
        )
        .await?;
        let done: Vec<Named> = begun.taken.iter().chain(&begun.closed).cloned().collect();
        decision.record(&mut transaction, Change::Requeue, &done).await?;
        transaction.commit().await?;
        Ok(begun)
    }

    /// Publishes letters that were decided on, and notes those that have arrived; returns the outcomes of those that no other session has in hand.
    /// Locks each meanwhile, so that a discard comes after its publish, or prevents it.
    ///
    /// # Errors
    /// When the database fails: the letters stand as requeueing, and are published, once more perhaps, by the next requeue.
    pub(super) async fn publish(
        &self,
        session: &mut Session,
        letters: &[Named],
    ) -> anyhow::Result<Vec<(Named, LetterOutcome)>> {
        let mut outcomes = Vec::new();
        let mut copies: Vec<(Named, Copy)> = Vec::new();
        let mut transaction = session.connection.begin().await?;
        let ours = pg::lock_requeueing_letters(&mut transaction, letters).await?;
        // Those of now: a long requeue may outlast a key.
        let keys = self.config.signing_keys(&pg::signing_secrets(&mut transaction).await?);
        for message in pg::messages(&mut transaction, &ours).await? {
            let generation = u32::try_from(message.generation).unwrap_or(0);
            let named = (message.tenant.clone(), Letter { id: message.id, generation });
            match copy::stored(&keys, self.config.cipher(), &message) {
                Ok(Held::InRow(copy)) => copies.push((named, *copy)),
                Ok(Held::InQueue(why)) => {
                    if let Some(why) = &why {
                        tracing::warn!(letter = %message.id, "published from its dead-letter queue: its body is {why}");
                    }
                    outcomes.push((named, LetterOutcome::FromQueue(why)));
                }
                Err(error) => outcomes.push((named, LetterOutcome::Failed(format!("{error:#}")))),
            }
        }
        let mut arrived = Vec::new();
        let all: Vec<Copy> = copies.iter().map(|(_, copy)| copy.clone()).collect();
        let results = self.publisher.publish(&all).await;
        for ((named, _), result) in copies.into_iter().zip(results) {
            match result {
                Ok(()) => arrived.push(named),
                Err(error) => outcomes.push((named, LetterOutcome::Failed(error.to_string()))),
            }
        }
        let now = session.clock.now();
        pg::change_letters(&mut transaction, now, &arrived, &["requeueing"], "requeued").await?;
        transaction.commit().await?;
        outcomes.extend(arrived.into_iter().map(|named| (named, LetterOutcome::Published)));
        Ok(outcomes)
    }
}

/// Reads the outcomes of letters that were decided on and that another requeue, a discard or a sweep had locked.
///
/// # Errors
/// When the database fails.
pub(super) async fn standing_outcomes(
    session: &mut Session,
    letters: &[Named],
) -> Result<Vec<(Named, LetterOutcome)>, sqlx::Error> {
    if letters.is_empty() {
        return Ok(Vec::new());
    }
    let rows = pg::standings(&mut session.connection, session.clock.now(), letters).await?;
    let outcomes = letters.iter().map(|named| {
        let row = rows.iter().find(|row| row.tenant == named.0 && row.id == named.1.id);
        let same =
            row.filter(|row| u32::try_from(row.generation).is_ok_and(|known| known == named.1.generation));
        let outcome = match same.map(|row| row.state.as_str()) {
            Some("discarded") => LetterOutcome::GivenUp,
            Some("requeueing") => LetterOutcome::Failed("nobody has published it yet".to_owned()),
            // Requeued; or collected since, or dead-lettered again.
            _ => LetterOutcome::ByAnother,
        };
        (named.clone(), outcome)
    });
    Ok(outcomes.collect())
}
