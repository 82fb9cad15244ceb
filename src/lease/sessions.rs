//! Sessions for a store in PostgreSQL: an application's pool, or our own.

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::{Instant, timeout_at};

use crate::pg::{NoSession, SessionPool, Taken};

/// Where sessions come from.
#[derive(Clone, Debug)]
pub(super) enum Sessions {
    /// An application's pool.
    Pool(PgPool),
    /// Sessions of our own.
    #[cfg_attr(not(feature = "gateway"), allow(dead_code))]
    Own(SessionPool),
}

/// A session for one transaction.
pub(super) enum CheckedOut {
    Pool(PoolConnection<Postgres>),
    Own(Taken),
}

/// Why there is none.
pub(super) enum CheckoutError {
    Postgres(sqlx::Error),
    /// None came in time.
    Silent,
    Other(NoSession),
}

impl Sessions {
    /// Takes one. Our own come within limits of their own.
    pub(super) async fn take(&self, until: Instant) -> Result<CheckedOut, CheckoutError> {
        match self {
            Self::Pool(pool) => match timeout_at(until, pool.acquire()).await {
                Ok(taken) => taken.map(CheckedOut::Pool).map_err(CheckoutError::Postgres),
                Err(_) => Err(CheckoutError::Silent),
            },
            Self::Own(sessions) => match sessions.take().await {
                // It has come too late, and is as good as before.
                Ok(taken) if until <= Instant::now() => {
                    taken.give_back();
                    Err(CheckoutError::Silent)
                }
                Ok(taken) => Ok(CheckedOut::Own(taken)),
                Err(NoSession::Postgres(error)) => Err(CheckoutError::Postgres(error)),
                Err(other) => Err(CheckoutError::Other(other)),
            },
        }
    }
}

impl CheckedOut {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        match self {
            Self::Pool(connection) => connection,
            Self::Own(taken) => taken.connection(),
        }
    }

    /// It is as good as before. One of a pool goes back by itself.
    pub(super) fn give_back(self) {
        if let Self::Own(taken) = self {
            taken.give_back();
        }
    }

    /// In whatever state: it goes.
    pub(super) fn end(self) {
        if let Self::Pool(connection) = self {
            drop(connection.detach());
        }
    }
}
