//! The transaction of a request, as its handler uses it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Extensions;
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

type OpenTransaction = Option<Transaction<'static, Postgres>>;

/// Holder of a request's transaction while its handler runs.
#[derive(Clone)]
pub(super) struct TransactionSlot {
    transaction: Arc<Mutex<OpenTransaction>>,
    is_used: Arc<AtomicBool>,
}

impl TransactionSlot {
    pub(super) fn new(transaction: Transaction<'static, Postgres>) -> Self {
        Self { transaction: Arc::new(Mutex::new(Some(transaction))), is_used: Arc::default() }
    }

    /// Takes the transaction; `None` if a handler still holds it, or it was taken before.
    pub(super) fn take(&self) -> OpenTransaction {
        self.transaction.try_lock().ok()?.take()
    }

    /// Returns whether a handler has used the transaction. An extractor that takes it and then refuses the request has not.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::SeqCst)
    }
}

/// The open transaction of a request with a key: writes through it commit with the key and the answer, or not at all.
///
/// It must be dropped before the answer is returned: a handler that keeps it in a task or in a streamed body gets a 500, and nothing is
/// committed. A handler must not end the transaction by its own COMMIT or ROLLBACK, nor continue after a failed statement: that is
/// detected, and the request fails; if it has ended the transaction, the key is given up, and retries get 409 `outcome-unknown`. Savepoints
/// (`begin()` on it) are allowed. If it sets a role, the session gets the previous one back afterwards.
///
/// With the feature `axum` it is an extractor, and `Option<Tx>` is one for an optional key; otherwise [`Tx::from_extensions`] takes it.
pub struct Tx {
    guard: OwnedMappedMutexGuard<OpenTransaction, Transaction<'static, Postgres>>,
    is_used: Arc<AtomicBool>,
}

/// A request without a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoTransaction {
    /// The layer is not in front of this handler, the request has no key, or its method needs none.
    #[error(
        "the request has no transaction: it came without an Idempotency-Key, or IdempotencyLayer::transactional is not in front of it"
    )]
    None,
    /// Another extractor or part of the handler has taken it.
    #[error("the transaction of this request is in use: take it once")]
    InUse,
}

impl Tx {
    /// Takes the transaction of a request from its extensions.
    ///
    /// # Errors
    /// If the request has no transaction, or it is in use.
    pub fn from_extensions(extensions: &Extensions) -> Result<Self, NoTransaction> {
        let slot = extensions.get::<TransactionSlot>().ok_or(NoTransaction::None)?;
        let guard = Arc::clone(&slot.transaction).try_lock_owned().map_err(|_| NoTransaction::InUse)?;
        let guard = OwnedMutexGuard::try_map(guard, Option::as_mut).map_err(|_| NoTransaction::None)?;
        Ok(Self { guard, is_used: Arc::clone(&slot.is_used) })
    }
}

impl std::fmt::Debug for Tx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.guard
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.is_used.store(true, Ordering::SeqCst);
        &mut self.guard
    }
}

#[cfg(feature = "axum")]
mod extractor {
    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::{NoTransaction, Tx};

    impl IntoResponse for NoTransaction {
        /// Answers 500 without details: the error is in the program.
        fn into_response(self) -> Response {
            tracing::error!(error = %self, "handler requested a transaction that its request does not have");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }

    impl<S: Send + Sync> FromRequestParts<S> for Tx {
        type Rejection = NoTransaction;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoTransaction> {
            Self::from_extensions(&parts.extensions)
        }
    }

    impl<S: Send + Sync> OptionalFromRequestParts<S> for Tx {
        type Rejection = NoTransaction;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, NoTransaction> {
            match Self::from_extensions(&parts.extensions) {
                Ok(found) => Ok(Some(found)),
                Err(NoTransaction::None) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }
}
