//! Requeues and discards of letters.
//!
//! A requeue: begin and commit; publish with confirms; record that it is done. After a crash in between, the letters have the state
//! requeueing: the next requeue publishes them again. An additional copy is a duplicate, and runs nothing.

use anyhow::Context as _;
use serde_json::Value;
use sqlx::Connection as _;

use super::copy::{self, CopySource};
use super::outcome::LetterOutcome;
use super::plan::Change;
use oncely_amqp::{Copy, Publisher, connect};
use oncely_config::Config;
use oncely_core::decide::KeyStatus;
use oncely_core::letter::{Letter, LetterKeyState};
use oncely_core::reason::Reason;
use oncely_postgres::{self as pg, PlannedLetter, RequeueDecision, Session, TenantLetter};

/// Risks that an operator has checked and accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Include letters older than keys and trail remember, which may have taken effect.
    pub even_if_forgotten: bool,
    /// Include letters with a call to another service that may have happened: it may happen again.
    pub repeat_unknown: bool,
}

/// Returns the reason why a letter can't run again unchanged, or not in a bulk requeue; `None` if it may. `is_named`: the letters are
/// selected by id, failure or key, and not only by origin and time.
pub fn requeue_refusal(letter: &PlannedLetter, is_named: bool, overrides: Overrides) -> Option<&'static str> {
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
    // The key's reason counts, which may have been settled since; if the key is gone, the letter's.
    let reason = match letter.key_status.as_deref() {
        Some(status) if status == KeyStatus::Failed.as_str() => letter.key_reason.as_deref(),
        Some(_) => None,
        None => Some(letter.reason.as_str()),
    };
    if reason == Some(Reason::IncompleteClaim.as_str()) && !is_named {
        return Some(
            "incomplete_claim: they may have taken effect, and would run again; check, then name them \
             by id, --key or --reason",
        );
    }
    if reason == Some(Reason::OutcomeUnknown.as_str()) && !(is_named && overrides.repeat_unknown) {
        return Some(
            "outcome_unknown: their calls to other services may have happened; check, then settle their keys (oncely \
             keys settle), or name them by id, --key or --reason and use --repeat-unknown",
        );
    }
    match LetterKeyState::from_column(&letter.memory) {
        LetterKeyState::TookEffect => {
            return Some(
                "they took effect, says the audit trail, and their keys are not remembered any more, so they would run a second \
                 time; discard them",
            );
        }
        LetterKeyState::Forgotten if !overrides.even_if_forgotten => {
            return Some(
                "they are older than what keys and audit trail remember, and may have taken effect; check, then \
                 discard them, or use --even-if-forgotten",
            );
        }
        _ => {}
    }
    (!letter.same_payload).then_some(
        "their key is another payload's by now, so they would be refused as key_conflict; publish them under a key of their \
         own",
    )
}

/// The operator and the reason, recorded in the transaction of the decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeAuthor<'a> {
    /// The operator's own name; the database adds the login.
    pub(super) user: &'a str,
    pub(super) filter: &'a Value,
    pub(super) reason: Option<&'a str>,
}

impl<'a> ChangeAuthor<'a> {
    /// Returns the decision of a change for the database.
    fn to_decision(self, change: Change) -> pg::LetterDecision<'a> {
        let Self { user, filter, reason } = self;
        pg::LetterDecision { verb: change.verb(), user, filter, reason }
    }
}

/// Discards letters, and records the decision with its author; returns the letters that were open.
///
/// # Errors
/// If the database fails: nothing is changed then, unless the reply to the COMMIT is lost.
pub(super) async fn discard(
    session: &mut Session,
    letters: &[TenantLetter],
    author: ChangeAuthor<'_>,
) -> Result<Vec<TenantLetter>, sqlx::Error> {
    pg::decide_letters(&mut session.connection, letters, author.to_decision(Change::Discard)).await
}

/// Prerequisites of a requeue.
pub(super) struct Requeue {
    publisher: Publisher,
    config: Config,
    overrides: Overrides,
}

impl Requeue {
    /// Prepares a requeue without changes: an unreachable broker must not leave letters half done.
    ///
    /// # Errors
    /// If the broker does not answer, or the database's keys can't be read.
    pub(super) async fn prepare(
        config: &Config,
        session: &mut Session,
        application: &str,
        overrides: Overrides,
    ) -> anyhow::Result<Self> {
        let connection = connect(&config.rabbitmq, application).await.with_context(|| {
            format!("nothing was changed: cannot connect to {}", config.rabbitmq.redacted())
        })?;
        if let Err(error) = connection.close(200, "done".into()).await {
            tracing::debug!(error = %error, "closing a connection to RabbitMQ failed");
        }
        pg::announce_requeue(&mut session.connection).await?;
        pg::read_signing_secrets(&mut session.connection).await?;
        let publisher = Publisher::new(config.rabbitmq.clone(), application.to_owned());
        Ok(Self { publisher, config: config.clone(), overrides })
    }

    /// Begins the requeue of letters, and records the decision with its author in the same transaction: from the commit on the letters are
    /// [`Requeue::publish`]ed, now or by the next requeue.
    ///
    /// # Errors
    /// If the database fails: nothing is changed then, unless the reply to the COMMIT is lost.
    pub(super) async fn begin(
        &self,
        session: &mut Session,
        letters: &[TenantLetter],
        author: ChangeAuthor<'_>,
    ) -> Result<RequeueDecision, sqlx::Error> {
        let now = session.clock.now();
        let mut transaction = session.connection.begin().await?;
        let decision = pg::begin_requeue(
            &mut transaction,
            now,
            letters,
            author.to_decision(Change::Requeue),
            self.overrides.even_if_forgotten,
            self.overrides.repeat_unknown,
        )
        .await?;
        transaction.commit().await?;
        Ok(decision)
    }

    /// Publishes decided letters, and records those that have arrived; returns the outcomes of those that no other session has locked.
    /// Locks each one, so that a discard comes after its publish, or prevents it.
    ///
    /// # Errors
    /// If the database fails: the letters have the state requeueing, and the next requeue publishes them, possibly again.
    pub(super) async fn publish(
        &self,
        session: &mut Session,
        letters: &[TenantLetter],
    ) -> anyhow::Result<Vec<(TenantLetter, LetterOutcome)>> {
        let mut outcomes = Vec::new();
        let mut copies: Vec<(TenantLetter, Copy)> = Vec::new();
        let mut transaction = session.connection.begin().await?;
        let locked = pg::lock_requeueing_letters(&mut transaction, letters).await?;
        // The current keys: a long requeue may outlast a key.
        let keys = self.config.signing_keys(&pg::read_signing_secrets(&mut transaction).await?);
        for message in pg::read_messages(&mut transaction, &locked).await? {
            let generation = u32::try_from(message.generation).unwrap_or(0);
            let letter = (message.tenant.clone(), Letter { id: message.id, generation });
            match copy::build_stored_copy(&keys, self.config.cipher(), &message) {
                Ok(CopySource::InRow(copy)) => copies.push((letter, *copy)),
                Ok(CopySource::InQueue(why)) => {
                    if let Some(why) = &why {
                        tracing::warn!(letter = %message.id, "published from its dead-letter queue: its body is {why}");
                    }
                    outcomes.push((letter, LetterOutcome::FromQueue(why)));
                }
                Err(error) => outcomes.push((letter, LetterOutcome::Failed(format!("{error:#}")))),
            }
        }
        let mut published = Vec::new();
        let all: Vec<Copy> = copies.iter().map(|(_, copy)| copy.clone()).collect();
        let results = self.publisher.publish(&all).await;
        for ((letter, _), result) in copies.into_iter().zip(results) {
            match result {
                Ok(()) => published.push(letter),
                Err(error) => outcomes.push((letter, LetterOutcome::Failed(error.to_string()))),
            }
        }
        pg::finish_requeue(&mut transaction, &published).await?;
        transaction.commit().await?;
        outcomes.extend(published.into_iter().map(|letter| (letter, LetterOutcome::Published)));
        Ok(outcomes)
    }
}

/// Reads the outcomes of decided letters that another requeue, a discard or a sweep had locked.
///
/// # Errors
/// If the database fails.
pub(super) async fn read_outcomes(
    session: &mut Session,
    letters: &[TenantLetter],
) -> Result<Vec<(TenantLetter, LetterOutcome)>, sqlx::Error> {
    if letters.is_empty() {
        return Ok(Vec::new());
    }
    let rows = pg::read_letter_states(&mut session.connection, session.clock.now(), letters).await?;
    let outcomes = letters.iter().map(|letter| {
        let row = rows.iter().find(|row| row.tenant == letter.0 && row.id == letter.1.id);
        let current =
            row.filter(|row| u32::try_from(row.generation).is_ok_and(|known| known == letter.1.generation));
        let outcome = match current.map(|row| row.state.as_str()) {
            Some("discarded") => LetterOutcome::GivenUp,
            Some("requeueing") => LetterOutcome::Failed("it is not published yet".to_owned()),
            // Requeued; or collected since, or dead-lettered again.
            _ => LetterOutcome::ByAnother,
        };
        (letter.clone(), outcome)
    });
    Ok(outcomes.collect())
}
