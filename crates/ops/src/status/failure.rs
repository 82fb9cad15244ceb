//! Failures of servers.

use crate::exit;

/// The reason why a server is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFailure {
    pub text: String,
    /// Whether it does not answer; otherwise a query failed.
    pub is_away: bool,
}

impl ServerFailure {
    /// Returns the reason why a server is not used.
    ///
    /// # Errors
    /// If the database does not match the configuration: `error` itself.
    pub fn from_error(error: anyhow::Error) -> anyhow::Result<Self> {
        match exit::code(&error) {
            exit::CONFIG => Err(error),
            code => Ok(Self { text: exit::format_error_chain(&error), is_away: code == exit::UNREACHABLE }),
        }
    }
}
