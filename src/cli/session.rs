//! A session of a verb.

use crate::config::Config;
use crate::exit::Unreachable;
use crate::pg::Session;
use crate::preflight::{Preflight, postgres};

/// Opens a session to a database that is fit for work.
///
/// # Errors
/// What is wrong with the database, as start-up would say it, or that it does not answer.
pub(super) async fn open(config: &Config) -> anyhow::Result<Session> {
    let mut found = Preflight::default();
    postgres(config, &mut found).await;
    if !found.problems.is_empty() {
        return Err(found.problems.into());
    }
    match found.session {
        Some(session) => Ok(session),
        None => Err(Unreachable(found.unreachable.join("; ")).into()),
    }
}
