//! Tests of handlers on a real database, without a broker. Feature `testing`.
//!
//! A [`Harness`] takes the worker that your program runs, and delivers messages to it through the worker's own code: identity, claim,
//! handler, record, COMMIT. It says what became of each, and what the broker would be told. [`Harness::kill_at`] ends a delivery at a
//! step, as the death of the process does: its session is gone, and what was not committed with it. The message comes again
//! ([`Harness::redeliver`]), and there must be one effect.
//!
//! ```no_run
//! use oncely::handler::handler_fn;
//! use oncely::testing::{Harness, Incoming, Step};
//! use oncely::{Config, Context, HandlerError, Message, Worker};
//! use serde_json::json;
//!
//! async fn pay(mut context: Context<'_>, message: Message<'_>) -> Result<(), HandlerError> {
//!     sqlx::query("insert into app.payments (tenant, key) values ($1, $2)")
//!         .bind(message.tenant())
//!         .bind(message.key())
//!         .execute(context.connection())
//!         .await?;
//!     Ok(())
//! }
//!
//! # async fn test(config: Config) -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder(config).handler("payments", handler_fn(pay)).build()?;
//! let mut test = Harness::connect(worker).await?;
//! for step in Step::ALL {
//!     let message = Incoming::json(&json!({ "amount": 20 }))
//!         .message_id(format!("order at {step:?}"))
//!         .header("x-tenant-id", "acme");
//!     test.kill_at(step, "payments", &message).await?;
//!     assert!(test.redeliver("payments", &message).await?.took_effect());
//!     // And here: one payment of this order.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A handler that runs under leases ([`crate::lease`]) is tested in the same way, with [`Step::LEASED`]: it gets a real lease, its steps are
//! announced and stored, and the next delivery finds what they brought. What it calls outside is really called.
//!
//! The database is written to as a worker writes to it: use one of the tests' own, with `oncely migrate`. What is told apart by time
//! (retries, retention) goes by the harness's clock, which [`Harness::advance`] sets ahead. There is no relay, so events stay in
//! `oncely.events`, and no mirror. The configuration names a broker, and nobody connects to it.

mod error;
mod harness;
mod incoming;
mod outcome;
mod step;

pub use error::HarnessError;
pub use harness::Harness;
pub use incoming::Incoming;
pub use outcome::Outcome;
pub use step::Step;
