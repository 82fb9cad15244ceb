//! The relay: what committed in PostgreSQL reaches Redis and RabbitMQ.

mod drain;
mod event_lane;
mod events;
mod idle;
mod run;
mod sessions;

pub use run::Relay;
