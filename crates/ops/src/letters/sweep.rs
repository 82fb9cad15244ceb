//! The sweep: the only reader of the dead-letter queues.
//!
//! Requeued and discarded messages leave the queue. The others are published again to its end and only then acknowledged: no message is
//! returned to the queue, so none uses up a quorum queue's delivery limit, and a crash leaves a copy too many, never one too few.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::Connection as _;

use super::copy::{LetterIdentity, build_copy};
use super::swept::SweepReport;
use oncely_amqp::{Copy, Publisher, QueueReader, QueuedMessage, Topology, header, put_header};
use oncely_config::Config;
use oncely_core::backoff::Backoff;
use oncely_core::letter::{Letter, LetterKeyState};
use oncely_core::own_headers;
use oncely_core::signing::{SignatureError, SigningKeys};
use oncely_postgres::{self as pg, LetterState, Session, TenantLetter};
use oncely_process::preflight::open_session;

/// Messages held at once: below 32. With this number of acknowledgements in flight, RabbitMQ's side of a quorum queue holds back the next
/// ones, and forgets them when the channel closes: of 64 held at once, many were delivered again, with a higher delivery count.
const MAX_HELD_MESSAGES: usize = 16;
/// Maximum bytes held at once.
const MAX_HELD_BYTES: usize = 32 << 20;

/// Time for which a sweep tries to record its result while PostgreSQL does not take it.
const RECORD_TIME: Duration = Duration::from_secs(30);

/// Maximum number of messages that a sweep after a change reads; a longer sweep has to be started by an operator.
pub const MAX_AUTOMATIC_MESSAGES: u32 = 10_000;

/// Result of the sweep of a queue after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepResult {
    Done(SweepReport),
    /// The queue has too many messages: it is left to a sweep that an operator starts.
    TooLong(String),
}

/// Sweeps queues after a change. `in_queue`: letters that only their queue has, which justify a long sweep.
///
/// # Errors
/// If a server does not answer: the other messages stay in their queue, and the next sweep finds them.
pub(super) async fn sweep_after_change(
    config: &Config,
    session: &mut Session,
    queues: &[String],
    in_queue: &[TenantLetter],
) -> anyhow::Result<Vec<SweepResult>> {
    let mut passes = Vec::new();
    let max_messages = in_queue.is_empty().then_some(MAX_AUTOMATIC_MESSAGES);
    for queue in queues {
        passes.push(match sweep(config, session, queue, max_messages, in_queue).await? {
            Some(report) => SweepResult::Done(report),
            None => SweepResult::TooLong(queue.clone()),
        });
    }
    Ok(passes)
}

/// Makes one pass over the messages of a dead-letter queue that are ready at its start; returns `None` if more than `max_messages` are
/// ready. `requested`: letters that an operator has just requested, even if their effect is forgotten.
///
/// # Errors
/// If a server does not answer: the other messages stay in their queue, and the next sweep finds them.
pub async fn sweep(
    config: &Config,
    session: &mut Session,
    queue: &str,
    max_messages: Option<u32>,
    requested: &[TenantLetter],
) -> anyhow::Result<Option<SweepReport>> {
    sweep_queue(config, session, queue, max_messages, requested, None).await
}

/// Makes one pass that removes all copies of a tenant from a dead-letter queue, independent of their letters' rows. A copy counts as the
/// tenant's if its mark proves it: a header alone could be any publisher's.
///
/// # Errors
/// If a server does not answer: the other messages stay in their queue, and the next sweep finds them.
pub async fn sweep_tenant(
    config: &Config,
    session: &mut Session,
    queue: &str,
    tenant: &str,
) -> anyhow::Result<SweepReport> {
    Ok(sweep_queue(config, session, queue, None, &[], Some(tenant)).await?.unwrap_or_default())
}

/// Makes one pass over a dead-letter queue; returns `None` if more than `max_messages` messages are ready. `erased_tenant`: the tenant of
/// which all proven copies are removed, independent of their rows.
async fn sweep_queue(
    config: &Config,
    session: &mut Session,
    queue: &str,
    max_messages: Option<u32>,
    requested: &[TenantLetter],
    erased_tenant: Option<&str>,
) -> anyhow::Result<Option<SweepReport>> {
    let dead_letter_queue = Topology::dead_letter_queue(queue);
    let (reader, ready) =
        QueueReader::open(&config.rabbitmq, "oncely failed sweep", &dead_letter_queue).await?;
    if max_messages.is_some_and(|max_messages| ready > max_messages) {
        reader.close().await;
        return Ok(None);
    }
    let publisher = Publisher::new(config.rabbitmq.clone(), "oncely failed sweep publisher".to_owned());
    let mut walk = SweepWalk {
        queue,
        dead_letter_queue: &dead_letter_queue,
        requested: requested.iter().collect(),
        erased_tenant,
        config,
        reader: &reader,
        publisher: &publisher,
        removed_letters: Vec::new(),
        report: SweepReport { queue: queue.to_owned(), ..SweepReport::default() },
    };
    let mut left = ready;
    let result = loop {
        let mut held = Vec::new();
        let mut bytes = 0;
        while left > 0 && held.len() < MAX_HELD_MESSAGES && bytes < MAX_HELD_BYTES {
            // Fewer than at the start: another sweep has them.
            let Some(message) = reader.take().await? else {
                left = 0;
                break;
            };
            left -= 1;
            bytes += message.body.len();
            held.push(message);
        }
        if held.is_empty() {
            break Ok(());
        }
        let settlement = walk.settle(session, held).await;
        // The reply confirms that the acknowledgements before it have arrived.
        let confirmation = reader.count_ready().await;
        let recording = match &confirmation {
            Ok(_) => walk.record_removed_letters(session).await,
            Err(_) => Ok(()),
        };
        // The first error explains the others.
        if let Err(error) = settlement.and(confirmation.map(drop).map_err(Into::into)).and(recording) {
            break Err(error);
        }
    };
    let report = walk.report;
    reader.close().await;
    result?;
    Ok(Some(report))
}

/// Decision about a message of a dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepDecision {
    /// Removes it: the copy is not needed.
    Drop,
    /// Publishes it to its queue: this is the copy that runs again.
    Return,
    /// Removes it: it took effect after it was requeued, which the row does not record yet.
    Close,
    /// Keeps it.
    Keep,
    /// Keeps it, though it is being requeued: a copy would not be recognised as a duplicate.
    Forgotten,
}

/// Judges a copy of a letter by its row. A copy without a row, or of a generation that the row does not know, stays; so does one that took
/// effect under a forgotten key, and one that may have, unless an operator has just requested the latter.
fn judge_copy(letter: Letter, row: Option<&LetterState>, is_requested: bool) -> SweepDecision {
    let Some(row) = row else { return SweepDecision::Keep };
    let current = u32::try_from(row.generation).unwrap_or(0);
    match (letter.generation.cmp(&current), row.state.as_str()) {
        (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, "requeued" | "discarded") => {
            SweepDecision::Drop
        }
        (std::cmp::Ordering::Equal, "requeueing") => match LetterKeyState::from_column(&row.memory) {
            LetterKeyState::Runnable => SweepDecision::Return,
            LetterKeyState::Completed => SweepDecision::Close,
            LetterKeyState::Forgotten if is_requested => SweepDecision::Return,
            LetterKeyState::TookEffect | LetterKeyState::Forgotten => SweepDecision::Forgotten,
        },
        _ => SweepDecision::Keep,
    }
}

struct SweepWalk<'a> {
    queue: &'a str,
    dead_letter_queue: &'a str,
    requested: HashSet<&'a TenantLetter>,
    /// The tenant to erase: all its copies are removed.
    erased_tenant: Option<&'a str>,
    config: &'a Config,
    reader: &'a QueueReader,
    publisher: &'a Publisher,
    /// Closed letters with acknowledged copies.
    removed_letters: Vec<TenantLetter>,
    report: SweepReport,
}

impl SweepWalk<'_> {
    /// Records the letters with copies that have left the queue, which no later sweep finds out. Tries again on new sessions for
    /// [`RECORD_TIME`].
    async fn record_removed_letters(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let removed_letters = std::mem::take(&mut self.removed_letters);
        let (began, mut backoff) = (Instant::now(), Backoff::default());
        loop {
            let marked = pg::mark_swept(&mut session.connection, &removed_letters, session.clock.now()).await;
            let Err(error) = marked else { return Ok(()) };
            if began.elapsed() > RECORD_TIME {
                return Err(error).context("recording which letters have left their queue");
            }
            tracing::warn!(
                error = pg::describe(&error),
                "cannot record which letters have left their queue; retrying"
            );
            tokio::time::sleep(backoff.next_pause()).await;
            if let Ok(open) = open_session(self.config).await {
                *session = open;
            }
        }
    }

    /// Decides about messages, publishes their replacements, and settles them: each is acknowledged only after its replacement is known to
    /// have arrived.
    async fn settle(&mut self, session: &mut Session, held: Vec<QueuedMessage>) -> anyhow::Result<()> {
        // Read after the held messages were marked, so that all keys of their marks are included.
        let keys = self.config.signing_keys(&pg::read_signing_secrets(&mut session.connection).await?);
        let marks: Vec<Result<Option<TenantLetter>, SignatureError>> =
            held.iter().map(|message| read_marked_letter(&keys, message)).collect();
        let known = marks.iter().flatten().flatten().cloned();
        let letters: Vec<TenantLetter> = known.collect::<HashSet<_>>().into_iter().collect();
        let now = session.clock.now();
        let mut transaction = session.connection.begin().await?;
        // A discard waits for publishes from here, or comes before them.
        let locked = pg::lock_free_requeueing_letters(&mut transaction, &letters).await?;
        let rows: HashMap<(String, uuid::Uuid), LetterState> =
            pg::read_letter_states(&mut transaction, now, &letters)
                .await?
                .into_iter()
                .map(|row| ((row.tenant.clone(), row.id), row))
                .collect();
        let mut copies = Vec::new();
        let mut decisions = Vec::new();
        for (message, mark) in held.iter().zip(&marks) {
            let letter = mark.as_ref().ok().and_then(Option::as_ref);
            let row = letter.and_then(|(tenant, letter)| rows.get(&(tenant.clone(), letter.id)));
            // A letter that was moved by hand into another queue does not belong to this sweep.
            let row = row.filter(|row| row.queue == self.queue);
            let decision = self.decide_copy(letter, row, &locked);
            match (decision, row) {
                (SweepDecision::Return, Some(row)) => {
                    copies.push(self.build_returned_copy(&keys, message, row)?)
                }
                (SweepDecision::Keep | SweepDecision::Forgotten, _) => {
                    copies.push(self.build_kept_copy(&keys, message, letter))
                }
                _ => {}
            }
            decisions.push(decision);
        }
        let mut results = self.publisher.publish(&copies).await.into_iter();
        let mut failure = None;
        let mut done = Vec::new();
        for ((message, mark), decision) in held.iter().zip(marks).zip(decisions) {
            let result = match decision {
                SweepDecision::Drop | SweepDecision::Close => Some(Ok(())),
                SweepDecision::Return | SweepDecision::Keep | SweepDecision::Forgotten => results.next(),
            };
            match result {
                Some(Ok(())) => done.push((message, mark, decision)),
                Some(Err(error)) => failure = Some(error),
                None => {}
            }
        }
        let closed = done
            .iter()
            .filter(|(.., decision)| matches!(decision, SweepDecision::Return | SweepDecision::Close));
        let closed: Vec<TenantLetter> =
            closed.filter_map(|(_, mark, _)| mark.as_ref().ok().cloned().flatten()).collect();
        pg::finish_requeue(&mut transaction, &closed).await?;
        transaction.commit().await?;
        for (message, mark, decision) in done {
            self.reader.acknowledge(message.tag).await?;
            let tenant = header(message.properties.headers().as_ref(), own_headers::TENANT);
            if decision != SweepDecision::Drop && tenant.is_some() && tenant == self.erased_tenant {
                self.report.unproven += 1;
            }
            self.count_decision(decision, mark);
        }
        match failure {
            Some(error) => Err(anyhow::Error::new(error)
                .context(format!("sweeping {} was broken off", self.dead_letter_queue))),
            None => Ok(()),
        }
    }

    /// Decides about a copy by its letter and its row; a copy without a letter stays. `locked`: letters that this session has locked.
    fn decide_copy(
        &self,
        letter: Option<&TenantLetter>,
        row: Option<&LetterState>,
        locked: &[TenantLetter],
    ) -> SweepDecision {
        let Some(letter) = letter else { return SweepDecision::Keep };
        if self.erased_tenant == Some(letter.0.as_str()) {
            return SweepDecision::Drop;
        }
        match judge_copy(letter.1, row, self.requested.contains(letter)) {
            // Another session has locked it.
            SweepDecision::Return | SweepDecision::Close if !locked.contains(letter) => SweepDecision::Keep,
            decision => decision,
        }
    }

    /// Counts a decision about a copy, and remembers the letter of a copy that left the queue.
    fn count_decision(
        &mut self,
        decision: SweepDecision,
        letter: Result<Option<TenantLetter>, SignatureError>,
    ) {
        match decision {
            SweepDecision::Drop | SweepDecision::Close => self.report.dropped += 1,
            SweepDecision::Return => self.report.requeued += 1,
            SweepDecision::Keep => {
                self.report.kept += 1;
                if let Err(why) = &letter {
                    self.report.unreadable_marks.count_error(why);
                }
            }
            SweepDecision::Forgotten => {
                self.report.kept += 1;
                self.report.forgotten += 1;
            }
        }
        if matches!(decision, SweepDecision::Drop | SweepDecision::Close | SweepDecision::Return) {
            // For an older generation this proves nothing: it is not recorded as swept.
            self.removed_letters.extend(letter.ok().flatten());
        }
    }

    /// Builds the copy that runs again.
    fn build_returned_copy(
        &self,
        keys: &SigningKeys,
        message: &QueuedMessage,
        row: &LetterState,
    ) -> anyhow::Result<Copy> {
        let identity = LetterIdentity {
            tenant: &row.tenant,
            consumer: &row.consumer,
            key: &row.key,
            user_id: row.user_id.as_deref(),
            from_client: false,
            letter: Letter { id: row.id, generation: u32::try_from(row.generation).unwrap_or(0) },
        };
        let headers = message.properties.headers().clone().unwrap_or_default();
        let body = message.body.clone();
        build_copy(keys, &identity, self.queue, &row.routing_key, &message.properties, &headers, body)
    }

    /// Builds the same message for this queue only: another queue that is bound to the dead-letter exchange must not get a copy with each
    /// sweep. The routing key is replaced by the queue's name, so a header keeps it. A marked letter is marked again with the current key:
    /// it may wait longer than its original key is accepted.
    fn build_kept_copy(
        &self,
        keys: &SigningKeys,
        message: &QueuedMessage,
        letter: Option<&TenantLetter>,
    ) -> Copy {
        let mut headers = message.properties.headers().clone().unwrap_or_default();
        if header(Some(&headers), own_headers::ROUTING_KEY).is_none() {
            put_header(&mut headers, own_headers::ROUTING_KEY, &message.routing_key);
        }
        if let Some(user_id) = message.properties.user_id() {
            put_header(&mut headers, own_headers::USER_ID, user_id.as_str());
        }
        if let Some((tenant, letter)) = letter {
            put_header(
                &mut headers,
                own_headers::LETTER_MARK,
                &keys.sign_letter(*letter, tenant, &message.body),
            );
        }
        Copy::from_original(
            &message.properties,
            headers,
            String::new(),
            self.dead_letter_queue.to_owned(),
            message.body.clone(),
        )
    }
}

/// Reads the letter of a message that a worker has marked; `None` without a mark, as a header alone could be any publisher's.
fn read_marked_letter(
    keys: &SigningKeys,
    message: &QueuedMessage,
) -> Result<Option<TenantLetter>, SignatureError> {
    let headers = message.properties.headers().as_ref();
    let (letter, mark) = (header(headers, own_headers::LETTER), header(headers, own_headers::LETTER_MARK));
    let tenant = header(headers, own_headers::TENANT).unwrap_or_default();
    let letter = keys.read_mark(letter, mark, tenant, &message.body)?;
    Ok(letter.map(|letter| (tenant.to_owned(), letter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_goes_only_where_its_row_says_that_nobody_needs_it() {
        let id = uuid::Uuid::from_u128(7);
        let row = |state: &str, generation| LetterState {
            tenant: String::new(),
            id,
            generation,
            state: state.to_owned(),
            queue: "payments".to_owned(),
            consumer: String::new(),
            key: String::new(),
            routing_key: String::new(),
            user_id: None,
            memory: "FAILED".to_owned(),
        };
        let of = |generation, row: &LetterState| judge_copy(Letter { id, generation }, Some(row), false);
        assert_eq!(judge_copy(Letter { id, generation: 1 }, None, false), SweepDecision::Keep);
        assert_eq!(of(1, &row("waiting", 1)), SweepDecision::Keep);
        assert_eq!(of(1, &row("requeueing", 1)), SweepDecision::Return);
        assert_eq!(of(1, &row("requeued", 1)), SweepDecision::Drop);
        assert_eq!(of(1, &row("discarded", 1)), SweepDecision::Drop);
        for state in ["waiting", "requeueing", "requeued", "discarded"] {
            assert_eq!(
                of(1, &row(state, 2)),
                SweepDecision::Drop,
                "an older copy; the current one is behind it"
            );
            assert_eq!(
                of(3, &row(state, 2)),
                SweepDecision::Keep,
                "a database that knows less than the queue"
            );
        }
        for (memory, decision, requested) in [
            ("NONE", SweepDecision::Return, SweepDecision::Return),
            ("IN_PROGRESS", SweepDecision::Return, SweepDecision::Return),
            ("COMPLETED", SweepDecision::Close, SweepDecision::Close),
            ("TOOK_EFFECT", SweepDecision::Forgotten, SweepDecision::Forgotten),
            ("FORGOTTEN", SweepDecision::Forgotten, SweepDecision::Return),
        ] {
            let row = LetterState { memory: memory.to_owned(), ..row("requeueing", 1) };
            assert_eq!(of(1, &row), decision, "{memory}");
            assert_eq!(judge_copy(Letter { id, generation: 1 }, Some(&row), true), requested, "{memory}");
        }
    }
}
