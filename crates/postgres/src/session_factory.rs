//! Opens sessions for work.

use std::time::Duration;

use super::{PgSettings, Session, Timelines, describe};

/// Opens sessions to the right cell, and to no server on an older timeline than this process has seen.
#[derive(Clone, Debug)]
pub struct SessionFactory {
    settings: PgSettings,
    cell: String,
    /// Shared by the whole process.
    timelines: Timelines,
}

/// The reason why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NoSession {
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

impl From<NoSession> for sqlx::Error {
    /// Another cell and an old timeline become configuration errors, which count as an outage: it passes when the right server is back.
    fn from(error: NoSession) -> Self {
        match error {
            NoSession::Postgres(error) => error,
            other => Self::Configuration(Box::new(other)),
        }
    }
}

impl SessionFactory {
    pub fn new(settings: PgSettings, cell: String, timelines: Timelines) -> Self {
        Self { settings, cell, timelines }
    }

    /// Creates a factory for the same cell at another server.
    #[must_use]
    pub fn at_node(&self, settings: PgSettings, timelines: Timelines) -> Self {
        Self { settings, cell: self.cell.clone(), timelines }
    }

    /// Opens a session.
    pub async fn open(&self, application: &str) -> Result<Session, NoSession> {
        self.require_admitted(Session::open(&self.settings, application).await?).await
    }

    /// Opens a session for handlers and the statements around them (see `Session::open_for_handlers`).
    pub async fn open_for_handlers(&self, application: &str) -> Result<Session, NoSession> {
        self.require_admitted(Session::open_for_handlers(&self.settings, application).await?).await
    }

    /// Returns the maximum wait for an answer of the server.
    #[must_use]
    pub fn client_timeout(&self) -> Duration {
        self.settings.client_timeout()
    }

    /// Records the timeline of an open session; returns false if a newer one of the same server was recorded before.
    pub fn record_timeline(&self, session: &Session) -> bool {
        self.timelines.record_epoch(&session.cell.epoch)
    }

    /// Closes a session of another cell, or of an older timeline than the newest recorded one, and returns the reason.
    async fn require_admitted(&self, session: Session) -> Result<Session, NoSession> {
        if session.cell.name != self.cell {
            let found = session.cell.name.clone();
            session.close().await;
            return Err(NoSession::OtherCell { expected: self.cell.clone(), found });
        }
        if !self.record_timeline(&session) {
            let epoch = session.cell.epoch.clone();
            session.close().await;
            return Err(NoSession::OldTimeline(epoch));
        }
        Ok(session)
    }
}
