//! The sweep: the only reader of the dead-letter queues.
//!
//! Requeued and discarded messages leave the queue. The others are published again to its end and only then acknowledged: no message is
//! returned to the queue, so none uses up a quorum queue's delivery limit, and a crash leaves a copy too many, never one too few.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::Connection as _;

use super::copy::{Owner, returned};
use super::swept::SweepReport;
use oncely_amqp::{Copy, Publisher, QueueReader, QueuedMessage, Topology, header, put};
use oncely_config::Config;
use oncely_core::backoff::Backoff;
use oncely_core::letter::{Letter, LetterKeyState};
use oncely_core::own_headers;
use oncely_core::signing::{SignatureError, SigningKeys};
use oncely_postgres::{self as pg, LetterState, Session, TenantLetter};
use oncely_process::preflight::open_session;

/// Messages held at once: below 32. With this number of acknowledgements in flight, RabbitMQ's side of a quorum queue holds back the next
/// ones, and forgets them when the channel closes: of 64 held at once, many were delivered again, with a higher delivery count.
const MOST_HELD: usize = 16;
/// Maximum bytes held at once.
const HELD_BYTES: usize = 32 << 20;

/// Time for which a sweep tries to record its result while PostgreSQL does not take it.
const RECORDING: Duration = Duration::from_secs(30);

/// From this number of messages on, the sweep does not follow a change, but has to be started by an operator.
pub const LONG: u32 = 10_000;

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
/// If a server does not answer: the rest stays in its queue, and the next sweep finds it.
pub(super) async fn sweep_after_change(
    config: &Config,
    session: &mut Session,
    queues: &[String],
    in_queue: &[TenantLetter],
) -> anyhow::Result<Vec<SweepResult>> {
    let mut passes = Vec::new();
    let most = in_queue.is_empty().then_some(LONG);
    for queue in queues {
        passes.push(match sweep(config, session, queue, most, in_queue).await? {
            Some(swept) => SweepResult::Done(swept),
            None => SweepResult::TooLong(queue.clone()),
        });
    }
    Ok(passes)
}

/// Makes one pass over the messages that are ready at its start; `None` if those are more than `most`. `asked`: letters that an operator
/// has just requested, even if their effect is forgotten.
///
/// # Errors
/// If a server does not answer: the rest stays in its queue, and the next sweep finds it.
pub async fn sweep(
    config: &Config,
    session: &mut Session,
    queue: &str,
    most: Option<u32>,
    asked: &[TenantLetter],
) -> anyhow::Result<Option<SweepReport>> {
    sweep_queue(config, session, queue, most, asked, None).await
}

/// Makes one pass that removes all copies of a tenant from the dead-letter queue, independent of their letters' rows. A copy counts as the
/// tenant's if its mark proves it: a header alone could be any publisher's.
///
/// # Errors
/// Like [`sweep`].
pub async fn sweep_tenant(
    config: &Config,
    session: &mut Session,
    queue: &str,
    tenant: &str,
) -> anyhow::Result<SweepReport> {
    Ok(sweep_queue(config, session, queue, None, &[], Some(tenant)).await?.unwrap_or_default())
}

/// Makes one pass over a dead-letter queue; `None` if more than `most` messages are ready. `erased`: the tenant of which all proven copies
/// are removed, independent of their rows.
async fn sweep_queue(
    config: &Config,
    session: &mut Session,
    queue: &str,
    most: Option<u32>,
    asked: &[TenantLetter],
    erased: Option<&str>,
) -> anyhow::Result<Option<SweepReport>> {
    let dead = Topology::dead_letter_queue(queue);
    let (reader, ready) = QueueReader::open(&config.rabbitmq, "oncely failed sweep", &dead).await?;
    if most.is_some_and(|most| ready > most) {
        reader.close().await;
        return Ok(None);
    }
    let publisher = Publisher::new(config.rabbitmq.clone(), "oncely failed sweep publisher".to_owned());
    let mut walk = SweepWalk {
        queue,
        dead: &dead,
        asked: asked.iter().collect(),
        erased,
        config,
        reader: &reader,
        publisher: &publisher,
        gone: Vec::new(),
        swept: SweepReport { queue: queue.to_owned(), ..SweepReport::default() },
    };
    let mut left = ready;
    let done = loop {
        let mut held = Vec::new();
        let mut bytes = 0;
        while left > 0 && held.len() < MOST_HELD && bytes < HELD_BYTES {
            // Fewer than at the start: another sweep has them.
            let Some(taken) = reader.take().await? else {
                left = 0;
                break;
            };
            left -= 1;
            bytes += taken.body.len();
            held.push(taken);
        }
        if held.is_empty() {
            break Ok(());
        }
        let settled = walk.settle(session, held).await;
        // Its answer confirms that the acknowledgements before it have arrived.
        let confirmed = reader.ready().await;
        let recorded = match &confirmed {
            Ok(_) => walk.record_gone(session).await,
            Err(_) => Ok(()),
        };
        // The first error explains the others.
        if let Err(error) = settled.and(confirmed.map(drop).map_err(Into::into)).and(recorded) {
            break Err(error);
        }
    };
    let swept = walk.swept;
    reader.close().await;
    done?;
    Ok(Some(swept))
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
fn judge(letter: Letter, row: Option<&LetterState>, is_asked: bool) -> SweepDecision {
    let Some(row) = row else { return SweepDecision::Keep };
    let current = u32::try_from(row.generation).unwrap_or(0);
    match (letter.generation.cmp(&current), row.state.as_str()) {
        (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, "requeued" | "discarded") => {
            SweepDecision::Drop
        }
        (std::cmp::Ordering::Equal, "requeueing") => match LetterKeyState::from_column(&row.memory) {
            LetterKeyState::Runnable => SweepDecision::Return,
            LetterKeyState::Completed => SweepDecision::Close,
            LetterKeyState::Forgotten if is_asked => SweepDecision::Return,
            LetterKeyState::TookEffect | LetterKeyState::Forgotten => SweepDecision::Forgotten,
        },
        _ => SweepDecision::Keep,
    }
}

struct SweepWalk<'a> {
    queue: &'a str,
    dead: &'a str,
    asked: HashSet<&'a TenantLetter>,
    /// The tenant to erase: all its copies are removed.
    erased: Option<&'a str>,
    config: &'a Config,
    reader: &'a QueueReader,
    publisher: &'a Publisher,
    /// Closed letters with acknowledged copies.
    gone: Vec<TenantLetter>,
    swept: SweepReport,
}

impl SweepWalk<'_> {
    /// Records the letters with copies that are gone, which no later sweep finds out: tried again on new sessions for [`RECORDING`].
    async fn record_gone(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let gone = std::mem::take(&mut self.gone);
        let (began, mut backoff) = (Instant::now(), Backoff::default());
        loop {
            let marked = pg::mark_swept(&mut session.connection, &gone, session.clock.now()).await;
            let Err(error) = marked else { return Ok(()) };
            if began.elapsed() > RECORDING {
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

    /// Settles messages: each is acknowledged only after its replacement is known to have arrived.
    async fn settle(&mut self, session: &mut Session, held: Vec<QueuedMessage>) -> anyhow::Result<()> {
        // Read after the held messages were marked, so that all keys of their marks are included.
        let keys = self.config.signing_keys(&pg::signing_secrets(&mut session.connection).await?);
        let named: Vec<Result<Option<TenantLetter>, SignatureError>> =
            held.iter().map(|taken| marked_letter(&keys, taken)).collect();
        let known = named.iter().flatten().flatten().cloned();
        let asked: Vec<TenantLetter> = known.collect::<HashSet<_>>().into_iter().collect();
        let now = session.clock.now();
        let mut transaction = session.connection.begin().await?;
        // A discard waits for publishes from here, or comes before them.
        let ours = pg::lock_free_requeueing_letters(&mut transaction, &asked).await?;
        let rows: HashMap<(String, uuid::Uuid), LetterState> = pg::standings(&mut transaction, now, &asked)
            .await?
            .into_iter()
            .map(|row| ((row.tenant.clone(), row.id), row))
            .collect();
        let mut copies = Vec::new();
        let mut verdicts = Vec::new();
        for (taken, named) in held.iter().zip(&named) {
            let named = named.as_ref().ok().and_then(Option::as_ref);
            let row = named.and_then(|(tenant, letter)| rows.get(&(tenant.clone(), letter.id)));
            // A letter that was moved by hand into another queue does not belong to this sweep.
            let row = row.filter(|row| row.queue == self.queue);
            let verdict = self.decide(named, row, &ours);
            match (verdict, row) {
                (SweepDecision::Return, Some(row)) => copies.push(self.returned(&keys, taken, row)?),
                (SweepDecision::Keep | SweepDecision::Forgotten, _) => {
                    copies.push(self.kept(&keys, taken, named))
                }
                _ => {}
            }
            verdicts.push(verdict);
        }
        let mut results = self.publisher.publish(&copies).await.into_iter();
        let mut failure = None;
        let mut done = Vec::new();
        for ((taken, named), verdict) in held.iter().zip(named).zip(verdicts) {
            let result = match verdict {
                SweepDecision::Drop | SweepDecision::Close => Some(Ok(())),
                SweepDecision::Return | SweepDecision::Keep | SweepDecision::Forgotten => results.next(),
            };
            match result {
                Some(Ok(())) => done.push((taken, named, verdict)),
                Some(Err(error)) => failure = Some(error),
                None => {}
            }
        }
        let closed = done
            .iter()
            .filter(|(.., verdict)| matches!(verdict, SweepDecision::Return | SweepDecision::Close));
        let closed: Vec<TenantLetter> =
            closed.filter_map(|(_, named, _)| named.as_ref().ok().cloned().flatten()).collect();
        pg::finish_requeue(&mut transaction, &closed).await?;
        transaction.commit().await?;
        for (taken, named, verdict) in done {
            self.reader.acknowledge(taken.tag).await?;
            let says = header(taken.properties.headers().as_ref(), own_headers::TENANT);
            if verdict != SweepDecision::Drop && says.is_some() && says == self.erased {
                self.swept.unproven += 1;
            }
            self.count(verdict, named);
        }
        match failure {
            Some(error) => {
                Err(anyhow::Error::new(error).context(format!("sweeping {} was broken off", self.dead)))
            }
            None => Ok(()),
        }
    }

    /// Decides about a message. `ours`: letters that this session has locked.
    fn decide(
        &self,
        named: Option<&TenantLetter>,
        row: Option<&LetterState>,
        ours: &[TenantLetter],
    ) -> SweepDecision {
        let Some(named) = named else { return SweepDecision::Keep };
        if self.erased == Some(named.0.as_str()) {
            return SweepDecision::Drop;
        }
        match judge(named.1, row, self.asked.contains(named)) {
            // Another session has locked it.
            SweepDecision::Return | SweepDecision::Close if !ours.contains(named) => SweepDecision::Keep,
            decision => decision,
        }
    }

    fn count(&mut self, verdict: SweepDecision, named: Result<Option<TenantLetter>, SignatureError>) {
        match verdict {
            SweepDecision::Drop | SweepDecision::Close => self.swept.dropped += 1,
            SweepDecision::Return => self.swept.requeued += 1,
            SweepDecision::Keep => {
                self.swept.kept += 1;
                if let Err(why) = &named {
                    self.swept.unreadable_marks.count(why);
                }
            }
            SweepDecision::Forgotten => {
                self.swept.kept += 1;
                self.swept.forgotten += 1;
            }
        }
        if matches!(verdict, SweepDecision::Drop | SweepDecision::Close | SweepDecision::Return) {
            // For an older generation this proves nothing: it is not recorded as swept.
            self.gone.extend(named.ok().flatten());
        }
    }

    fn returned(&self, keys: &SigningKeys, taken: &QueuedMessage, row: &LetterState) -> anyhow::Result<Copy> {
        let owner = Owner {
            tenant: &row.tenant,
            consumer: &row.consumer,
            key: &row.key,
            user_id: row.user_id.as_deref(),
            from_client: false,
            letter: Letter { id: row.id, generation: u32::try_from(row.generation).unwrap_or(0) },
        };
        let headers = taken.properties.headers().clone().unwrap_or_default();
        let body = taken.body.clone();
        returned(keys, &owner, self.queue, &row.routing_key, &taken.properties, &headers, body)
    }

    /// Returns the same message for this queue only: another queue that is bound to the dead-letter exchange must not get a copy with each
    /// sweep. The way there replaces the routing key, so a header keeps it. A marked letter is marked again with the current key: it may
    /// wait longer than its original key is accepted.
    fn kept(&self, keys: &SigningKeys, taken: &QueuedMessage, named: Option<&TenantLetter>) -> Copy {
        let mut headers = taken.properties.headers().clone().unwrap_or_default();
        if header(Some(&headers), own_headers::ROUTING_KEY).is_none() {
            put(&mut headers, own_headers::ROUTING_KEY, &taken.routing_key);
        }
        if let Some(user_id) = taken.properties.user_id() {
            put(&mut headers, own_headers::USER_ID, user_id.as_str());
        }
        if let Some((tenant, letter)) = named {
            put(&mut headers, own_headers::LETTER_MARK, &keys.mark(*letter, tenant, &taken.body));
        }
        Copy::from_original(
            &taken.properties,
            headers,
            String::new(),
            self.dead.to_owned(),
            taken.body.clone(),
        )
    }
}

/// Returns the letter of a message if the worker has marked it: a header alone could be any publisher's.
fn marked_letter(keys: &SigningKeys, taken: &QueuedMessage) -> Result<Option<TenantLetter>, SignatureError> {
    let headers = taken.properties.headers().as_ref();
    let (letter, mark) = (header(headers, own_headers::LETTER), header(headers, own_headers::LETTER_MARK));
    let tenant = header(headers, own_headers::TENANT).unwrap_or_default();
    let letter = keys.read_mark(letter, mark, tenant, &taken.body)?;
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
        let of = |generation, row: &LetterState| judge(Letter { id, generation }, Some(row), false);
        assert_eq!(judge(Letter { id, generation: 1 }, None, false), SweepDecision::Keep);
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
        for (memory, verdict, asked) in [
            ("NONE", SweepDecision::Return, SweepDecision::Return),
            ("IN_PROGRESS", SweepDecision::Return, SweepDecision::Return),
            ("COMPLETED", SweepDecision::Close, SweepDecision::Close),
            ("TOOK_EFFECT", SweepDecision::Forgotten, SweepDecision::Forgotten),
            ("FORGOTTEN", SweepDecision::Forgotten, SweepDecision::Return),
        ] {
            let row = LetterState { memory: memory.to_owned(), ..row("requeueing", 1) };
            assert_eq!(of(1, &row), verdict, "{memory}");
            assert_eq!(judge(Letter { id, generation: 1 }, Some(&row), true), asked, "{memory}");
        }
    }
}
