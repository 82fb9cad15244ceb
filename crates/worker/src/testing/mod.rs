//! Tests of handlers on a real database, without a broker. Feature `testing`.
//!
//! A [`Harness`] takes your program's worker, and delivers messages to it through the worker's own code: identity, claim, handler, record,
//! COMMIT. It returns each outcome, which determines the broker's answer. [`Harness::kill_at`] ends a delivery at a step, as a crash of the
//! process does: its session is gone, and its transaction is rolled back. The message comes again ([`Harness::redeliver`]), and there must
//! be one effect.
//!
//! ```no_run
//! use oncely::handler::handler_fn;
//! use oncely::testing::{Harness, IncomingMessage, KillPoint};
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
//! for step in KillPoint::ALL {
//!     let message = IncomingMessage::json(&json!({ "amount": 20 }))
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
//! A handler that runs under leases ([`oncely_lease`]) is tested in the same way, with [`KillPoint::LEASED`]: it gets a real lease, its
//! steps are announced and stored, and the next delivery finds their results. Its outside calls are really made.
//!
//! The harness writes to the database as a worker does: use a database for tests only, with `oncely migrate`. Times of retries and
//! retention follow the harness's clock, which [`Harness::advance`] sets ahead. There is no relay, so events stay in `oncely.events`, and
//! no mirror. The configuration names a broker, but it is never connected to.

mod error;
mod harness;
mod incoming;
mod outcome;
mod step;

pub use error::HarnessError;
pub use harness::Harness;
pub use incoming::IncomingMessage;
pub use outcome::TestOutcome;
pub use step::KillPoint;
