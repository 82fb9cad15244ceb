//! How far the maintenance of the tables has come: partitions of the trail, its seals, the look at the clock.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// What the maintenance has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaintenanceState {
    /// The database's clock, now.
    pub(crate) now: DateTime<Utc>,
    /// When a relay or an operator looked at the database's clock last, as far as it was explained.
    pub(crate) clock_seen_at: DateTime<Utc>,
    /// The trail is sealed up to about here; `None` where no seal was ever begun.
    pub(crate) sealing_since: Option<DateTime<Utc>>,
    /// When a collection ended last, and a count of what is stored of dead letters.
    pub(crate) collected_at: DateTime<Utc>,
    pub(crate) counted_at: DateTime<Utc>,
    /// End of the last week that has a partition.
    pub(crate) partitions_until: Option<DateTime<Utc>>,
    /// Bytes of the default partition.
    pub(crate) default_bytes: i64,
    /// Its rows, as PostgreSQL estimates.
    pub(crate) default_rows: i64,
    /// This login may read it.
    pub(crate) default_readable: bool,
}

/// Asks.
pub(crate) async fn maintenance_state(
    connection: &mut PgConnection,
) -> Result<MaintenanceState, sqlx::Error> {
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

/// Is a row in the default partition? For whoever may read it.
pub(crate) async fn default_partition_has_rows(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(r#"select exists (select from oncely.audit_default) as "some!""#)
        .fetch_one(connection)
        .await
}
