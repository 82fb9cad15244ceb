//! Operators' changes of dead letters: the plan of a change, the change, and the data for a sweep of their queue.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::dead_letter::to_letter;
use super::letter_list::LetterFilter;
use super::tenant_groups::group_by_placement;
use super::unit::{fetch_from_unit, list_units};
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
    let rows = sqlx::query_file!(
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
        limit
    )
    .fetch_all(&mut *connection)
    .await?;
    let letters: Vec<TenantLetter> =
        rows.iter().map(|row| (row.tenant.clone(), to_letter(row.id, row.generation))).collect();
    let mut memories = read_key_memories(connection, now, &letters).await?;
    // One that has changed meanwhile is left out.
    let planned = rows.into_iter().zip(letters).filter_map(|(row, letter)| {
        let key = memories.remove(&letter)?;
        Some(PlannedLetter {
            tenant: row.tenant,
            id: row.id,
            consumer: row.consumer,
            key: row.key,
            dead_lettered_at: row.dead_lettered_at,
            reason: row.reason,
            detail: row.detail,
            queue: row.queue,
            state: row.state,
            generation: row.generation,
            failure_group: row.failure_group,
            body_size: row.body_size,
            whole: row.whole,
            from_client: row.from_client,
            key_status: key.status,
            key_reason: key.reason,
            same_payload: key.same_payload,
            memory: key.memory,
        })
    });
    Ok(planned.collect())
}

/// The state of a letter's key.
#[derive(Debug)]
struct KeyMemory {
    status: Option<String>,
    reason: Option<String>,
    same_payload: bool,
    memory: String,
}

/// Reads the state of the keys of letters, at `now`; leaves out letters that are in another generation.
async fn read_key_memories(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    letters: &[TenantLetter],
) -> sqlx::Result<HashMap<TenantLetter, KeyMemory>> {
    let mut memories = HashMap::new();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
        let known = sqlx::query!(
            r#"select m.tenant as "tenant!", m.id as "id!", m.memory as "memory!" from oncely.letter_memories($1, $2, $3) as m"#,
            &tenants,
            &ids,
            now
        )
        .fetch_all(&mut *connection)
        .await?;
        let mut known: HashMap<(String, Uuid), String> =
            known.into_iter().map(|row| ((row.tenant, row.id), row.memory)).collect();
        let keys = sqlx::query_file!("src/letters_keys.sql", &tenants, &ids, &generations)
            .fetch_all(&mut *connection)
            .await?;
        memories.extend(keys.into_iter().filter_map(|row| {
            let letter = (row.tenant, row.id);
            let memory = KeyMemory {
                status: row.key_status,
                reason: row.key_reason,
                same_payload: row.same_payload,
                memory: known.remove(&letter)?,
            };
            Some(((letter.0, to_letter(row.id, row.generation)), memory))
        }));
    }
    Ok(memories)
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
fn to_columns<'a>(letters: impl IntoIterator<Item = &'a TenantLetter>) -> (Vec<String>, Vec<Uuid>, Vec<i32>) {
    let (mut tenants, mut ids, mut generations) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, letter) in letters {
        tenants.push(tenant.clone());
        ids.push(letter.id);
        generations.push(i32::try_from(letter.generation).unwrap_or(i32::MAX));
    }
    (tenants, ids, generations)
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
    let LetterDecision { verb, user, filter, reason } = decision;
    let mut decided = Vec::new();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
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
        .fetch_all(&mut *connection)
        .await?;
        decided.extend(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))));
    }
    Ok(decided)
}

/// Closes letters that are being requeued: they were published, or took effect. Returns those changed.
pub async fn finish_requeue(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let mut closed = Vec::new();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
        let rows = sqlx::query!(
            r#"select d.tenant as "tenant!", d.id as "id!", d.generation as "generation!"
            from oncely.finish_requeue($1, $2, $3) as d"#,
            &tenants,
            &ids,
            &generations
        )
        .fetch_all(&mut *connection)
        .await?;
        closed.extend(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))));
    }
    Ok(closed)
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
    let mut result = RequeueDecision::default();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let letters: Vec<TenantLetter> = group.into_iter().cloned().collect();
        let (tenants, ids, _) = to_columns(&letters);
        sqlx::query_file!("src/letters_lock_keys.sql", &tenants, &ids).fetch_all(&mut *connection).await?;
        let (mut changed, mut completed) = (Vec::new(), HashSet::new());
        let memories = read_key_memories(connection, now, &letters).await?;
        for letter in letters {
            let Some(key) = memories.get(&letter).filter(|key| key.same_payload) else { continue };
            match LetterKeyState::from_column(&key.memory) {
                LetterKeyState::Runnable => changed.push(letter),
                LetterKeyState::Forgotten if even_if_forgotten => changed.push(letter),
                LetterKeyState::Completed => {
                    changed.push(letter.clone());
                    completed.insert(letter);
                }
                LetterKeyState::TookEffect | LetterKeyState::Forgotten => {}
            }
        }
        let decided = decide_letters(connection, &changed, decision).await?;
        let (closed, unpublished): (Vec<_>, Vec<_>) =
            decided.into_iter().partition(|letter| completed.contains(letter));
        result.closed.extend(finish_requeue(connection, &closed).await?);
        if unpublished.is_empty() {
            continue;
        }
        let (tenants, ids, _) = to_columns(&unpublished);
        sqlx::query_file!("src/letters_free_keys.sql", &tenants, &ids, repeat_unknown)
            .fetch_one(&mut *connection)
            .await?;
        result.unpublished.extend(unpublished);
    }
    Ok(result)
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
         join oncely.dead_letters as d
             on oncely.in_group(d.tenant, $1) and d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
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
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct KeyUse {
    pub key: String,
    /// Counted up to 10,000.
    pub letters: i64,
}

/// Lists the keys that have encrypted stored bodies: up to a hundred, each by a probe of the index.
pub async fn list_keys_in_use(connection: &mut PgConnection) -> sqlx::Result<Vec<KeyUse>> {
    let mut uses = BTreeMap::new();
    for unit in list_units(connection).await? {
        for KeyUse { key, letters } in
            fetch_from_unit!(KeyUse, "src/letter_keys_in_use.sql", unit, &mut *connection)?
        {
            *uses.entry(key).or_insert(0) += letters;
        }
    }
    Ok(uses.into_iter().map(|(key, letters)| KeyUse { key, letters }).collect())
}

/// Locks those of these letters that are being requeued until the transaction ends, so that a letter being published is neither discarded
/// nor published by another session.
pub async fn lock_requeueing(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let mut locked = Vec::new();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
        let rows = sqlx::query_file!("src/letters_lock.sql", &tenants, &ids, &generations)
            .fetch_all(&mut *connection)
            .await?;
        locked.extend(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))));
    }
    Ok(locked)
}

/// Like [`lock_requeueing`], but skips letters locked by other sessions.
pub async fn lock_free_requeueing(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
) -> sqlx::Result<Vec<TenantLetter>> {
    let mut locked = Vec::new();
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
        let rows = sqlx::query_file!("src/letters_lock_free.sql", &tenants, &ids, &generations)
            .fetch_all(&mut *connection)
            .await?;
        locked.extend(rows.into_iter().map(|row| (row.tenant, to_letter(row.id, row.generation))));
    }
    Ok(locked)
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
    let rows = sqlx::query!(
        "select d.tenant, d.id, d.generation, d.state, d.consumer, d.queue, d.key, d.routing_key, d.properties ->> 'user_id' as user_id
         from unnest($1::text[], $2::uuid[]) as l (tenant, id)
         join oncely.dead_letters as d on oncely.in_group(d.tenant, $1) and d.tenant = l.tenant and d.id = l.id",
        &tenants,
        &ids
    )
    .fetch_all(&mut *connection)
    .await?;
    // The others are not asked about: it costs something.
    let requeueing: Vec<TenantLetter> = rows
        .iter()
        .filter(|row| row.state == "requeueing")
        .map(|row| (row.tenant.clone(), to_letter(row.id, row.generation)))
        .collect();
    let memories = read_key_memories(connection, now, &requeueing).await?;
    let states = rows.into_iter().filter_map(|row| {
        let letter = (row.tenant.clone(), to_letter(row.id, row.generation));
        let memory = match row.state.as_str() {
            // One that has changed meanwhile is left out.
            "requeueing" => memories.get(&letter)?.memory.clone(),
            _ => "NONE".to_owned(),
        };
        Some(LetterState {
            tenant: row.tenant,
            id: row.id,
            generation: row.generation,
            state: row.state,
            consumer: row.consumer,
            queue: row.queue,
            key: row.key,
            routing_key: row.routing_key,
            user_id: row.user_id,
            memory,
        })
    });
    Ok(states.collect())
}

/// Records that the copies of these letters have left their queue.
pub async fn mark_swept(
    connection: &mut PgConnection,
    letters: &[TenantLetter],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    for group in group_by_placement(connection, letters, |(tenant, _)| tenant.as_str()).await? {
        let (tenants, ids, generations) = to_columns(group);
        sqlx::query_file!("src/letters_swept.sql", &tenants, &ids, &generations, now)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Counts the letters that were dead-lettered again since: they wait in a later generation.
pub async fn count_returned(connection: &mut PgConnection, letters: &[TenantLetter]) -> sqlx::Result<i64> {
    let (tenants, ids, generations) = to_columns(letters);
    sqlx::query_scalar!(
        r#"select count(*) as "count!"
        from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
        join oncely.dead_letters as d
            on oncely.in_group(d.tenant, $1) and d.tenant = l.tenant and d.id = l.id and d.generation > l.generation"#,
        &tenants,
        &ids,
        &generations
    )
    .fetch_one(connection)
    .await
}
