//! The progress of the table maintenance: audit partitions, seals, clock checks.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// The progress of the maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaintenanceState {
    /// The current time of the database's clock.
    pub now: DateTime<Utc>,
    /// The last plausible reading of the database's clock by a relay or an operator.
    pub clock_seen_at: DateTime<Utc>,
    /// The approximate time up to which the trail is sealed; `None` if no seal was ever begun.
    pub sealing_since: Option<DateTime<Utc>>,
    /// When the last collection ended, and when stored dead letters were last counted.
    pub collected_at: DateTime<Utc>,
    pub counted_at: DateTime<Utc>,
    /// The end of the last week that has a partition.
    pub partitions_until: Option<DateTime<Utc>>,
    /// Bytes of the default partition.
    pub default_bytes: i64,
    /// Rows of the default partition, PostgreSQL's estimate.
    pub default_rows: i64,
    /// Whether this login may read the default partition.
    pub default_readable: bool,
}

/// Reads when the relay last maintained the tables, and how far ahead partitions exist.
pub async fn read_maintenance_state(connection: &mut PgConnection) -> sqlx::Result<MaintenanceState> {
    sqlx::query_as!(
        MaintenanceState,
        r#"select clock_timestamp() as "now!", oncely.bounded(m.clock_seen_at) as "clock_seen_at!",
            oncely.bounded(m.seal_mark_at) as sealing_since,
            (select l.since from oncely.locks as l where l.name = 'collection' and l.pid = 0) as "collected_at!",
            (select l.since from oncely.locks as l where l.name = 'count_letters' and l.pid = 0) as "counted_at!",
            (
                select ((max(to_date(right(c.relname, 8), 'YYYYMMDD')) + 7)::timestamp at time zone 'UTC')
                from pg_inherits as i
                join pg_class as c on c.oid = i.inhrelid
                where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'
            ) as partitions_until,
            pg_relation_size('oncely.audit_default') as "default_bytes!",
            coalesce((select n_live_tup from pg_stat_all_tables where relid = 'oncely.audit_default'::regclass), 0) as "default_rows!",
            has_table_privilege('oncely.audit_default', 'select') as "default_readable!"
        from oncely.maintenance as m"#
    )
    .fetch_one(connection)
    .await
}

/// Returns whether the default partition has a row. For logins that may read it.
pub async fn default_partition_has_rows(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select exists (select from oncely.audit_default) as "some!""#)
        .fetch_one(connection)
        .await
}
