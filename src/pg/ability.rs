//! What a session's user may do: whoever offers an action asks first, and PostgreSQL has the last word.

use sqlx::PgConnection;

/// What the roles of a session's user allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// The session's user.
    pub(crate) login: String,
    /// To requeue dead letters and to discard them.
    pub(crate) change_letters: bool,
    /// To retry events and to discard them.
    pub(crate) change_events: bool,
    /// To pause consumers and to resume them.
    pub(crate) pause: bool,
    /// To take a key from the run that holds it.
    pub(crate) release_leases: bool,
    /// To say of a key whether it took effect.
    pub(crate) settle: bool,
    /// To read headers, bodies and responses.
    pub(crate) read_messages: bool,
    /// To record that somebody did so.
    pub(crate) record: bool,
}

/// Asks.
pub(crate) async fn abilities(connection: &mut PgConnection) -> Result<Abilities, sqlx::Error> {
    sqlx::query_file_as!(Abilities, "src/pg/abilities.sql").fetch_one(connection).await
}
