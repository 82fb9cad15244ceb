//! Counts, exports and erases a tenant's data. For the schema's owner: policies hide young keys from all other roles, and no other role may
//! change the trail.

use super::key_contents::KeyContents;
use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use oncely_core::fingerprint::Fingerprint;

/// Number of rows of a tenant, by table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantCounts {
    pub keys: i64,
    /// Number of keys not past their retention.
    pub young_keys: i64,
    /// When the last of these is past it, parked ones aside; `None` if a consumer's retention is unknown.
    pub young_until: Option<DateTime<Utc>>,
    pub trail: i64,
    pub letters: i64,
    /// Number of letters that wait or are being requeued.
    pub open_letters: i64,
    pub events: i64,
    pub(crate) ordering_keys: i64,
    pub(crate) mirror_records: i64,
    pub rights: i64,
    /// Limits set by operators, and usage counts.
    pub(crate) limits: i64,
    /// Operators' actions that name the tenant.
    pub actions: i64,
    /// Processes that report a failure of the tenant's.
    pub processes: i64,
}

impl TenantCounts {
    /// Returns the number of the tenant's rows in all tables.
    pub fn total(&self) -> i64 {
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

/// Counts a tenant's rows by table. Reads the whole trail.
pub async fn count_tenant_rows(
    connection: &mut PgConnection,
    tenant: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<TenantCounts> {
    sqlx::query_file_as!(TenantCounts, "src/tenant_counts.sql", tenant, now).fetch_one(connection).await
}

/// Lists the queues that a tenant's dead letters came from.
pub async fn list_tenant_queues(connection: &mut PgConnection, tenant: &str) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        "select distinct queue from oncely.dead_letters where tenant = $1 order by queue",
        tenant
    )
    .fetch_all(connection)
    .await
}

/// Discards a tenant's open letters, so that nothing is published from them any more; waits for sessions that are publishing.
pub async fn close_letters(
    connection: &mut PgConnection,
    tenant: &str,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
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

/// A table from which a tenant's rows are simply deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantTable {
    DeadLetters,
    Events,
    OrderingKeys,
    MirrorQueue,
    Rights,
    TenantLimits,
    LetterUsage,
    LetterGrowth,
}

/// Deletes a tenant's rows; returns their number.
pub async fn erase_rows(
    connection: &mut PgConnection,
    table: TenantTable,
    tenant: &str,
) -> sqlx::Result<u64> {
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

/// Blocks `mirror rebuild` until the caller's transaction ends, so that it queues no key deleted in it again.
pub async fn block_rebuilds(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select only_row from oncely.cell for update").fetch_one(connection).await?;
    Ok(())
}

/// Deletes every mirror record that may hold a tag of a tenant, and waits for relays that have one locked: their tags are in Redis by then.
/// A batch's record has tags of any tenants; those of others are found in PostgreSQL instead.
pub async fn erase_pending_tags(connection: &mut PgConnection, tenant: &str) -> sqlx::Result<u64> {
    let deleted =
        sqlx::query!("delete from oncely.mirror_queue where kind = 'mirror' or tenant = $1", tenant);
    Ok(deleted.execute(connection).await?.rows_affected())
}

/// Returns whether any relay has had a mirror with entries that may still live.
pub async fn has_mirror(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select mirror_ttl > interval '0' as "has_mirror!" from oncely.cell"#)
        .fetch_one(connection)
        .await
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErasedKey {
    pub consumer: String,
    pub key: String,
    pub fingerprint: Option<Fingerprint>,
}

/// Deletes up to `limit` keys of a tenant, in the caller's transaction: `all`, or those that may be forgotten.
pub async fn erase_keys(
    connection: &mut PgConnection,
    tenant: &str,
    limit: i64,
    all: bool,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<ErasedKey>> {
    let rows =
        sqlx::query_file!("src/tenant_keys_erase.sql", tenant, limit, all, now).fetch_all(connection).await?;
    let keys = rows.into_iter().map(|row| ErasedKey {
        consumer: row.consumer,
        key: row.key,
        fingerprint: row.fingerprint.and_then(|bytes| Fingerprint::from_stored(&bytes)),
    });
    Ok(keys.collect())
}

/// The result of erasing a span of the trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedSpan {
    /// Its place in the chain of seals, after which the next call goes on; `None` for the unsealed rows, which are last.
    pub place: Option<i64>,
    /// Number of erased rows.
    pub rows: i64,
    /// Whether the span still matched its seal. Also `true` for a span without rows of the tenant, which is not checked, and for unsealed
    /// rows.
    pub was_whole: bool,
}

/// Erases a tenant from the first sealed span after a place in the chain of seals (0 for the first span), or from the unsealed rows if no
/// such span is left. Call it with the returned place until that is `None`. The tenant's rows get the pseudonym, and their keys a hash with
/// `salt`; without a pseudonym the rows are deleted. A changed span is sealed again if it matched its seal before.
pub async fn erase_trail_span(
    connection: &mut PgConnection,
    tenant: &str,
    pseudonym: Option<&str>,
    salt: &[u8],
    after_place: i64,
) -> sqlx::Result<ErasedSpan> {
    sqlx::query_as!(
        ErasedSpan,
        r#"select place, rows_erased as "rows!", was_whole as "was_whole!" from oncely.erase_trail($1, $2, $3, $4)"#,
        tenant,
        pseudonym,
        salt,
        after_place
    )
    .fetch_one(connection)
    .await
}

/// Replaces a tenant's name in operators' actions; returns the number of changes.
pub async fn erase_actions(
    connection: &mut PgConnection,
    tenant: &str,
    pseudonym: &str,
) -> sqlx::Result<u64> {
    // All with one pseudonym, or none.
    let mut transaction = connection.begin().await?;
    let renamed = sqlx::query_file!("src/tenant_actions_rename.sql", tenant, pseudonym);
    let renamed = renamed.execute(&mut *transaction).await?.rows_affected();
    let filters = sqlx::query_file!("src/tenant_actions_filters.sql", tenant, pseudonym);
    let filters = filters.execute(&mut *transaction).await?.rows_affected();
    let notes = sqlx::query_file!("src/tenant_actions_notes.sql", build_word_pattern(tenant), pseudonym);
    let notes = notes.execute(&mut *transaction).await?.rows_affected();
    transaction.commit().await?;
    Ok(renamed + filters + notes)
}

/// Builds a regular expression that finds a text as a word, not as part of one.
fn build_word_pattern(text: &str) -> String {
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

/// Removes rows of silent processes that report a failure of a tenant's; a running process writes its own again.
pub async fn erase_silent_processes(
    connection: &mut PgConnection,
    tenant: &str,
    seen_before: DateTime<Utc>,
) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        "delete from oncely.processes as p
        where p.last_seen_at < $2
            and jsonb_path_exists(p.consumers, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))",
        tenant,
        seen_before
    );
    Ok(deleted.execute(connection).await?.rows_affected())
}

/// Reads the contents of these keys, by consumer and key; keys without contents are left out.
pub async fn read_tenant_contents(
    connection: &mut PgConnection,
    tenant: &str,
    names: &[(&str, &str)],
) -> sqlx::Result<HashMap<(String, String), KeyContents>> {
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

/// The message of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventMessage {
    pub id: Uuid,
    /// JSON, as PostgreSQL writes it.
    pub headers: Option<String>,
    pub payload: Vec<u8>,
}

/// Reads the messages of these events of a tenant.
pub async fn read_tenant_payloads(
    connection: &mut PgConnection,
    tenant: &str,
    ids: &[Uuid],
) -> sqlx::Result<Vec<EventMessage>> {
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
        assert_eq!(super::build_word_pattern("a.b"), r"(?<![[:alnum:]_])a\.b(?![[:alnum:]_])");
    }
}
