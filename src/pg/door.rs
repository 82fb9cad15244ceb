//! The way to a session for work.

use super::{PgSettings, Session, Timelines, describe};

/// Opens sessions to the right cell, and to no server that is older than one that this process has seen.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    settings: PgSettings,
    cell: String,
    /// Of the whole process.
    timelines: Timelines,
}

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSession {
    #[error("no connection to PostgreSQL: {}", describe(.0))]
    Postgres(#[from] sqlx::Error),
    #[error("the database is the cell {found:?}, not {expected:?}: nothing is done there")]
    OtherCell { expected: String, found: String },
    #[error(
        "the database is on an older timeline than it was before ({0}): an old primary has come back; nothing is done there \
         (where it was restored on purpose, restart this process)"
    )]
    OldTimeline(String),
}

impl Door {
    pub(crate) fn new(settings: PgSettings, cell: String, timelines: Timelines) -> Self {
        Self { settings, cell, timelines }
    }

    /// Opens a session.
    pub(crate) async fn open(&self, application: &str) -> Result<Session, NoSession> {
        self.admitted(Session::open(&self.settings, application).await?).await
    }

    /// Opens a session for handlers and what belongs to them (see [`Session::open_for_handlers`]).
    pub(crate) async fn open_for_handlers(&self, application: &str) -> Result<Session, NoSession> {
        self.admitted(Session::open_for_handlers(&self.settings, application).await?).await
    }

    /// Is an open session still on the newest timeline that is known?
    pub(crate) fn admits(&self, session: &Session) -> bool {
        self.timelines.admits(&session.cell.epoch)
    }

    async fn admitted(&self, session: Session) -> Result<Session, NoSession> {
        if session.cell.name != self.cell {
            let found = session.cell.name.clone();
            session.close().await;
            return Err(NoSession::OtherCell { expected: self.cell.clone(), found });
        }
        if !self.admits(&session) {
            let epoch = session.cell.epoch.clone();
            session.close().await;
            return Err(NoSession::OldTimeline(epoch));
        }
        Ok(session)
    }
}
