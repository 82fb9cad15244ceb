//! Thresholds of findings.

use std::time::Duration;

/// Thresholds of findings. The defaults are documented in the book.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum age of a transaction that holds back vacuum.
    pub transaction: Duration,
    /// Dead rows above which a table is reported, if they are also more than a fifth of its live rows.
    pub dead_rows: i64,
    /// Bytes of the log kept by an inactive slot that cause a warning.
    pub slot_bytes: i64,
    /// Minimum number of decisions or deliveries for a judgement of identities.
    pub decisions: i64,
    /// Length of a pause that causes a warning.
    pub pause: Duration,
    /// Maximum difference of the clocks.
    pub skew: Duration,
    /// Number of requested checkpoints from which on they are reported, if they are also more than those in time.
    pub requested_checkpoints: i64,
    /// Bytes of WAL from which on its pages written whole are judged.
    pub wal_bytes: i64,
    /// Maximum age of a prepared transaction of two phases.
    pub prepared: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transaction: Duration::from_secs(15 * 60),
            dead_rows: 50_000,
            slot_bytes: 1 << 30,
            decisions: 50,
            pause: Duration::from_secs(86_400),
            skew: Duration::from_secs(1),
            requested_checkpoints: 10,
            wal_bytes: 1 << 30,
            prepared: Duration::from_secs(60),
        }
    }
}
