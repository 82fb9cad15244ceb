//! The relay: what committed in PostgreSQL reaches Redis.

mod drain;
mod run;

pub use run::Relay;
