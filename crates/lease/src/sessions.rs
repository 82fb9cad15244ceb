//! Sessions for a store in PostgreSQL: from an application's pool, or of its own.

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::time::{Instant, timeout_at};

use oncely_postgres::{NoSession, PooledSession, SessionPool};

/// The source of sessions.
#[derive(Clone, Debug)]
pub(crate) enum SessionSource {
    Pool(PgPool),
    /// Sessions opened by this crate.
    Own(SessionPool),
}

/// A session for one statement, or several that commit together.
pub(super) enum TransactionSession {
    Pool(PoolConnection<Postgres>),
    Own(PooledSession),
}

/// The reason why no session is available.
pub(super) enum CheckoutError {
    Postgres(sqlx::Error),
    /// No session became available before the limit of the wait.
    Timeout,
    Other(NoSession),
}

impl SessionSource {
    /// Takes a session, waiting until `until` at most. Own sessions have time limits of their own: one that is acquired late is given back.
    pub(super) async fn take(&self, until: Instant) -> Result<TransactionSession, CheckoutError> {
        match self {
            Self::Pool(pool) => match timeout_at(until, pool.acquire()).await {
                Ok(session) => session.map(TransactionSession::Pool).map_err(CheckoutError::Postgres),
                Err(_) => Err(CheckoutError::Timeout),
            },
            Self::Own(sessions) => match sessions.acquire().await {
                // Acquired too late, and usable.
                Ok(session) if until <= Instant::now() => {
                    session.give_back();
                    Err(CheckoutError::Timeout)
                }
                Ok(session) => Ok(TransactionSession::Own(session)),
                Err(NoSession::Postgres(error)) => Err(CheckoutError::Postgres(error)),
                Err(other) => Err(CheckoutError::Other(other)),
            },
        }
    }
}

impl TransactionSession {
    /// Gives a usable session back. A pool's connection returns by itself.
    pub(super) fn give_back(self) {
        if let Self::Own(session) = self {
            session.give_back();
        }
    }

    /// Closes a session in an unknown state.
    pub(super) fn end(self) {
        if let Self::Pool(connection) = self {
            drop(connection.detach());
        }
    }
}
