//! What operators do to dead letters: the plan of a change, the change, and what a sweep of their queue has to know.

use std::borrow::Cow;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::dead_letter::letter;
use super::letter_list::LetterFilter;
use crate::encryption::{Cipher, CipherError, Place, Stored};
use crate::letter::{Letter, Memory};

/// A letter that is to be changed, and what is known of its key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) tenant: String,
    pub(crate) id: Uuid,
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) dead_lettered_at: DateTime<Utc>,
    pub(crate) reason: String,
    pub(crate) detail: Option<String>,
    pub(crate) queue: String,
    pub(crate) state: String,
    pub(crate) generation: i32,
    pub(crate) failure_group: String,
    pub(crate) body_size: i64,
    pub(crate) whole: bool,
    /// Stored by a client of the SQL protocol: no dead-letter queue has a copy that we know.
    pub(crate) from_client: bool,
    pub(crate) key_status: Option<String>,
    /// Why its key was given up, where it was.
    pub(crate) key_reason: Option<String>,
    pub(crate) same_payload: bool,
    /// See [`Memory::from_column`].
    pub(crate) memory: String,
}

/// Letters in one of `states`, oldest first, and what is known of their keys at `now`.
pub(crate) async fn plan(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    filter: &LetterFilter,
    states: &[String],
    limit: i64,
) -> Result<Vec<Planned>, sqlx::Error> {
    sqlx::query_file_as!(
        Planned,
        "src/pg/letters_plan.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.queue.as_deref(),
        filter.reason.as_deref(),
        filter.group.as_deref(),
        filter.key.as_deref(),
        filter.since,
        filter.until,
        filter.ids.as_deref() as Option<&[Uuid]>,
        states,
        limit,
        now
    )
    .fetch_all(connection)
    .await
}

/// How many letters [`plan`] would find.
pub(crate) async fn count(
    connection: &mut PgConnection,
    filter: &LetterFilter,
    states: &[String],
    limit: i64,
) -> Result<i64, sqlx::Error> {
    sqlx::query_file_scalar!(
        "src/pg/letters_count.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.queue.as_deref(),
        filter.reason.as_deref(),
        filter.group.as_deref(),
        filter.key.as_deref(),
        filter.since,
        filter.until,
        filter.ids.as_deref() as Option<&[Uuid]>,
        states,
        limit
    )
    .fetch_one(connection)
    .await
}

/// A letter by its tenant and its id, in one generation.
pub(crate) type Named = (String, Letter);

fn columns(letters: &[Named]) -> (Vec<String>, Vec<Uuid>, Vec<i32>) {
    (
        letters.iter().map(|(tenant, _)| tenant.clone()).collect(),
        letters.iter().map(|(_, letter)| letter.id).collect(),
        letters.iter().map(|(_, letter)| i32::try_from(letter.generation).unwrap_or(i32::MAX)).collect(),
    )
}

/// Takes letters that are in one of the states `from` to the state `to`; returns those that were.
pub(crate) async fn change(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[Named],
    from: &[&str],
    to: &str,
) -> Result<Vec<Named>, sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    let from: Vec<String> = from.iter().map(|state| (*state).to_owned()).collect();
    let rows = sqlx::query_file!("src/pg/letters_change.sql", &tenants, &ids, &generations, &from, to, now)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, letter(row.id, row.generation))).collect())
}

/// What was decided of letters that are to be requeued.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// Published again.
    pub(crate) taken: Vec<Named>,
    /// Not published: they took effect meanwhile, and count as requeued.
    pub(crate) closed: Vec<Named>,
}

/// Decides, in the caller's transaction, that letters are published again, and makes their keys runnable. A letter whose key is not
/// remembered any more is left alone, unless nobody can say whether it took effect and `even_if_forgotten`.
///
/// No key is collected between the look at it and the commit (`past_requeues` in collection.rs); behind the commit the letter's state
/// keeps it. So whatever is published is recognised when it has run.
pub(crate) async fn begin_requeue(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[Named],
    even_if_forgotten: bool,
    repeat_unknown: bool,
) -> Result<Begun, sqlx::Error> {
    sqlx::query!("select oncely.take_lock('requeue', true)").fetch_one(&mut *connection).await?;
    let (tenants, ids, generations) = columns(letters);
    sqlx::query_file!("src/pg/letters_lock_keys.sql", &tenants, &ids).fetch_all(&mut *connection).await?;
    let rows = sqlx::query_file!("src/pg/letters_memory.sql", &tenants, &ids, &generations, now)
        .fetch_all(&mut *connection)
        .await?;
    let (mut run, mut over) = (Vec::new(), Vec::new());
    for row in rows.into_iter().filter(|row| row.same_payload) {
        let named = (row.tenant, letter(row.id, row.generation));
        match Memory::from_column(&row.memory) {
            Memory::Runnable => run.push(named),
            Memory::Forgotten if even_if_forgotten => run.push(named),
            Memory::Completed => over.push(named),
            Memory::TookEffect | Memory::Forgotten => {}
        }
    }
    let open = ["waiting", "requeueing"];
    let taken = change(connection, now, &run, &open, "requeueing").await?;
    let closed = change(connection, now, &over, &open, "requeued").await?;
    let (tenants, ids, _) = columns(&taken);
    sqlx::query_file!("src/pg/letters_free_keys.sql", &tenants, &ids, repeat_unknown)
        .fetch_one(connection)
        .await?;
    Ok(Begun { taken, closed })
}

/// A message as its letter holds it.
#[derive(Clone, Debug)]
pub(crate) struct StoredMessage {
    pub(crate) tenant: String,
    pub(crate) id: Uuid,
    pub(crate) generation: i32,
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) queue: String,
    pub(crate) routing_key: String,
    pub(crate) from_client: bool,
    /// JSON, as PostgreSQL writes it: what Rust can't read is the matter of this one letter.
    pub(crate) properties: Option<String>,
    pub(crate) headers: Option<String>,
    body: Option<Stored>,
}

impl StoredMessage {
    /// The body as it came; `None` where only the queue has it.
    ///
    /// # Errors
    /// Where it is encrypted, and this process can't open it.
    pub(crate) fn body(
        &self,
        cipher: Option<&Arc<dyn Cipher>>,
    ) -> Result<Option<Cow<'_, [u8]>>, CipherError> {
        let Self { tenant, consumer, key, queue, id: letter, .. } = self;
        let place = Place::LetterBody { tenant, consumer, key, queue, letter: *letter };
        self.body.as_ref().map(|stored| stored.open(cipher, &place)).transpose()
    }

    /// Is it encrypted?
    pub(crate) fn is_encrypted(&self) -> bool {
        self.body.as_ref().is_some_and(|stored| stored.key().is_some())
    }
}

/// The messages of these letters, as far as they are still of this generation.
pub(crate) async fn messages(
    connection: &mut PgConnection,
    letters: &[Named],
) -> Result<Vec<StoredMessage>, sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    let rows = sqlx::query!(
        "select d.tenant, d.id, d.generation, d.consumer, d.key, d.queue, d.routing_key, d.from_client, d.properties::text as properties,
             d.headers::text as headers, d.body, d.encrypted_by
         from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
         join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
         order by d.dead_lettered_at, d.id",
        &tenants,
        &ids,
        &generations
    )
    .fetch_all(connection)
    .await?;
    let messages = rows.into_iter().map(|row| StoredMessage {
        tenant: row.tenant,
        id: row.id,
        generation: row.generation,
        consumer: row.consumer,
        key: row.key,
        queue: row.queue,
        routing_key: row.routing_key,
        from_client: row.from_client,
        properties: row.properties,
        headers: row.headers,
        body: row.body.map(|bytes| Stored::read(bytes, row.encrypted_by)),
    });
    Ok(messages.collect())
}

/// How many dead letters hold a body that a key has encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyUse {
    pub(crate) key: String,
    /// Counted up to 10,000.
    pub(crate) letters: i64,
}

/// The keys that have encrypted what is stored: up to a hundred of them, each by a probe of the index.
pub(crate) async fn keys_in_use(connection: &mut PgConnection) -> Result<Vec<KeyUse>, sqlx::Error> {
    sqlx::query_as!(
        KeyUse,
        r#"with recursive ids as (
            select min(d.encrypted_by) as key, 1 as place from oncely.dead_letters as d
            where d.encrypted_by is not null and d.body is not null
            union all
            select n.key, i.place + 1 from ids as i
            cross join lateral (
                select min(d.encrypted_by) as key from oncely.dead_letters as d
                where d.encrypted_by is not null and d.body is not null and d.encrypted_by > i.key
            ) as n
            where i.key is not null and i.place < 100
        )
        select i.key as "key!", c.letters as "letters!"
        from ids as i
        cross join lateral (
            select count(*) as letters
            from (
                select from oncely.dead_letters as d
                where d.encrypted_by = i.key and d.encrypted_by is not null and d.body is not null limit 10000
            ) as f
        ) as c
        where i.key is not null
        order by i.key"#
    )
    .fetch_all(connection)
    .await
}

/// Locks those of these letters that are being requeued until the transaction ends: what is published meanwhile is not discarded, and
/// not published by another one.
pub(crate) async fn lock_requeueing(
    connection: &mut PgConnection,
    letters: &[Named],
) -> Result<Vec<Named>, sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    let rows = sqlx::query_file!("src/pg/letters_lock.sql", &tenants, &ids, &generations)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, letter(row.id, row.generation))).collect())
}

/// Like [`lock_requeueing`], but for those that somebody else has in hand.
pub(crate) async fn lock_free_requeueing(
    connection: &mut PgConnection,
    letters: &[Named],
) -> Result<Vec<Named>, sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    let rows = sqlx::query_file!("src/pg/letters_lock_free.sql", &tenants, &ids, &generations)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, letter(row.id, row.generation))).collect())
}

/// Says, for as long as the session lives, that it requeues letters.
pub(crate) async fn announce_requeue(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select oncely.try_session_lock('requeueing', true)").fetch_one(connection).await?;
    Ok(())
}

/// Is a session requeueing letters? Those that stand as requeueing are not all broken off then.
pub(crate) async fn is_requeue_under_way(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select oncely.is_session_locked('requeueing') as "under_way!""#)
        .fetch_one(connection)
        .await
}

/// What a sweep must know of a letter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LetterState {
    pub(crate) tenant: String,
    pub(crate) id: Uuid,
    pub(crate) generation: i32,
    pub(crate) state: String,
    pub(crate) consumer: String,
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) routing_key: String,
    /// The publisher's user, where he named himself.
    pub(crate) user_id: Option<String>,
    /// See [`Memory::from_column`].
    pub(crate) memory: String,
}

/// How letters stand now; one that is not there is left out.
pub(crate) async fn standings(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[Named],
) -> Result<Vec<LetterState>, sqlx::Error> {
    let (tenants, ids, _) = columns(letters);
    sqlx::query_as!(
        LetterState,
        r#"select d.tenant, d.id, d.generation, d.state, d.consumer, d.queue, d.key, d.routing_key, d.properties ->> 'user_id' as user_id,
             -- Of the others it is not asked, and costs something.
             case when d.state = 'requeueing'
                 then (select m.memory from oncely.letter_memories(array[d.tenant], array[d.id], $3) as m)
                 else 'NONE' end as "memory!"
         from unnest($1::text[], $2::uuid[]) as l (tenant, id)
         join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id"#,
        &tenants,
        &ids,
        now
    )
    .fetch_all(connection)
    .await
}

/// Notes that the copies of these letters have left their queue.
pub(crate) async fn mark_swept(
    connection: &mut PgConnection,
    letters: &[Named],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    sqlx::query_file!("src/pg/letters_swept.sql", &tenants, &ids, &generations, now)
        .execute(connection)
        .await?;
    Ok(())
}

/// How many of these letters were dead-lettered again since: they wait in a later generation.
pub(crate) async fn came_back(connection: &mut PgConnection, letters: &[Named]) -> Result<i64, sqlx::Error> {
    let (tenants, ids, generations) = columns(letters);
    sqlx::query_scalar!(
        r#"select count(*) as "count!"
        from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation > l.generation"#,
        &tenants,
        &ids,
        &generations
    )
    .fetch_one(connection)
    .await
}
