//! Leases: a key that is held for a time, for effects outside PostgreSQL that no transaction covers.
//!
//! In a worker a [`LeasedHandler`] runs under a [`Lease`] of its message. A program that consumes nothing of RabbitMQ runs under leases of a
//! [`LeaseStore`], by a [`LeaseRunner`]:
//!
//! ```
//! use std::time::Duration;
//! use oncely::identity::{Identity, IdentityPart};
//! use oncely::lease::{Call, LeaseRunner, MemoryClock, MemoryStore, Ran, Repeat, Step, StepError, fingerprint};
//!
//! const CHARGE: Step = Step::new("charge", Repeat::Within(Duration::from_secs(24 * 3_600)));
//!
//! async fn charge(call: Call) -> Result<String, StepError> {
//!     // POST with Idempotency-Key: call.key
//!     Ok(format!("charged as {}", call.key))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let runner = LeaseRunner::new(MemoryStore::in_memory(MemoryClock::default()));
//! let part = |text: &str| IdentityPart::new(text.as_bytes());
//! let order = Identity { tenant: part("acme")?, consumer: part("payments")?, key: part("order 7")? };
//! let work = async |lease: oncely::lease::Run<_>| {
//!     let receipt = lease.step(&CHARGE, charge).await?;
//!     Ok(Some(receipt.into()))
//! };
//! let first = runner.run(&order, fingerprint(b"{}"), work).await?;
//! assert!(matches!(first, Ran::Done(Some(_))));
//! let again = runner.run(&order, fingerprint(b"{}"), work).await?;
//! assert!(matches!(again, Ran::Duplicate(Some(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! There are stores in PostgreSQL ([`PostgresStore`]), Redis or Valkey ([`RedisStore`]) and memory ([`MemoryStore`]); [`CellStore`] makes one of
//! any database that compares and swaps. `conformance` (feature `testing`) tries a store of yours.

mod any;
mod cells;
mod check;
mod claim;
#[cfg(feature = "testing")]
pub mod conformance;
mod error;
mod held;
mod holding;
mod memory;
mod micros;
mod postgres;
mod recent;
mod record;
mod redis_store;
mod run;
mod runner;
mod sessions;
mod steps;
mod store;

pub use any::AnyStore;
pub use cells::{Cell, CellStore, Cells, Replaced};
pub use claim::{Claim, Claimed, Grant, fingerprint};
pub use error::StoreError;
pub use held::{BegunStep, Failed, Failure, Held, Known, Renewed, StepState};
pub use memory::{Memory, MemoryClock, MemoryStore};
pub use postgres::PostgresStore;
pub use record::Record;
pub use redis_store::{RedisSettings, RedisStore};
pub use run::Run;
#[cfg_attr(not(feature = "http"), allow(unused_imports))]
pub(crate) use runner::{Ended, Running};
pub use runner::{LeaseRunner, Ran};
pub use steps::step_key;
pub use store::{Facts, Failover, LeaseStore, StoreClock};

pub use crate::decide::KeyStatus;
pub use crate::handler::lease::{Call, Finish, Lease, LeasedHandler, Repeat, Step, StepError};
