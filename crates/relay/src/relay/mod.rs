//! The relay: brings committed data from PostgreSQL to Redis and RabbitMQ.

mod activity;
mod event_lane;
mod events;
mod examine;
mod idle;
mod mirror_batch;
mod mirror_lane;
mod observe;
mod run;
mod sessions;
mod trail_index;
mod waker;

pub use run::Relay;
