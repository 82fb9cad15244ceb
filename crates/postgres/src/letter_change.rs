//! Operators' changes of dead letters: the plan of a change, the change, and the data for a sweep of their queue.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::dead_letter::to_letter;
use super::letter_list::LetterFilter;
use oncely_core::encryption::{Cipher, CipherError, Place, StoredValue};
use oncely_core::letter::{Letter, LetterKeyState};

/// A letter to be changed, and the state of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedLetter {
    pub tenant: String,
    pub id: Uuid,
    pub consumer: String,
    pub key: String,
    pub dead_lettered_at: DateTime<Utc>,
    pub reason: String,
    pub detail: Option<String>,
    pub queue: String,
    pub state: String,
    pub generation: i32,
    pub failure_group: String,
    pub(crate) body_size: i64,
    pub whole: bool,
    /// Stored by a client of the SQL protocol: no known dead-letter queue has a copy.
    pub from_client: bool,
    pub key_status: Option<String>,
    /// The reason why its key was given up; `None` if it was not.
    pub key_reason: Option<String>,
    pub same_payload: bool,
    /// See [`LetterKeyState::from_column`].
    pub memory: String,
}

impl PlannedLetter {
    /// Returns the planned letter with its tenant.
    #[must_use]
    pub fn tenant_letter(&self) -> TenantLetter {
        (self.tenant.clone(), Letter { id: self.id, generation: u32::try_from(self.generation).unwrap_or(0) })
    }
}

/// Lists letters in one of `states`, oldest first, with the state of their keys at `now`.
pub async fn list_planned_letters(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    filter: &LetterFilter,
    states: &[String],
    limit: i64,
) -> sqlx::Result<Vec<PlannedLetter>> {
    sqlx::query_file_as!(
        PlannedLetter,
        "src/letters_plan.sql",
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

/// Counts the letters that [`list_planned_letters`] would find.
pub async fn count(
    connection: &mut PgConnection,
    filter: &LetterFilter,
    states: &[String],
    limit: i64,
) -> sqlx::Result<i64> {
    sqlx::query_file_scalar!(
        "src/letters_count.sql",
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

/// A letter by tenant and id, in one generation.
pub type TenantLetter = (String, Letter);

/// Converts letters to the arrays of a statement: tenants, ids, generations.
fn to_columns(letters: &[TenantLetter]) -> (Vec<String>, Vec<Uuid>, Vec<i32>) {
    (
        letters.iter().map(|(tenant, _)| tenant.clone()).collect(),
        letters.iter().map(|(_, letter)| letter.id).collect(),
        letters.iter().map(|(_, letter)| i32::try_from(letter.generation).unwrap_or(i32::MAX)).collect(),
    )
}

/// An operator's decision about letters, recorded with it.
#[derive(Clone, Copy, Debug)]
pub struct LetterDecision<'a> {
    /// `requeue` or `discard`.
    pub verb: &'a str,
    /// The operating system's user.
    pub user: &'a str,
    pub filter: &'a Value,
    pub reason: Option<&'a str>,
}

/// Decides about letters that are open, and records it, in the caller's transaction; returns those changed.
pub async fn decide_letters(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
    decision: LetterDecision<'_>,
) -> sqlx::Result<Vec<TenantLetter>> {
    let (tenants, ids, generations) = to_columns(letters);
    let LetterDecision { verb, user, filter, reason } = decision;
    let rows = sqlx::query!(
        r#"select d.tenant as "tenant!", d.id as "id!", d.generation as "generation!"
        from oncely.decide_letters($1, $2, $3, $4, $5, $6, $7) as d"#,
        verb,
        &tenants,
        &ids,
        &generations,
        filter,
        reason,
        user
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))).collect())
}

/// Closes letters that are being requeued: they were published, or took effect. Returns those changed.
pub async fn finish_requeue(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let (tenants, ids, generations) = to_columns(letters);
    let rows = sqlx::query!(
        r#"select d.tenant as "tenant!", d.id as "id!", d.generation as "generation!"
        from oncely.finish_requeue($1, $2, $3) as d"#,
        &tenants,
        &ids,
        &generations
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))).collect())
}

/// The decision about letters to be requeued.
#[derive(Debug, Default)]
pub struct RequeueDecision {
    /// Letters to be published again.
    pub unpublished: Vec<TenantLetter>,
    /// Letters that took effect in the meantime: they are not published, and count as requeued.
    pub closed: Vec<TenantLetter>,
}

/// Decides, in the caller's transaction, that letters are published again, records it, and makes their keys runnable. A letter with a
/// forgotten key is left unchanged, unless it is unknown whether it took effect and `even_if_forgotten` is set.
///
/// No key is collected between its check and the commit (`begin_collection` in collection.rs); after the commit the letter's state keeps
/// it. So each published message is recognised after it has run.
pub async fn begin_requeue(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[TenantLetter],
    decision: LetterDecision<'_>,
    even_if_forgotten: bool,
    repeat_unknown: bool,
) -> sqlx::Result<RequeueDecision> {
    sqlx::query!("select oncely.take_lock('requeue', true)").fetch_one(&mut *connection).await?;
    let (tenants, ids, generations) = to_columns(letters);
    sqlx::query_file!("src/letters_lock_keys.sql", &tenants, &ids).fetch_all(&mut *connection).await?;
    let rows = sqlx::query_file!("src/letters_memory.sql", &tenants, &ids, &generations, now)
        .fetch_all(&mut *connection)
        .await?;
    let (mut changed, mut completed) = (Vec::new(), Vec::new());
    for row in rows.into_iter().filter(|row| row.same_payload) {
        let letter = (row.tenant, to_letter(row.id, row.generation));
        match LetterKeyState::from_column(&row.memory) {
            LetterKeyState::Runnable => changed.push(letter),
            LetterKeyState::Forgotten if even_if_forgotten => changed.push(letter),
            LetterKeyState::Completed => completed.push(letter),
            LetterKeyState::TookEffect | LetterKeyState::Forgotten => {}
        }
    }
    let completed: HashSet<TenantLetter> = completed.into_iter().collect();
    changed.extend(completed.iter().cloned());
    let decided = decide_letters(connection, &changed, decision).await?;
    let (closed, unpublished): (Vec<_>, Vec<_>) =
        decided.into_iter().partition(|letter| completed.contains(letter));
    let closed = finish_requeue(connection, &closed).await?;
    let (tenants, ids, _) = to_columns(&unpublished);
    sqlx::query_file!("src/letters_free_keys.sql", &tenants, &ids, repeat_unknown)
        .fetch_one(connection)
        .await?;
    Ok(RequeueDecision { unpublished, closed })
}

/// A message as stored with its letter.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    pub tenant: String,
    pub id: Uuid,
    pub generation: i32,
    pub consumer: String,
    pub key: String,
    pub queue: String,
    pub routing_key: String,
    pub from_client: bool,
    /// JSON as PostgreSQL writes it: data that Rust can't parse affects only this letter.
    pub properties: Option<String>,
    pub headers: Option<String>,
    body: Option<StoredValue>,
}

impl StoredMessage {
    /// Returns the original body; `None` if only the queue has it.
    ///
    /// # Errors
    /// If it is encrypted, and this process can't decrypt it.
    pub fn body(&self, cipher: Option<&Arc<dyn Cipher>>) -> Result<Option<Cow<'_, [u8]>>, CipherError> {
        let Self { tenant, consumer, key, queue, id: letter, .. } = self;
        let place = Place::LetterBody { tenant, consumer, key, queue, letter: *letter };
        self.body.as_ref().map(|stored| stored.open(cipher, &place)).transpose()
    }

    /// Returns whether the stored body is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.body.as_ref().is_some_and(|stored| stored.key().is_some())
    }
}

/// Reads the messages of those letters that are still of this generation.
pub async fn read_messages(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<StoredMessage>> {
    let (tenants, ids, generations) = to_columns(letters);
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
        body: row.body.map(|bytes| StoredValue::from_columns(bytes, row.encrypted_by)),
    });
    Ok(messages.collect())
}

/// Number of dead letters with a body encrypted by a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    pub key: String,
    /// Counted up to 10,000.
    pub letters: i64,
}

/// Lists the keys that have encrypted stored bodies: up to a hundred, each by a probe of the index.
pub async fn list_keys_in_use(connection: &mut PgConnection) -> sqlx::Result<Vec<KeyUse>> {
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

/// Locks those of these letters that are being requeued until the transaction ends, so that a letter being published is neither discarded
/// nor published by another session.
pub async fn lock_requeueing(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let (tenants, ids, generations) = to_columns(letters);
    let rows =
        sqlx::query_file!("src/letters_lock.sql", &tenants, &ids, &generations).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))).collect())
}

/// Like [`lock_requeueing`], but skips letters locked by other sessions.
pub async fn lock_free_requeueing(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let (tenants, ids, generations) = to_columns(letters);
    let rows = sqlx::query_file!("src/letters_lock_free.sql", &tenants, &ids, &generations)
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))).collect())
}

/// Announces that the session requeues letters, until it ends.
pub async fn announce_requeue(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select oncely.try_session_lock('requeueing', true)").fetch_one(connection).await?;
    Ok(())
}

/// Returns whether a session is requeueing letters: then letters in state requeueing are not all interrupted.
pub async fn is_requeue_under_way(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select oncely.is_session_locked('requeueing') as "under_way!""#)
        .fetch_one(connection)
        .await
}

/// The state of a letter, as a sweep needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct LetterState {
    pub tenant: String,
    pub id: Uuid,
    pub generation: i32,
    pub state: String,
    pub consumer: String,
    pub queue: String,
    pub key: String,
    pub routing_key: String,
    /// The user id that the publisher set; `None` if it set none.
    pub user_id: Option<String>,
    /// See [`LetterKeyState::from_column`].
    pub memory: String,
}

/// Reads the current state of letters; missing ones are left out.
pub async fn read_letter_states(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<LetterState>> {
    let (tenants, ids, _) = to_columns(letters);
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

/// Records that the copies of these letters have left their queue.
pub async fn mark_swept(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let (tenants, ids, generations) = to_columns(letters);
    sqlx::query_file!("src/letters_swept.sql", &tenants, &ids, &generations, now).execute(connection).await?;
    Ok(())
}

/// Counts the letters that were dead-lettered again since: they wait in a later generation.
pub async fn count_returned(connection: &mut PgConnection, letters: &[TenantLetter]) -> sqlx::Result<i64> {
    let (tenants, ids, generations) = to_columns(letters);
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
