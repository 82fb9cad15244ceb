//! The sessions of a relay.

use oncely_postgres::{NoSession, Session, SessionFactory};

/// Sessions of a lane.
pub(super) struct RelaySessions {
    pub(super) records: Session,
    /// Open if commits wait for a standby: queries whether the data that `records` sees has reached it.
    pub(super) standby_witness: Option<Session>,
}

impl RelaySessions {
    /// Opens the session for records, and a second one if commits wait for a standby.
    pub(super) async fn open(factory: &SessionFactory, application: &str) -> Result<Self, NoSession> {
        let records = factory.open(application).await?;
        let standby_witness = match records.synchronous {
            true => Some(factory.open(application).await?),
            false => None,
        };
        Ok(Self { records, standby_witness })
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
