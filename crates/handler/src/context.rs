//! Context of a handler: its connection and its events.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{HandlerError, Message};
use oncely_core::event::Event;
use oncely_postgres as pg;

/// Context of a handler. All writes through [`Context::connection`] commit with the key, or not at all.
#[derive(Debug)]
pub struct Context<'c> {
    connection: &'c mut PgConnection,
    /// The handled message; `None` for a batch.
    message: Option<Message<'c>>,
}

impl<'c> Context<'c> {
    #[doc(hidden)]
    pub fn new(connection: &'c mut PgConnection, message: Option<Message<'c>>) -> Self {
        Self { connection, message }
    }

    /// Returns the connection inside the open transaction. A handler must not end that transaction by a COMMIT or ROLLBACK of its own, and
    /// must not drop a nested `begin()` half-way (a timeout around it), nor go on after one that failed: sqlx then rolls back all of the
    /// transaction. Other savepoints are allowed. An ended transaction is detected, and the connection is closed.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.connection
    }

    /// Returns a context that borrows this one, for a function that takes a context and is called for each message of a batch.
    pub fn reborrow(&mut self) -> Context<'_> {
        Context { connection: self.connection, message: self.message }
    }

    /// Emits an event: the relay publishes it once this message's transaction has committed, and never otherwise. It has the message's
    /// tenant and W3C trace context, unless it has its own. Returns its id.
    ///
    /// # Errors
    /// If the event is too large or can't be sent (the message is dead-lettered then), or PostgreSQL fails: [`HandlerError::Database`]. If
    /// a [`BatchHandler`](super::BatchHandler) calls it: [`HandlerError::Environment`], as that must name the message that causes the event
    /// ([`Context::emit_for`]).
    pub async fn emit(&mut self, event: &Event) -> Result<Uuid, HandlerError> {
        match self.message {
            Some(message) => self.emit_for(&message, event).await,
            None => Err(HandlerError::environment(
                "a batch handler must say which message causes an event: emit_for",
            )),
        }
    }

    /// Emits an event that one message of a batch causes; else like [`Context::emit`].
    ///
    /// # Errors
    /// If the event is too large or can't be sent, or PostgreSQL fails: [`HandlerError::Database`].
    pub async fn emit_for(&mut self, message: &Message<'_>, event: &Event) -> Result<Uuid, HandlerError> {
        Ok(pg::emit_for(self.connection, event, Some((message.tenant(), message.raw))).await?)
    }
}
