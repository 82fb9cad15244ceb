//! What there is of a tenant, and how it is erased. For the schema's owner: policies keep everybody else from keys that are young, and
//! nobody else may change the trail.

use super::key_contents::KeyContents;
use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::fingerprint::Fingerprint;

/// Rows of a tenant, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TenantCounts {
    pub(crate) keys: i64,
    /// Of those: not past their retention.
    pub(crate) young_keys: i64,
    /// When the last of these is, but for parked ones; `None` where a consumer's retention is not known.
    pub(crate) young_until: Option<DateTime<Utc>>,
    pub(crate) trail: i64,
    pub(crate) letters: i64,
    /// Of those: waiting, or being requeued.
    pub(crate) open_letters: i64,
    pub(crate) events: i64,
    pub(crate) ordering_keys: i64,
    pub(crate) mirror_records: i64,
    pub(crate) rights: i64,
    /// What an operator has said for it, and what is counted of it.
    pub(crate) limits: i64,
    /// What people did, as far as it names the tenant.
    pub(crate) actions: i64,
    /// Processes that tell of a failure of its.
    pub(crate) processes: i64,
}

impl TenantCounts {
    /// All rows.
    pub(crate) fn total(&self) -> i64 {
        self.keys
            + self.trail
            + self.letters
            + self.events
            + self.ordering_keys
            + self.mirror_records
            + self.rights
            + self.limits
            + self.actions
            + self.processes
    }
}

/// Counts. Reads the whole trail.
pub(crate) async fn tenant_counts(
    connection: &mut PgConnection,
    tenant: &str,
    now: DateTime<Utc>,
) -> Result<TenantCounts, sqlx::Error> {
    sqlx::query_file_as!(TenantCounts, "src/pg/tenant_counts.sql", tenant, now).fetch_one(connection).await
}

/// The queues that a tenant's dead letters came from.
pub(crate) async fn tenant_queues(
    connection: &mut PgConnection,
    tenant: &str,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "select distinct queue from oncely.dead_letters where tenant = $1 order by queue",
        tenant
    )
    .fetch_all(connection)
    .await
}

/// Gives a tenant's open letters up, so that nothing is published from them any more; waits for whoever does.
pub(crate) async fn close_letters(
    connection: &mut PgConnection,
    tenant: &str,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update oncely.dead_letters set state = 'discarded', updated_at = $2, swept_at = null
        where tenant = $1 and state in ('waiting', 'requeueing')",
        tenant,
        now
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// A table whose rows of a tenant are deleted as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantTable {
    DeadLetters,
    Events,
    OrderingKeys,
    MirrorQueue,
    Rights,
    TenantLimits,
    LetterUsage,
    LetterGrowth,
}

/// Deletes a tenant's rows; returns how many.
pub(crate) async fn erase_rows(
    connection: &mut PgConnection,
    table: TenantTable,
    tenant: &str,
) -> Result<u64, sqlx::Error> {
    let deleted = match table {
        TenantTable::DeadLetters => sqlx::query!("delete from oncely.dead_letters where tenant = $1", tenant),
        TenantTable::Events => sqlx::query!("delete from oncely.events where tenant = $1", tenant),
        TenantTable::OrderingKeys => {
            sqlx::query!("delete from oncely.ordering_keys where tenant = $1", tenant)
        }
        TenantTable::MirrorQueue => sqlx::query!("delete from oncely.mirror_queue where tenant = $1", tenant),
        TenantTable::Rights => sqlx::query!("delete from oncely.rights where tenant = $1", tenant),
        TenantTable::TenantLimits => {
            sqlx::query!("delete from oncely.tenant_limits where tenant = $1", tenant)
        }
        TenantTable::LetterUsage => sqlx::query!("delete from oncely.letter_usage where tenant = $1", tenant),
        TenantTable::LetterGrowth => {
            sqlx::query!("delete from oncely.letter_growth where tenant = $1", tenant)
        }
    };
    Ok(deleted.execute(connection).await?.rows_affected())
}

/// Keeps `mirror rebuild` waiting until the caller's transaction ends: it says again no key that is deleted in it.
pub(crate) async fn hold_rebuilds(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("select only_row from oncely.cell for update").fetch_one(connection).await?;
    Ok(())
}

/// Deletes every mirror record that may hold a tag of a tenant, and waits for relays that have one in hand: what they write is in Redis
/// then. A batch's record has tags of any tenants; those of others are found in PostgreSQL instead.
pub(crate) async fn erase_pending_tags(
    connection: &mut PgConnection,
    tenant: &str,
) -> Result<u64, sqlx::Error> {
    let deleted =
        sqlx::query!("delete from oncely.mirror_queue where kind = 'mirror' or tenant = $1", tenant);
    Ok(deleted.execute(connection).await?.rows_affected())
}

/// Has any relay had a mirror, as far as its entries may live still?
pub(crate) async fn has_mirror(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select mirror_ttl > interval '0' as "has_mirror!" from oncely.cell"#)
        .fetch_one(connection)
        .await
}

/// A key that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErasedKey {
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// Deletes up to `most` keys of a tenant, in the caller's transaction: `all`, or those that may be forgotten.
pub(crate) async fn erase_keys(
    connection: &mut PgConnection,
    tenant: &str,
    most: i64,
    all: bool,
    now: DateTime<Utc>,
) -> Result<Vec<ErasedKey>, sqlx::Error> {
    let rows = sqlx::query_file!("src/pg/tenant_keys_erase.sql", tenant, most, all, now)
        .fetch_all(connection)
        .await?;
    let keys = rows.into_iter().map(|row| ErasedKey {
        consumer: row.consumer,
        key: row.key,
        fingerprint: row.fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes)),
    });
    Ok(keys.collect())
}

/// What was erased of a span of the trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErasedSpan {
    /// Its place in the chain of seals; `None` once all is done.
    pub(crate) place: Option<i64>,
    pub(crate) rows: i64,
    /// It was as it had been sealed.
    pub(crate) was_whole: bool,
}

/// Erases a tenant from the next sealed span of the trail, or from what is not sealed where there is none. Without a pseudonym its rows
/// are deleted.
pub(crate) async fn erase_trail(
    connection: &mut PgConnection,
    tenant: &str,
    pseudonym: Option<&str>,
    salt: &[u8],
    after: i64,
) -> Result<ErasedSpan, sqlx::Error> {
    sqlx::query_as!(
        ErasedSpan,
        r#"select place, rows_erased as "rows!", was_whole as "was_whole!" from oncely.erase_trail($1, $2, $3, $4)"#,
        tenant,
        pseudonym,
        salt,
        after
    )
    .fetch_one(connection)
    .await
}

/// Takes a tenant's name out of what people did; returns in how many of their actions it stood.
pub(crate) async fn erase_actions(
    connection: &mut PgConnection,
    tenant: &str,
    pseudonym: &str,
) -> Result<u64, sqlx::Error> {
    let word = word(tenant);
    let changed = sqlx::query_file!("src/pg/tenant_actions_erase.sql", tenant, pseudonym, word);
    Ok(changed.execute(connection).await?.rows_affected())
}

/// A regular expression that finds a text where it stands as a word, and not as a part of one.
fn word(text: &str) -> String {
    let mut pattern = String::from("(?<![[:alnum:]_])");
    for character in text.chars() {
        if "\\^$.|?*+()[]{}-".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push_str("(?![[:alnum:]_])");
    pattern
}

/// Removes rows of processes that are gone and told of a failure of a tenant's; a live one writes its own again.
pub(crate) async fn erase_silent_processes(
    connection: &mut PgConnection,
    tenant: &str,
    seen_before: DateTime<Utc>,
) -> Result<u64, sqlx::Error> {
    let deleted = sqlx::query!(
        "delete from oncely.processes as p
        where p.last_seen_at < $2
            and jsonb_path_exists(p.consumers, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))",
        tenant,
        seen_before
    );
    Ok(deleted.execute(connection).await?.rows_affected())
}

/// What there is of these keys, by consumer and key; nothing of one that has none of it.
pub(crate) async fn tenant_contents(
    connection: &mut PgConnection,
    tenant: &str,
    names: &[(&str, &str)],
) -> Result<HashMap<(String, String), KeyContents>, sqlx::Error> {
    let (consumers, keys): (Vec<String>, Vec<String>) =
        names.iter().map(|(consumer, key)| ((*consumer).to_owned(), (*key).to_owned())).unzip();
    let rows = sqlx::query!(
        r#"select i.consumer, i.key, i.response::text as response, i.steps::text as steps,
            i.http_headers::text as http_headers, i.http_body
        from unnest($2::text[], $3::text[]) as n (consumer, key)
        join oncely.idempotency_keys as i on i.tenant = $1 and i.consumer = n.consumer and i.key = n.key
        where i.response is not null or i.steps is not null or i.http_status is not null"#,
        tenant,
        &consumers,
        &keys
    )
    .fetch_all(connection)
    .await?;
    let contents = rows.into_iter().map(|row| {
        let (http_headers, http_body) = (row.http_headers, row.http_body);
        let contents = KeyContents { response: row.response, steps: row.steps, http_headers, http_body };
        ((row.consumer, row.key), contents)
    });
    Ok(contents.collect())
}

/// What an event carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventMessage {
    pub(crate) id: Uuid,
    /// JSON, as PostgreSQL writes it.
    pub(crate) headers: Option<String>,
    pub(crate) payload: Vec<u8>,
}

/// What these events of a tenant carry.
pub(crate) async fn tenant_payloads(
    connection: &mut PgConnection,
    tenant: &str,
    ids: &[Uuid],
) -> Result<Vec<EventMessage>, sqlx::Error> {
    sqlx::query_as!(
        EventMessage,
        "select id, headers::text as headers, payload from oncely.events where tenant = $1 and id = any ($2)",
        tenant,
        ids
    )
    .fetch_all(connection)
    .await
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_is_a_pattern_that_finds_itself() {
        assert_eq!(super::word("a.b"), r"(?<![[:alnum:]_])a\.b(?![[:alnum:]_])");
    }
}
