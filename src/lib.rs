//! Messages that take effect once: idempotent RabbitMQ consumers and a transactional outbox on PostgreSQL.
//!
//! A [`worker::Worker`] consumes queues and runs handlers. The key of a message, your write, an audit row and a mirror record commit in one
//! PostgreSQL transaction; the message is acknowledged only after that commit is known. A duplicate runs no handler; the same key with
//! another payload is dead-lettered. A [`relay::Relay`] publishes events to RabbitMQ, mirrors completed keys to Redis (which may be absent,
//! stale or wrong without changing the result), and maintains the tables.
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
//! The book (`docs/`) has a tutorial, guides and the references of configuration, command line and SQL. The map of the modules and the path
//! of one message are in `ARCHITECTURE.md`. Imports point one way, from the values ([`identity`], [`message`], …), which use no
//! I/O and no clock, down to the programs.
//!
//! # Features
//! - `cli` (default): the programs `oncely`, `worker` and `relay`. Not needed by an embedding program.
//! - `console` (default): `oncely console`, the web console.
//! - `gateway` (default): `oncely gateway`, which adds the idempotency layer to an HTTP service without changing it.
//! - `listener` (with `cli`): `worker.listen` and `relay.listen`, which serve metrics and health. Without it the [`metrics`] go to the
//!   recorder that the embedding program installs.
//! - `management` (with `cli`): `rabbitmq.management`, the doctor's queries of RabbitMQ's HTTP API.
//! - `top` (default, with `cli`): `oncely top`.
//! - `otel`: `[traces]`: spans of messages, batches and events to a receiver of OTLP. Off by default; the released programs have it.
//! - `tls` (default): `amqps://`, `rediss://`, PostgreSQL's `sslmode` and certificates.
//! - `http`: the module `http`, a tower layer with which a request with an `Idempotency-Key` takes effect once; `axum` adds its extractor `Tx`.
//! - `testing`: the module `testing`, for the tests of an embedding program, and `lease::conformance`, for your own lease store. Never in a
//!   release.
//! - `failpoints`: for tests of the programs: `FAILPOINT` names a step at which the process ends (`oncely_failpoint::STEPS`). Never in a release.
//! - `fuzzing`: functions for `fuzz/`. Not part of the public interface.

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

#[doc(no_inline)]
pub use config::Config;
#[doc(no_inline)]
pub use event::Event;
#[doc(no_inline)]
pub use handler::{BatchHandler, Context, Handler, HandlerError, Message};
#[doc(no_inline)]
pub use relay::Relay;
#[doc(no_inline)]
pub use worker::Worker;

/// The configuration: one file per concern, all problems reported at once, secrets never shown.
pub mod config {
    #[doc(inline)]
    pub use oncely_config::{
        AuditSettings, Config, ConsoleSettings, ConsumerSettings, DEFAULT_FILE, DEFAULTS, DeadLetterSettings,
        EncryptionSettings, EventSettings, GatewaySettings, GatewayTenant, GcSettings, InFlightPolicy,
        LargeResponse, LeaseSettings, LogFormat, LogSettings, MirrorSettings, Mode, Network, Problem,
        Problems, ProxySecret, ProxySettings, QueueArgument, QueueBinding, QueueType, RabbitSettings,
        RedisCluster, RelaySettings, SpanAttributes, SpanParent, TlsSettings, TraceSettings,
        UnknownOutcomePolicy, WorkerSettings, mask_url,
    };
}

/// Encryption of stored values with keys that the database never receives.
pub mod encryption {
    #[doc(inline)]
    pub use oncely_core::encryption::{Cipher, CipherError, EncryptedValue, KeyRing, KeyRingError, Place};
}

/// An event that is published once the transaction of a handler or an application has committed.
pub mod event {
    #[doc(inline)]
    pub use oncely_core::event::Event;
}

/// Handlers: SQL functions and Rust code that run inside the transaction, and handlers that run under a lease.
pub mod handler {
    #[doc(inline)]
    pub use oncely_handler::{
        BatchHandler, Context, Finish, Handler, HandlerError, HandlerFn, HttpEndpoint, IntoResponse,
        IntoResponses, Json, JsonPolicy, Lease, LeasedHandler, Message, SqlFunction, handler_fn,
    };
}

/// The HTTP door: a tower layer by which a request with an `Idempotency-Key` takes effect once.
#[cfg(feature = "http")]
pub mod http {
    #[doc(inline)]
    pub use oncely_http::{
        Body, BodyError, Consumer, FailureResponse, FingerprintPolicy, Idempotency, IdempotencyLayer,
        IdempotencyLayerBuilder, MessageResult, NoRun, NoTransaction, OnLarge, Run, SettingsError, Tx,
    };
}

/// Identity of a message: (tenant, consumer, key).
pub mod identity {
    #[doc(inline)]
    pub use oncely_core::identity::{Identity, IdentityError, IdentityPart, MAX_BYTES};
}

/// Work under leases: claims, steps, renewal, and the stores in memory and in PostgreSQL.
pub mod lease {
    #[cfg(feature = "testing")]
    #[doc(inline)]
    pub use oncely_lease::conformance;
    #[doc(inline)]
    pub use oncely_lease::{
        AnyStore, BegunStep, Call, Cell, CellStore, Cells, Claim, ClaimOutcome, Facts, FailOutcome, Failover,
        Failure, Grant, KeySnapshot, KeyStatus, LeaseId, LeaseRunner, LeaseStore, Memory, MemoryClock,
        MemoryStore, PostgresStore, Record, RefusedCall, RenewOutcome, Repeat, ReplaceOutcome, Run,
        RunOutcome, Step, StepError, StepState, StepStore, StoreClock, StoreError, fingerprint, step_key,
    };
}

/// A message, independent of the broker library's types.
pub mod message {
    #[doc(inline)]
    pub use oncely_core::message::{HeaderValue, Properties, RawMessage};
}

/// Metrics: names and labels.
pub mod metrics {
    #[doc(inline)]
    pub use oncely_process::metrics::{CATALOGUE, Kind, Metric, OTHER};
}

/// Reasons of dead letters: stable codes for users and programs.
pub mod reason {
    #[doc(inline)]
    pub use oncely_core::reason::{Reason, Rejection};
}

/// A store of leases in Redis or Valkey.
pub mod redis_store {
    #[doc(inline)]
    pub use oncely_redis::{RedisSettings, RedisStore};
}

/// The relay: brings committed data from PostgreSQL to Redis and RabbitMQ.
pub mod relay {
    #[doc(inline)]
    pub use oncely_relay::relay::Relay;
}

/// SIGTERM and Ctrl-C, and how a process stopped.
pub mod shutdown {
    #[doc(inline)]
    pub use oncely_process::shutdown::{StopOutcome, on_signal};
}

/// Log lines on stderr, so that stdout is free for data.
pub mod telemetry {
    #[doc(inline)]
    pub use oncely_process::telemetry::init;
}

#[cfg(feature = "testing")]
#[doc(inline)]
pub use oncely_worker::testing;

/// The worker: from a delivery to an acknowledgement.
pub mod worker {
    #[doc(inline)]
    pub use oncely_worker::worker::{StopOutcome, Worker, WorkerBuilder, WorkerError};
}
