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
    pub(super) findings: &'a mut CheckFindings,
}

impl<'a> CheckSession<'a> {
    pub(super) fn new(session: Session, limit: Duration, findings: &'a mut CheckFindings) -> Self {
        Self { session: Some(session), limit, findings }
    }

    /// Returns the connection for a query of this check. Once it is lost, adds the check as skipped, and returns `None`.
    pub(super) fn connection_or_skip(&mut self, check: &'static str) -> Option<&mut PgConnection> {
        if self.session.is_none() {
            self.findings.add_skipped(check, "the connection to PostgreSQL was lost");
        }
        self.session.as_mut().map(|session| &mut session.connection)
    }

    /// Returns the limit of one query.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the value of a query's result. After an error adds the check as skipped, and returns `None`; after an outage also drops the
    /// session.
    pub(super) fn unwrap_or_skip<T>(
        &mut self,
        check: &'static str,
        result: Result<T, sqlx::Error>,
    ) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let code = error.as_database_error().and_then(|error| error.code());
        let reason = match code.as_deref() {
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
        self.findings.add_skipped(check, reason);
        None
    }

    /// Returns the session and the findings, for the checks of a starting process; `None` once the session is lost.
    pub(super) fn session_and_findings(&mut self) -> Option<(&mut Session, &mut CheckFindings)> {
        self.session.as_mut().map(|session| (session, &mut *self.findings))
    }

    pub(super) async fn close(self) {
        if let Some(session) = self.session {
            session.close().await;
        }
    }
}

/// Runs one query: `query_or_skip!(session, "pg.xmin", pg::list_old_transactions)` is an `Option` of its value.
macro_rules! query_or_skip {
    ($session:expr, $check:expr, $query:path $(, $argument:expr)*) => {{
        let limit = $session.limit();
        match $session.connection_or_skip($check) {
            None => None,
            Some(connection) => {
                let result = oncely_postgres::wait_for_answer(limit, $query(connection $(, $argument)*)).await;
                $session.unwrap_or_skip($check, result)
            }
        }
    }};
}
pub(super) use query_or_skip;
