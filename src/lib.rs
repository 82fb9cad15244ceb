//! Messages that take effect once: idempotent RabbitMQ consumers and a transactional outbox on PostgreSQL.
//!
//! A [`worker::Worker`] consumes queues and runs handlers. The key of a message, your write, an audit row and a mirror record
//! commit in one PostgreSQL transaction; the message is acknowledged only after that commit is known. A duplicate runs no
//! handler; the same key with another payload is dead-lettered. A [`relay::Relay`] mirrors completed keys to Redis, which
//! may be absent, stale or wrong without changing the result.
//!
//! ```no_run
//! use oncely::config::Config;
//! use oncely::handler::{Context, Handler, HandlerResult, Incoming};
//! use oncely::worker::Worker;
//!
//! struct Payments;
//!
//! impl Handler for Payments {
//!     async fn handle(&self, context: &mut Context<'_>, message: &Incoming<'_>) -> HandlerResult {
//!         sqlx::query("insert into payments (tenant, order_id) values ($1, $2)")
//!             .bind(message.identity.tenant.as_str())
//!             .bind(message.identity.key.as_str())
//!             .execute(context.connection())
//!             .await?;
//!         Ok(None)
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let config = Config::load("oncely.toml".as_ref())?;
//!     let stop = oncely::shutdown::on_signal()?;
//!     Worker::builder(config).handler("payments", Payments).build()?.run(stop).await?;
//!     Ok(())
//! }
//! ```
//!
//! The map of the modules and the walk of one message are in `ARCHITECTURE.md`. Imports point one way, from the values
//! ([`identity`], [`message`], [`decide`], …), which know no I/O and no clock, down to the programs.
//!
//! # Features
//! - `tls`: `amqps://`, `rediss://` and PostgreSQL's `sslmode`. Off by default.
//! - `plants`: for tests: `PLANT` plants a bug that the checker must find ([`plant::BUGS`]). Never in a release.
//! - `failpoints`: for tests: `FAILPOINT` names a step at which the process ends ([`failpoint::STEPS`]). Never in a release.
//! - `fuzzing`: what `fuzz/` calls. Not part of the interface.

pub mod amqp;
pub(crate) mod backoff;
pub mod blame;
pub mod cli;
pub mod config;
pub mod decide;
pub mod event;
pub mod exit;
pub mod extract;
pub mod failpoint;
pub mod fault;
pub mod fingerprint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod handler;
mod heartbeat;
pub mod identity;
pub mod letter;
pub(crate) mod maintenance;
pub mod message;
pub mod mirror;
pub mod outcome;
pub mod pg;
pub mod plant;
pub(crate) mod preflight;
pub mod reason;
pub mod relay;
pub mod retry;
pub(crate) mod seal;
pub mod settlement;
pub(crate) mod shown;
pub mod shutdown;
pub mod stack;
pub mod telemetry;
pub mod watchdog;
pub mod worker;
