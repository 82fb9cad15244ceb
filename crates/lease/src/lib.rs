//! Leases: keys held for a limited time, for effects outside PostgreSQL that no transaction covers.
//!
//! In a worker, a `LeasedHandler` runs under a `Lease` of its message. A program
//! that consumes nothing from RabbitMQ runs under leases of a [`LeaseStore`], by a [`LeaseRunner`]:
//!
//! ```
//! use std::time::Duration;
//! use oncely::identity::{Identity, IdentityPart};
//! use oncely::lease::{Call, LeaseRunner, MemoryClock, MemoryStore, RunOutcome, Repeat, Step, StepError, fingerprint};
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
//! assert!(matches!(first, RunOutcome::Done(Some(_))));
//! let again = runner.run(&order, fingerprint(b"{}"), work).await?;
//! assert!(matches!(again, RunOutcome::Duplicate(Some(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! There are stores in PostgreSQL ([`PostgresStore`]), Redis or Valkey (`RedisStore`) and memory
//! ([`MemoryStore`]); [`CellStore`] makes one of any database with compare-and-swap. `conformance` (feature `testing`) tests a store of
//! your own.

mod again;
mod any;
mod cells;
mod check;
mod claim;
#[cfg(feature = "testing")]
pub mod conformance;
mod dual_instant;
mod error;
#[cfg(feature = "http")]
pub mod failure;
mod grouped;
pub mod handler_error;
mod holding;
mod lease_id;
mod memory;
mod micros;
mod postgres;
mod recent;
mod record;
mod run;
mod runner;
mod sessions;
mod step;
mod steps;
mod store;

pub use any::AnyStore;
pub use cells::{Cell, CellStore, Cells, ReplaceOutcome};
pub use check::{
    check_claim, check_failure, check_json, check_lease, check_step, check_step_name, truncate_error,
};
pub use claim::{Claim, ClaimOutcome, Grant, fingerprint};
pub use dual_instant::DualInstant;
pub use error::StoreError;
pub use grouped::{
    CallGroup, GroupLimits, GroupedStore, LeaseSessions, RunCompletion, RunTrail, SessionReuse, Statement,
    StatementError, TagFn, build_repeatable_error, build_statement,
};
pub use lease_id::{
    BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome, StepState,
};
pub use memory::{Memory, MemoryClock, MemoryStore};
pub use micros::to_micros;
pub use postgres::PostgresStore;
pub use record::Record;
pub use run::Run;
pub use runner::{ActiveRun, RunEnd};
pub use runner::{LeaseRunner, RunOutcome};
pub use step::{Call, Repeat, Step, StepError};
pub use steps::step_key;
pub use store::{Facts, Failover, LeaseStore, StepStore, StoreClock};

pub use oncely_core::decide::KeyStatus;
