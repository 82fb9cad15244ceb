//! The sessions of a relay.

use std::time::{Duration, Instant};

use oncely_postgres::{NoSession, Session, SessionFactory, Unit, list_units, wait_for_answer};

/// Interval at which the server's units are read.
const UNITS_INTERVAL: Duration = Duration::from_secs(10);

/// Sessions of a lane.
pub(super) struct RelaySessions {
    pub(super) records: Session,
    /// Open if commits wait for a standby: queries whether the data that `records` sees has reached it.
    pub(super) standby_witness: Option<Session>,
    /// The tables that are read and locked, in turn.
    pub(super) units: Vec<Unit>,
    units_read_at: Instant,
}

impl RelaySessions {
    /// Opens the session for records, reads its server's units, and a second one if commits wait for a standby.
    pub(super) async fn open(factory: &SessionFactory, application: &str) -> Result<Self, NoSession> {
        let mut records = factory.open(application).await?;
        let units = wait_for_answer(factory.client_timeout(), list_units(&mut records.connection)).await?;
        let standby_witness = match records.synchronous {
            true => Some(factory.open(application).await?),
            false => None,
        };
        Ok(Self { records, standby_witness, units, units_read_at: Instant::now() })
    }

    /// Reads the server's units again when that is due: an engine moves them from server to server. Returns whether they have changed.
    pub(super) async fn refresh_units(&mut self, limit: Duration) -> sqlx::Result<bool> {
        if self.units_read_at.elapsed() < UNITS_INTERVAL {
            return Ok(false);
        }
        let units = wait_for_answer(limit, list_units(&mut self.records.connection)).await?;
        self.units_read_at = Instant::now();
        let has_changed = units != self.units;
        self.units = units;
        Ok(has_changed)
    }

    /// Returns whether the database of the sessions is still on the newest known timeline: an old primary that lives on takes no more
    /// events and records.
    pub(super) fn are_admitted(&self, factory: &SessionFactory) -> bool {
        factory.record_timeline(&self.records)
    }

    pub(super) async fn close(self) {
        self.records.close().await;
        if let Some(witness) = self.standby_witness {
            witness.close().await;
        }
    }
}
