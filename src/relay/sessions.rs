//! The sessions of a relay.

use crate::pg::{Door, NoSession, Session};

/// What a relay asks with.
pub(super) struct Sessions {
    pub(super) records: Session,
    /// Where commits wait for a standby: asks whether what the other one sees has reached it.
    pub(super) standby_witness: Option<Session>,
}

impl Sessions {
    pub(super) async fn open(door: &Door, application: &str) -> Result<Self, NoSession> {
        let records = door.open(application).await?;
        let standby_witness = match records.synchronous {
            true => Some(door.open(application).await?),
            false => None,
        };
        Ok(Self { records, standby_witness })
    }

    pub(super) async fn close(self) {
        self.records.close().await;
        if let Some(witness) = self.standby_witness {
            witness.close().await;
        }
    }
}
