//! The actions that a session's user may perform. Callers check before they offer an action; PostgreSQL checks again when it is performed.

use sqlx::PgConnection;

/// The actions that the roles of a session's user allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The session's user.
    pub login: String,
    /// May requeue and discard dead letters.
    pub change_letters: bool,
    /// May retry and discard events.
    pub change_events: bool,
    /// May pause and resume consumers.
    pub pause: bool,
    /// May take a key from the run that holds it.
    pub release_leases: bool,
    /// May settle whether a key took effect.
    pub settle: bool,
    /// May read headers, bodies and responses.
    pub read_messages: bool,
    /// May record that an operator has read messages.
    pub record: bool,
}

/// Reads the tables and functions that the session's login may use.
pub async fn read_abilities(connection: &mut PgConnection) -> sqlx::Result<Abilities> {
    sqlx::query_file_as!(Abilities, "src/abilities.sql").fetch_one(connection).await
}
