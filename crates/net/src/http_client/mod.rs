//! Connections to a service by HTTP/1.1: handlers that post messages, the gateway's service, RabbitMQ's HTTP API.

mod in_time;
mod stream;
mod transport;

pub use transport::TransportError;
pub use transport::{Transport, wait_for_answer};
