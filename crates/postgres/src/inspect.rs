//! Read-only queries for operators, shared by the command line and the other interfaces.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

/// A filter of audit rows; `None` matches any.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct AuditFilter {
    pub tenant: Option<String>,
    pub consumer: Option<String>,
    pub key: Option<String>,
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub since: Option<DateTime<Utc>>,
    pub until: Option<DateTime<Utc>>,
    pub limit: i64,
}

/// A row of the audit table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct AuditRow {
    pub tenant: String,
    pub consumer: String,
    pub key: String,
    pub occurred_at: DateTime<Utc>,
    pub queue: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub error_code: Option<String>,
    pub detail: Option<String>,
    pub attempt: i32,
    pub duration_us: Option<i64>,
    pub worker: String,
    /// The database user, if an application wrote the row.
    pub login: Option<String>,
    pub trace_id: Option<String>,
}

/// Lists audit rows, newest first.
///
/// # Errors
/// If the query fails, for example by `statement_timeout`.
pub async fn list_audit(connection: &mut PgConnection, filter: &AuditFilter) -> sqlx::Result<Vec<AuditRow>> {
    sqlx::query_file_as!(
        AuditRow,
        "src/audit_list.sql",
        filter.tenant.as_deref(),
        filter.consumer.as_deref(),
        filter.key.as_deref(),
        filter.outcome.as_deref(),
        filter.reason.as_deref(),
        filter.since,
        filter.until,
        filter.limit
    )
    .fetch_all(connection)
    .await
}

/// The row of a key in `idempotency_keys`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct KeyDetails {
    pub tenant: String,
    pub consumer: String,
    pub key: String,
    pub status: String,
    pub attempts: i32,
    pub created_at: DateTime<Utc>,
    pub completed_at: Option<DateTime<Utc>>,
    /// When the key may be collected, if its claim set an expiry.
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "serialize_hexadecimal")]
    pub fingerprint: Option<Vec<u8>>,
    /// JSON as PostgreSQL writes it: it may hold numbers that Rust can't represent.
    #[serde(serialize_with = "serialize_json")]
    pub response: Option<String>,
    /// HTTP status of the response to its request; `None` if it came as a message.
    pub http_status: Option<i16>,
    pub reason: Option<String>,
    pub last_error: Option<String>,
    /// No copy runs before this time; for a held key, the end of its lease.
    pub not_before: Option<DateTime<Utc>>,
    /// The owner of the lease that holds the key.
    pub owner: Option<String>,
    /// The number of its last lease.
    pub fencing_token: Option<i64>,
    /// The steps of runs under leases, as JSON.
    #[serde(serialize_with = "serialize_json")]
    pub steps: Option<String>,
}

fn serialize_hexadecimal<S: serde::Serializer>(
    bytes: &Option<Vec<u8>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => {
            serializer.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        None => serializer.serialize_none(),
    }
}

/// Serialises a text of JSON as JSON if Rust can represent it, otherwise as text.
fn serialize_json<S: serde::Serializer>(json: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match json.as_deref().map(serde_json::from_str::<serde_json::Value>) {
        Some(Ok(value)) => value.serialize(serializer),
        Some(Err(_)) => json.serialize(serializer),
        None => serializer.serialize_none(),
    }
}

/// Reads the rows of one key under the given tenants and consumers. Responses are included only if the login may read them: an auditor
/// may not.
///
/// # Errors
/// If the query fails.
pub async fn read_key_details(
    connection: &mut PgConnection,
    key: &str,
    tenant: Option<&str>,
    consumer: Option<&str>,
) -> sqlx::Result<Vec<KeyDetails>> {
    let mut keys = sqlx::query_file_as!(KeyDetails, "src/find_key.sql", key, tenant, consumer)
        .fetch_all(&mut *connection)
        .await?;
    let allowed = sqlx::query_scalar!(
        r#"select has_column_privilege('oncely.idempotency_keys', 'response', 'select') as "allowed!""#
    );
    if allowed.fetch_one(&mut *connection).await? {
        for found in &mut keys {
            let contents = sqlx::query!(
                "select response::text, steps::text from oncely.idempotency_keys where tenant = $1 and consumer = $2 and key = $3",
                found.tenant,
                found.consumer,
                found.key
            );
            if let Some(contents) = contents.fetch_optional(&mut *connection).await? {
                (found.response, found.steps) = (contents.response, contents.steps);
            }
        }
    }
    Ok(keys)
}

/// Number and age of the mirror queue's records.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorQueueStatus {
    /// Number of records, counted up to 10,000.
    pub records: i64,
    /// When the oldest record was written.
    pub oldest: Option<DateTime<Utc>>,
}

/// Reads number and age of the mirror queue's records.
///
/// # Errors
/// If the query fails.
pub async fn read_mirror_queue_status(connection: &mut PgConnection) -> sqlx::Result<MirrorQueueStatus> {
    sqlx::query_as!(
        MirrorQueueStatus,
        r#"select (select count(*) from (select 1 from oncely.mirror_queue limit 10000) as o) as "records!",
            (select oncely.bounded(min(created_at)) from oncely.mirror_queue) as oldest"#
    )
    .fetch_one(connection)
    .await
}

/// Sizes from the planner's statistics: estimates that cost nothing on a big table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableStatistics {
    /// Estimated live rows of `idempotency_keys`.
    pub keys: i64,
    /// Size of that table with indexes, in bytes.
    pub keys_bytes: i64,
    /// Size of all audit partitions with indexes, in bytes, as of their last vacuum or analyze.
    pub audit_bytes: i64,
    /// Number of keys that were given up, counted up to 10,000.
    pub failed: i64,
    /// The start of the last week that has an audit partition.
    pub last_partition: Option<String>,
    /// The time up to which the trail is sealed, ten minutes less, once all transactions of that time have ended.
    pub sealing_since: Option<DateTime<Utc>>,
}

/// Reads sizes and estimated row counts of Oncely's tables.
pub async fn read_table_statistics(connection: &mut PgConnection) -> sqlx::Result<TableStatistics> {
    sqlx::query_as!(
        TableStatistics,
        r#"select
            coalesce(
                (
                    select n_live_tup from pg_stat_all_tables
                    where relid = 'oncely.idempotency_keys'::regclass and n_live_tup >= 1000
                ),
                -- The statistics lag; a few are counted.
                (select count(*) from (select 1 from oncely.idempotency_keys limit 1000) as k)
            ) as "keys!",
            pg_total_relation_size('oncely.idempotency_keys') as "keys_bytes!",
            -- By the catalogue: pg_total_relation_size waits for whoever holds a partition, and then nothing at all would be known.
            (
                select (coalesce(sum(c.relpages::bigint), 0) * current_setting('block_size')::bigint)::bigint
                from pg_class as c
                where c.oid in (
                    select i.inhrelid from pg_inherits as i where i.inhparent = 'oncely.audit'::regclass
                    union all
                    select x.indexrelid
                    from pg_inherits as i
                    join pg_index as x on x.indrelid = i.inhrelid
                    where i.inhparent = 'oncely.audit'::regclass
                    union all
                    select p.reltoastrelid
                    from pg_inherits as i
                    join pg_class as p on p.oid = i.inhrelid
                    where i.inhparent = 'oncely.audit'::regclass
                )
            ) as "audit_bytes!",
            (select count(*) from (select 1 from oncely.idempotency_keys where status = 'FAILED' limit 10000) as f) as "failed!",
            (
                select max(right(c.relname, 8))
                from pg_inherits as i
                join pg_class as c on c.oid = i.inhrelid
                where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'
            ) as last_partition,
            (select oncely.bounded(seal_mark_at) from oncely.maintenance) as sealing_since"#
    )
    .fetch_one(connection)
    .await
}

/// A handler function in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerFunction {
    /// Whether it is the batch form, by its argument.
    pub batch: bool,
    /// Whether its return type is that of its form.
    pub fits: bool,
    pub returns: String,
    /// Whether the login may call it.
    pub executable: bool,
    /// The session's user.
    pub login: String,
    /// Whether it is neither a procedure nor an aggregate.
    pub is_function: bool,
    /// Whether it is neither stable nor immutable.
    pub is_volatile: bool,
    pub owner: String,
    /// Whether it is SECURITY DEFINER and its owner is a superuser.
    pub runs_as_superuser: bool,
}

/// One of Oncely's roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRole {
    pub role: String,
    /// The session's user.
    pub login: String,
    /// Whether that user has the role, or owns the schema.
    pub granted: bool,
}

/// Lists Oncely's roles, and whether the login has each. A role that could not be created is left out.
pub async fn list_login_roles(connection: &mut PgConnection) -> sqlx::Result<Vec<LoginRole>> {
    sqlx::query_file_as!(LoginRole, "src/login_roles.sql").fetch_all(connection).await
}

/// Reads the session's user if it may not use the schema `oncely`; `None` if it may.
pub async fn read_login_without_schema_usage(connection: &mut PgConnection) -> sqlx::Result<Option<String>> {
    let row = sqlx::query!(
        r#"select current_user::text as "login!",
            coalesce((select has_schema_privilege(oid, 'usage') from pg_namespace where nspname = 'oncely'), true) as "may!""#
    );
    let row = row.fetch_one(connection).await?;
    Ok((!row.may).then_some(row.login))
}

/// Lists the functions of this name that take a message or a batch.
pub async fn list_handler_functions(
    connection: &mut PgConnection,
    name: &str,
) -> sqlx::Result<Vec<HandlerFunction>> {
    sqlx::query_file_as!(HandlerFunction, "src/handler_functions.sql", name).fetch_all(connection).await
}

/// Number of decisions with an outcome since a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecentOutcome {
    pub consumer: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub count: i64,
}

/// Maximum number of rows of the trail that [`count_recent_outcomes`] reads, which bounds the cost on a busy system.
pub const MAX_RECENT_ROWS: i64 = 100_000;

/// Counts outcomes since a time, by consumer and reason, sorted by consumer: of all rows, or of [`MAX_RECENT_ROWS`] of them.
pub async fn count_recent_outcomes(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
) -> sqlx::Result<Vec<RecentOutcome>> {
    sqlx::query_as!(
        RecentOutcome,
        r#"select consumer, outcome, reason, count(*) as "count!"
           from (select consumer, outcome, reason from oncely.audit where occurred_at >= $1 limit 100000) as a
           group by consumer, outcome, reason
           order by consumer, outcome, reason"#,
        since
    )
    .fetch_all(connection)
    .await
}
