//! A session of a verb.

use crate::config::Config;
use crate::exit::Unreachable;
use crate::pg::Session;
use crate::preflight::{Preflight, preflight};

/// Opens a session to a database that is fit for work.
///
/// # Errors
/// What is wrong with the database, as start-up would say it, or that it does not answer.
pub(super) async fn open(config: &Config) -> anyhow::Result<Session> {
    let mut found = preflight(config, false).await;
    let session = found.session.take();
    fit(session, found)
}

/// What was opened, where nothing was found that speaks against it.
///
/// # Errors
/// Like [`open`].
pub(super) fn fit<T>(opened: Option<T>, found: Preflight) -> anyhow::Result<T> {
    if !found.problems.is_empty() {
        return Err(found.problems.into());
    }
    opened.ok_or_else(|| Unreachable(found.unreachable.join("; ")).into())
}
