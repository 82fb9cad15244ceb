//! Tests against real PostgreSQL, RabbitMQ and Redis servers, most of them through the real programs.

mod architecture;
mod catalogue;
mod command_line;
mod configuration;
mod crashes;
mod data;
mod failures;
mod garbage;
mod identities;
mod mirror;
mod once;
mod packaging;
mod rust_handlers;
mod support;
