//! The independent judge: what was sent against what is found. Knows the product's tables, queues and mirror as a user
//! does who has read the documentation, and shares no code with it.

pub mod events;
mod evidence;
mod judge;
mod ledger;
pub mod mirror;

pub use evidence::{Evidence, Letter, empty};
pub use judge::{Invariant, RECOVERY_LIMIT, Violation, What, judge};
pub use ledger::{Act, Class, Intent, Key, Sent, Version, digest};

/// The judge's tables, the handlers `judge.take` and `judge.take_all`, and `judge.tell` for emitters of events; needs the product's migrations before.
pub const SCHEMA: &str = include_str!("judge.sql");
