//! Asking PostgreSQL, one check after the other, each within its time.

use std::time::Duration;

use sqlx::PgConnection;

use crate::pg::{self, Session, is_outage};
use crate::preflight::Found;

/// A session that changes nothing, and what it has found.
pub(super) struct Asking<'a> {
    session: Option<Session>,
    /// After which the connection counts as lost; the server ends a statement before.
    limit: Duration,
    pub(super) found: &'a mut Found,
}

impl<'a> Asking<'a> {
    pub(super) fn new(session: Session, limit: Duration, found: &'a mut Found) -> Self {
        Self { session: Some(session), limit, found }
    }

    /// The connection, for one question; `None` once it is lost: then the check is skipped.
    pub(super) fn connection(&mut self, check: &'static str) -> Option<&mut PgConnection> {
        if self.session.is_none() {
            self.found.skipped(check, "the connection to PostgreSQL was lost");
        }
        self.session.as_mut().map(|session| &mut session.connection)
    }

    /// How long an answer is waited for.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Takes an answer; where there is none, says why the check is skipped.
    pub(super) fn take<T>(&mut self, check: &'static str, answer: Result<T, sqlx::Error>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        let code = error.as_database_error().and_then(|error| error.code());
        let why = match code.as_deref() {
            // INSUFFICIENT_PRIVILEGE
            Some("42501") => "the login may not read what this check reads".to_owned(),
            // QUERY_CANCELED
            Some("57014") => "PostgreSQL took too long to answer".to_owned(),
            _ => pg::describe(&error),
        };
        if is_outage(&error) {
            // Nobody knows what it is at.
            self.session = None;
        }
        self.found.skipped(check, why);
        None
    }

    /// The session, for checks of a start-up, and where they note what they find; `None` once it is lost.
    pub(super) fn at_start(&mut self) -> Option<(&mut Session, &mut Found)> {
        self.session.as_mut().map(|session| (session, &mut *self.found))
    }

    /// Ends the session.
    pub(super) async fn close(self) {
        if let Some(session) = self.session {
            session.close().await;
        }
    }
}

/// Asks one question: `ask!(asking, "pg.xmin", pg::old_transactions)` is an `Option` of the answer.
macro_rules! ask {
    ($asking:expr, $check:expr, $query:path $(, $argument:expr)*) => {{
        let limit = $asking.limit();
        match $asking.connection($check) {
            None => None,
            Some(connection) => {
                let answer = crate::pg::within(limit, $query(connection $(, $argument)*)).await;
                $asking.take($check, answer)
            }
        }
    }};
}
pub(super) use ask;
