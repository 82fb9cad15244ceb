//! Real servers for the demo, the tests and the benchmarks, and the judge of demo and fault runs.
//!
//! [`Servers::start`] uses the servers that `DATABASE_URL`, `AMQP_URL` and `REDIS_URL` name; for each one that is not
//! set it starts a private throw-away server in a temporary folder on a free port, from local binaries or from
//! Debian's packages, and stops it when the value is dropped or the process dies. [`Generation`] says whose servers those are.
//! Shares no code with the product, so that what it counts is independent of what it checks.

mod adoption;
mod apt;
mod arena;
mod authority;
mod bare;
mod broker;
mod browser;
pub mod checker;
mod cluster;
mod corpus;
mod database;
pub mod faults;
mod files;
mod generation;
mod install;
mod language;
mod life;
mod link;
mod namespace;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod program;
mod prometheus;
mod provider;
pub mod proxy;
mod rabbitmq;
mod raw;
mod redis;
mod redis_cluster;
mod root;
mod sentinel;
mod servers;
mod spawner;
mod standby;
mod tool;
mod usage;
mod virtual_host;
mod wait;

pub use adoption::{AdoptionReport, Sightings, adopt};
pub use arena::{
    Arena, ArenaConfig, Change, Errand, Gate, Hosts, Member, Missing, Neighbour, Rare, Server, Strike,
};
pub use authority::{Authority, Credentials};
pub use bare::{BareRoot, Service};
pub use broker::Broker;
pub use browser::{Answer, Browser};
pub use cluster::Cluster;
pub use corpus::{Case, Corpus, CorpusConsumer, Payload, Posting, as_text};
pub use database::Database;
pub use files::{SCRATCH, Scratch, cache, keep_scratch_in_memory};
pub use generation::{Generation, UnknownGeneration};
pub use language::{node, python};
pub use link::{Forward, forward_with_delay};
pub use namespace::Namespace;
pub use pgbouncer::PgBouncer;
pub use ports::free_port;
pub use postgres::Postgres;
pub use process::Process;
pub use prometheus::{Prometheus, promtool};
pub use provider::Provider;
pub use rabbitmq::RabbitMq;
pub use raw::{RawConnection, RawMessage, RawProperties, RawValue, Refusal};
pub use redis::Redis;
pub use redis_cluster::RedisCluster;
pub use rustix::process::Signal;
pub use sentinel::{Sentinel, SentinelRedis};
pub use servers::{Servers, Urls};
pub use tool::{chromium, nginx, systemd_analyze};
pub use usage::{cpu_time, cpu_time_of_family};
pub use virtual_host::VirtualHost;
pub use wait::{DEADLINE, eventually, eventually_within};

/// SQL for a migrated database, after which relays and collections work on two units, and statements that lock rows on one tenant at a
/// time: what an engine that spreads tables over nodes asks of every statement.
pub const DIVIDED: &str = include_str!("divided.sql");
