//! Queries PostgreSQL, one check after the other, each with a time limit.

use std::time::Duration;

use sqlx::PgConnection;

use oncely_postgres::{self as pg, Session, is_outage};
use oncely_process::preflight::CheckFindings;

/// A read-only session, and its findings.
pub(super) struct CheckSession<'a> {
    session: Option<Session>,
    /// Limit past which the connection counts as lost; the server cancels a statement before.
    limit: Duration,
    pub(super) found: &'a mut CheckFindings,
}

impl<'a> CheckSession<'a> {
    pub(super) fn new(session: Session, limit: Duration, found: &'a mut CheckFindings) -> Self {
        Self { session: Some(session), limit, found }
    }

    /// Returns the connection for one query; `None` once it is lost: then the check is skipped.
    pub(super) fn connection(&mut self, check: &'static str) -> Option<&mut PgConnection> {
        if self.session.is_none() {
            self.found.skipped(check, "the connection to PostgreSQL was lost");
        }
        self.session.as_mut().map(|session| &mut session.connection)
    }

    /// Returns the limit of one answer.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Takes an answer; without one, reports why the check is skipped.
    pub(super) fn take<T>(&mut self, check: &'static str, answer: Result<T, sqlx::Error>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        let code = error.as_database_error().and_then(|error| error.code());
        let why = match code.as_deref() {
            // INSUFFICIENT_PRIVILEGE
            Some("42501") => "the login lacks the rights of this check".to_owned(),
            // QUERY_CANCELED
            Some("57014") => "PostgreSQL took too long to answer".to_owned(),
            _ => pg::describe(&error),
        };
        if is_outage(&error) {
            // The state of the connection is unknown.
            self.session = None;
        }
        self.found.skipped(check, why);
        None
    }

    /// Returns the session for start-up checks, and their findings; `None` once it is lost.
    pub(super) fn at_start(&mut self) -> Option<(&mut Session, &mut CheckFindings)> {
        self.session.as_mut().map(|session| (session, &mut *self.found))
    }

    pub(super) async fn close(self) {
        if let Some(session) = self.session {
            session.close().await;
        }
    }
}

/// Runs one query: `ask!(asking, "pg.xmin", pg::old_transactions)` is an `Option` of the answer.
macro_rules! ask {
    ($asking:expr, $check:expr, $query:path $(, $argument:expr)*) => {{
        let limit = $asking.limit();
        match $asking.connection($check) {
            None => None,
            Some(connection) => {
                let answer = oncely_postgres::within(limit, $query(connection $(, $argument)*)).await;
                $asking.take($check, answer)
            }
        }
    }};
}
pub(super) use ask;
