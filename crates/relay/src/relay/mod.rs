//! The relay: brings committed data from PostgreSQL to Redis and RabbitMQ.

mod event_lane;
mod events;
mod examine;
mod idle;
mod mirror_batch;
mod mirror_lane;
mod observe;
mod pulse;
mod run;
mod sessions;
mod trail_index;

pub use run::Relay;
