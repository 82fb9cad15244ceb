//! Tests against real PostgreSQL, RabbitMQ and Redis servers, most of them through the real programs.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod architecture;
mod bad_messages;
mod blame;
mod catalogue;
mod command_line;
mod configuration;
mod crash_points;
mod crashes;
mod data;
mod documents;
mod embedding;
mod events;
mod examples;
mod failed;
mod failover;
mod failure_log;
mod failures;
mod garbage;
mod hostile_redis;
mod identities;
mod isolation;
mod leaks;
mod memory;
mod mirror;
mod once;
mod one_statement;
mod outages;
mod packaging;
mod pooler;
mod printed;
mod queues;
mod refusals;
mod retention;
mod rights;
mod rust_handlers;
mod search_path;
mod silence;
mod sql_protocol;
mod status;
mod support;
mod trail;
mod unsettled;
mod webhooks;
