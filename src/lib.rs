//! Messages that take effect once: idempotent RabbitMQ consumers and a transactional outbox on PostgreSQL.
//!
//! A [`worker::Worker`] consumes queues and runs handlers. The key of a message, your write, an audit row and a mirror record
//! commit in one PostgreSQL transaction; the message is acknowledged only after that commit is known. A duplicate runs no
//! handler; the same key with another payload is dead-lettered. A [`relay::Relay`] publishes events to RabbitMQ, mirrors completed keys to
//! Redis (which may be absent, stale or wrong without changing the result), and keeps the tables.
//!
//! ```no_run
//! use oncely::handler::handler_fn;
//! use oncely::{Config, Context, HandlerError, Message, Worker};
//!
//! async fn pay(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
//!     sqlx::query("insert into payments (tenant, order_id) values ($1, $2)")
//!         .bind(message.tenant())
//!         .bind(message.key())
//!         .execute(context.connection())
//!         .await?;
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     let config = Config::load("oncely.toml".as_ref())?;
//!     let stop = oncely::shutdown::on_signal()?;
//!     Worker::builder(config).handler("payments", handler_fn(pay)).build()?.run(stop).await?;
//!     Ok(())
//! }
//! ```
//!
//! The book (`docs/`) has a tutorial, guides and the references of configuration, command line and SQL. The map of the modules and the walk
//! of one message are in `ARCHITECTURE.md`. Imports point one way, from the values
//! ([`identity`], [`message`], [`decide`], …), which know no I/O and no clock, down to the programs.
//!
//! # Features
//! - `cli` (default): the programs `oncely`, `worker` and `relay`. An embedding program does without.
//! - `console` (default): `oncely console`, a look at everything in the browser.
//! - `gateway` (default): `oncely gateway`, which puts the HTTP door before a service that nobody may change.
//! - `listener` (with `cli`): `worker.listen` and `relay.listen`, where metrics and health are told. Without it the [`metrics`] go to the
//!   recorder that the embedding program installs.
//! - `management` (with `cli`): `rabbitmq.management`, what the doctor asks RabbitMQ's HTTP API.
//! - `top` (default, with `cli`): `oncely top`.
//! - `otel`: `[traces]`: spans of messages, batches and events to a receiver of OTLP. Off by default; the released programs have it.
//! - `tls` (default): `amqps://`, `rediss://`, PostgreSQL's `sslmode` and certificates.
//! - `http`: the module `http`, a tower layer by which a request with an `Idempotency-Key` takes effect once; `axum` adds its extractor `Tx`.
//! - `testing`: the module `testing`, for the tests of an embedding program, and `lease::conformance`, for a lease store of yours. Never in a
//!   release.
//! - `failpoints`: for tests of the programs: `FAILPOINT` names a step at which the process ends ([`failpoint::STEPS`]). Never in a release.
//! - `fuzzing`: what `fuzz/` calls. Not part of the interface.

// What only the command line uses.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

// Hidden modules are public for the tests beside this crate, and no part of the interface.
#[doc(hidden)]
pub mod amqp;
pub(crate) mod backoff;
#[doc(hidden)]
pub mod blame;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod config;
#[cfg(feature = "console")]
pub(crate) mod console;
#[doc(hidden)]
pub mod decide;
#[doc(hidden)]
pub mod doctor;
pub(crate) mod durations;
pub mod encryption;
#[cfg(feature = "cli")]
pub(crate) mod erasure;
pub mod event;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod exit;
#[doc(hidden)]
pub mod extract;
#[doc(hidden)]
pub mod failpoint;
#[doc(hidden)]
pub mod fault;
#[doc(hidden)]
pub mod fingerprint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "gateway")]
pub(crate) mod gateway;
pub mod handler;
mod heartbeat;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "console", feature = "gateway", feature = "listener"))]
pub(crate) mod http_server;
pub mod identity;
pub(crate) mod json;
pub mod lease;
#[doc(hidden)]
pub mod letter;
#[cfg(feature = "cli")]
#[cfg_attr(not(feature = "console"), allow(dead_code, unused_imports))]
pub(crate) mod letters;
pub(crate) mod maintenance;
#[cfg(feature = "cli")]
#[cfg_attr(not(feature = "console"), allow(dead_code))]
pub(crate) mod mask;
pub mod message;
pub mod metrics;
#[doc(hidden)]
pub mod mirror;
#[doc(hidden)]
pub mod outcome;
pub(crate) mod overview;
pub(crate) mod own_headers;
#[doc(hidden)]
pub mod pg;
pub(crate) mod preflight;
pub(crate) mod process;
pub mod reason;
pub mod relay;
#[doc(hidden)]
pub mod retry;
pub(crate) mod server_url;
#[doc(hidden)]
pub mod settlement;
pub(crate) mod shown;
pub mod shutdown;
pub(crate) mod signing;
#[cfg(feature = "cli")]
pub(crate) mod status;
#[cfg(feature = "cli")]
pub(crate) mod story;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub(crate) mod tls;
#[doc(hidden)]
pub mod trace_parent;
pub(crate) mod traces;
#[cfg(feature = "cli")]
pub(crate) mod trail;
pub(crate) mod units;
pub(crate) mod url_file;
pub(crate) mod vitals;
#[doc(hidden)]
pub mod watchdog;
pub(crate) mod witnesses;
pub mod worker;

pub use config::Config;
pub use event::Event;
pub use handler::{BatchHandler, Context, Handler, HandlerError, Message};
pub use relay::Relay;
pub use worker::Worker;
