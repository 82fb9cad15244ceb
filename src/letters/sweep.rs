//! The sweep: the only reader of the dead-letter queues.
//!
//! What was requeued or discarded leaves the queue. What stays is published anew behind the others and only then
//! acknowledged: no message is ever put back, so none loses a life of a quorum queue's delivery limit, and a crash leaves a
//! copy too many, never one too few.

use std::collections::{HashMap, HashSet};

use sqlx::Connection as _;

use super::copy::{Owner, returned};
use super::swept::Swept;
use crate::amqp::{Copy, Publisher, QueueReader, QueuedMessage, Topology, header, put};
use crate::config::Config;
use crate::letter::{Letter, Memory};
use crate::own_headers;
use crate::pg::{self, LetterState, Named, Session};
use crate::signing::{SigningKeys, Unreadable};

/// Messages held at once: below 32. Behind so many acknowledgements in flight RabbitMQ's side of a quorum queue holds the
/// next ones back, and forgets them when the channel closes: of 64 held at once, many came back, one life older.
const MOST_HELD: usize = 16;
/// Bytes held at once.
const HELD_BYTES: usize = 32 << 20;

/// From this many on a change leaves the sweep to a time when somebody chooses to wait for it.
pub(crate) const LONG: u32 = 10_000;

/// What became of the sweep of a queue that follows a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Done(Swept),
    /// The queue holds too much for that: it is left to a sweep that somebody chooses to wait for.
    TooLong(String),
}

/// The sweep that follows a change. `in_queue` are letters that only their queue has: for them a long one is worth it.
///
/// # Errors
/// When a server does not answer: what is not swept stays in its queue, and the next sweep finds it.
pub(super) async fn sweep_after_change(
    config: &Config,
    session: &mut Session,
    queues: &[String],
    in_queue: &[Named],
) -> anyhow::Result<Vec<Pass>> {
    let mut passes = Vec::new();
    let most = in_queue.is_empty().then_some(LONG);
    for queue in queues {
        passes.push(match sweep(config, session, queue, most, in_queue).await? {
            Some(swept) => Pass::Done(swept),
            None => Pass::TooLong(queue.clone()),
        });
    }
    Ok(passes)
}

/// One pass over as many messages as are ready at its start; `None` where those are more than `most`. `asked` are letters that a
/// person has just asked for, whatever is remembered of them.
///
/// # Errors
/// When a server does not answer: what is not swept stays in its queue, and the next sweep finds it.
pub(crate) async fn sweep(
    config: &Config,
    session: &mut Session,
    queue: &str,
    most: Option<u32>,
    asked: &[Named],
) -> anyhow::Result<Option<Swept>> {
    pass(config, session, queue, most, asked, None).await
}

/// One pass that takes all copies of a tenant out of the dead-letter queue, whatever its letters' rows say of them. A copy counts as the
/// tenant's where its mark shows it: a header alone could be any publisher's.
///
/// # Errors
/// Like [`sweep`].
pub(crate) async fn sweep_tenant(
    config: &Config,
    session: &mut Session,
    queue: &str,
    tenant: &str,
) -> anyhow::Result<Swept> {
    Ok(pass(config, session, queue, None, &[], Some(tenant)).await?.unwrap_or_default())
}

async fn pass(
    config: &Config,
    session: &mut Session,
    queue: &str,
    most: Option<u32>,
    asked: &[Named],
    erased: Option<&str>,
) -> anyhow::Result<Option<Swept>> {
    let dead = Topology::dead_letter_queue(queue);
    let (reader, ready) = QueueReader::open(&config.rabbitmq, "oncely failed sweep", &dead).await?;
    if most.is_some_and(|most| ready > most) {
        reader.close().await;
        return Ok(None);
    }
    let publisher = Publisher::new(config.rabbitmq.clone(), "oncely failed sweep publisher".to_owned());
    let mut walk = Walk {
        queue,
        dead: &dead,
        asked: asked.iter().collect(),
        erased,
        config,
        reader: &reader,
        publisher: &publisher,
        gone: Vec::new(),
        swept: Swept { queue: queue.to_owned(), ..Swept::default() },
    };
    let mut left = ready;
    let done = loop {
        let mut held = Vec::new();
        let mut bytes = 0;
        while left > 0 && held.len() < MOST_HELD && bytes < HELD_BYTES {
            // Fewer than there were: another sweep has them.
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
        // Its answer says that the acknowledgements before it have arrived.
        reader.ready().await?;
        let gone = std::mem::take(&mut walk.gone);
        pg::mark_swept(&mut session.connection, &gone, session.clock.now()).await?;
        if let Err(error) = settled {
            break Err(error);
        }
    };
    let swept = walk.swept;
    reader.close().await;
    done?;
    Ok(Some(swept))
}

/// What is to happen to a message of a dead-letter queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody needs this copy.
    Drop,
    /// It runs again, and this is the copy that does.
    Return,
    /// It took effect after it was requeued: nobody needs this copy, and the row does not know it yet.
    Close,
    /// It stays.
    Keep,
    /// It stays, though it is being requeued: nothing would recognise a copy.
    Forgotten,
}

/// Judges a copy of a letter by its row. A copy without a row, or of a life that the row does not know, stays; so does one that would
/// run a second time, as far as anybody knows, unless somebody has just asked for it.
fn judge(letter: Letter, row: Option<&LetterState>, is_asked: bool) -> Verdict {
    let Some(row) = row else { return Verdict::Keep };
    let current = u32::try_from(row.generation).unwrap_or(0);
    match (letter.generation.cmp(&current), row.state.as_str()) {
        (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, "requeued" | "discarded") => {
            Verdict::Drop
        }
        (std::cmp::Ordering::Equal, "requeueing") => match Memory::from_column(&row.memory) {
            Memory::Runnable => Verdict::Return,
            Memory::Completed => Verdict::Close,
            Memory::Forgotten if is_asked => Verdict::Return,
            Memory::TookEffect | Memory::Forgotten => Verdict::Forgotten,
        },
        _ => Verdict::Keep,
    }
}

struct Walk<'a> {
    queue: &'a str,
    dead: &'a str,
    asked: HashSet<&'a Named>,
    /// The tenant all of whose copies go.
    erased: Option<&'a str>,
    config: &'a Config,
    reader: &'a QueueReader,
    publisher: &'a Publisher,
    /// Closed letters whose copies were acknowledged.
    gone: Vec<Named>,
    swept: Swept,
}

impl Walk<'_> {
    /// Settles messages: none is acknowledged before what replaces it is known to have arrived.
    async fn settle(&mut self, session: &mut Session, held: Vec<QueuedMessage>) -> anyhow::Result<()> {
        // Read after what is held was marked, so that they know each key that marked it.
        let keys = self.config.signing_keys(&pg::signing_secrets(&mut session.connection).await?);
        let named: Vec<Result<Option<Named>, Unreadable>> =
            held.iter().map(|taken| named(&keys, taken)).collect();
        let known = named.iter().flatten().flatten().cloned();
        let asked: Vec<Named> = known.collect::<HashSet<_>>().into_iter().collect();
        let now = session.clock.now();
        let mut transaction = session.connection.begin().await?;
        // A discard waits for what is published from here, or comes before it.
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
            // Moved by hand into another queue, it is another case.
            let row = row.filter(|row| row.queue == self.queue);
            let verdict = match named.map(|named| (named, judge(named.1, row, self.asked.contains(named)))) {
                Some(((tenant, _), _)) if self.erased == Some(tenant.as_str()) => Verdict::Drop,
                // Somebody else has it in hand.
                Some((named, Verdict::Return | Verdict::Close)) if !ours.contains(named) => Verdict::Keep,
                Some((_, verdict)) => verdict,
                None => Verdict::Keep,
            };
            match (verdict, row) {
                (Verdict::Return, Some(row)) => copies.push(self.returned(&keys, taken, row)?),
                (Verdict::Keep | Verdict::Forgotten, _) => copies.push(self.kept(&keys, taken, named)),
                _ => {}
            }
            verdicts.push(verdict);
        }
        let mut results = self.publisher.publish(&copies).await.into_iter();
        let mut failure = None;
        let mut done = Vec::new();
        for ((taken, named), verdict) in held.iter().zip(named).zip(verdicts) {
            let result = match verdict {
                Verdict::Drop | Verdict::Close => Some(Ok(())),
                Verdict::Return | Verdict::Keep | Verdict::Forgotten => results.next(),
            };
            match result {
                Some(Ok(())) => done.push((taken, named, verdict)),
                Some(Err(error)) => failure = Some(error),
                None => {}
            }
        }
        let closed = done.iter().filter(|(.., verdict)| matches!(verdict, Verdict::Return | Verdict::Close));
        let closed: Vec<Named> =
            closed.filter_map(|(_, named, _)| named.as_ref().ok().cloned().flatten()).collect();
        let now = session.clock.now();
        pg::change_letters(&mut transaction, now, &closed, &["requeueing"], "requeued").await?;
        transaction.commit().await?;
        for (taken, named, verdict) in done {
            self.reader.acknowledge(taken.tag).await?;
            let says = header(taken.properties.headers().as_ref(), own_headers::TENANT);
            if verdict != Verdict::Drop && says.is_some() && says == self.erased {
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

    fn count(&mut self, verdict: Verdict, named: Result<Option<Named>, Unreadable>) {
        match verdict {
            Verdict::Drop | Verdict::Close => self.swept.dropped += 1,
            Verdict::Return => self.swept.requeued += 1,
            Verdict::Keep => {
                self.swept.kept += 1;
                if let Err(why) = &named {
                    self.swept.unreadable_marks.count(why);
                }
            }
            Verdict::Forgotten => {
                self.swept.kept += 1;
                self.swept.forgotten += 1;
            }
        }
        if matches!(verdict, Verdict::Drop | Verdict::Close | Verdict::Return) {
            // Of an older generation it says nothing: that one is not marked.
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

    /// The same again, into this queue alone: another queue that is bound to the dead-letter exchange must not get a copy
    /// with each sweep. The way there replaces the routing key, so a header keeps it. What is known by its mark is marked anew, with the key
    /// of today: a letter may wait for longer than that of its day is accepted.
    fn kept(&self, keys: &SigningKeys, taken: &QueuedMessage, named: Option<&Named>) -> Copy {
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
        Copy::of(&taken.properties, headers, String::new(), self.dead.to_owned(), taken.body.clone())
    }
}

/// The letter that a message is, where the worker said so: a header alone could be any publisher's.
fn named(keys: &SigningKeys, taken: &QueuedMessage) -> Result<Option<Named>, Unreadable> {
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
        assert_eq!(judge(Letter { id, generation: 1 }, None, false), Verdict::Keep);
        assert_eq!(of(1, &row("waiting", 1)), Verdict::Keep);
        assert_eq!(of(1, &row("requeueing", 1)), Verdict::Return);
        assert_eq!(of(1, &row("requeued", 1)), Verdict::Drop);
        assert_eq!(of(1, &row("discarded", 1)), Verdict::Drop);
        for state in ["waiting", "requeueing", "requeued", "discarded"] {
            assert_eq!(of(1, &row(state, 2)), Verdict::Drop, "an older copy; the current one is behind it");
            assert_eq!(of(3, &row(state, 2)), Verdict::Keep, "a database that knows less than the queue");
        }
        for (memory, verdict, asked) in [
            ("NONE", Verdict::Return, Verdict::Return),
            ("IN_PROGRESS", Verdict::Return, Verdict::Return),
            ("COMPLETED", Verdict::Close, Verdict::Close),
            ("TOOK_EFFECT", Verdict::Forgotten, Verdict::Forgotten),
            ("FORGOTTEN", Verdict::Forgotten, Verdict::Return),
        ] {
            let row = LetterState { memory: memory.to_owned(), ..row("requeueing", 1) };
            assert_eq!(of(1, &row), verdict, "{memory}");
            assert_eq!(judge(Letter { id, generation: 1 }, Some(&row), true), asked, "{memory}");
        }
    }
}
