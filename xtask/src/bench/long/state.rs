//! The state of the tables at a moment.

use std::collections::BTreeMap;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection};

/// A row of `state.sql`.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct State {
    pub(crate) at: DateTime<Utc>,
    /// Table, indexes, TOAST; the table alone; the primary key alone.
    pub(crate) key_bytes: i64,
    pub(crate) key_heap_bytes: i64,
    pub(crate) primary_key_bytes: i64,
    /// Since the database was made.
    pub(crate) deleted_keys: i64,
    pub(crate) trail_bytes: i64,
    /// As PostgreSQL's statistics have it.
    pub(crate) trail_rows: i64,
    /// Partitions of the trail; those that are to be dropped; those that begin later.
    pub(crate) weeks: i64,
    pub(crate) overdue_weeks: i64,
    pub(crate) weeks_ahead: i64,
    /// How long the oldest key has been past its retention.
    pub(crate) overdue_seconds: f64,
    /// Of keys, trail, others.
    pub(crate) dead: Json<BTreeMap<String, i64>>,
    pub(crate) autovacuums: Json<BTreeMap<String, i64>>,
    /// Full-page images in the WAL.
    pub(crate) full_pages: i64,
    /// Where the last checkpoint began: another one, another checkpoint.
    pub(crate) redo: String,
}

impl State {
    /// Reads it.
    pub(crate) async fn read(connection: &mut PgConnection, retention: f64) -> anyhow::Result<Self> {
        let query = sqlx::query_as(include_str!("state.sql")).bind(retention);
        query.fetch_one(connection).await.context("cannot read the state of the tables")
    }
}
