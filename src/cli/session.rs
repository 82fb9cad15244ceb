//! A session of a verb.

use crate::config::Config;
use crate::exit::Unreachable;
use crate::pg::Session;
use crate::preflight::preflight;

/// Opens a session to a database that is fit for work.
///
/// # Errors
/// What is wrong with the database, as start-up would say it, or that it does not answer.
pub(super) async fn open(config: &Config) -> anyhow::Result<Session> {
    let found = preflight(config, false).await;
    if !found.problems.is_empty() {
        return Err(found.problems.into());
    }
    match found.session {
        Some(session) => Ok(session),
        None => Err(Unreachable(found.unreachable.join("; ")).into()),
    }
}
