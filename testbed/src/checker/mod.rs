//! The independent judge: what was sent against what is found. Knows the product's tables, queues and mirror as a user
//! does who has read the documentation, and shares no code with it.

pub mod events;
mod evidence;
mod fairness;
mod judge;
mod ledger;
pub mod mirror;
mod verdicts;
mod watched;

pub use evidence::{Evidence, Letter, empty};
pub use fairness::Fairness;
pub use judge::{Invariant, RECOVERY_LIMIT, Violation, What, count, judge};
pub use ledger::{Act, Beside, Class, FRAGILE, Intent, Key, Sent, Version, digest};
pub use verdicts::{Ladder, Meanwhile, Step};
pub use watched::{PAGE_LIMIT, Watched};

/// The judge's tables, the handlers `judge.take`, `judge.take_all` and (for payments) `judge.capture`, and `judge.tell` for emitters of events;
/// needs the product's migrations before.
pub const SCHEMA: &str = include_str!("judge.sql");
