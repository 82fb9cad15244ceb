//! The independent judge: what was sent against what is found. Knows the product's tables, queues and mirror as a user
//! does who has read the documentation, and shares no code with it.

mod calls;
pub mod events;
mod evidence;
mod fairness;
mod judge;
mod leases;
mod ledger;
pub mod mirror;
mod observed;
mod proxied;
mod requests;
mod verdicts;
mod watched;

pub use calls::{Answer, Call, Memory, Order, Side};
pub use evidence::{Evidence, Letter, empty};
pub use fairness::Fairness;
pub use judge::{Invariant, RECOVERY_LIMIT, Violation, What, count, judge};
pub use leases::{LEASED, LeaseRow, LeaseStep, Leases};
pub use ledger::{
    Act, Beside, Class, FORGOTTEN, FRAGILE, Intent, Key, RETURNING, SHOPS, Sent, UNCOUNTED, Version, WITNESS,
    digest,
};
pub use observed::{OBSERVED, Observed};
pub use proxied::{PROXIED, Proxied, ProxiedRow};
pub use requests::{HttpAnswer, Requests};
pub use verdicts::{Ladder, Meanwhile, Step};
pub use watched::{PAGE_LIMIT, Watched};

/// The judge's tables, the handlers `judge.take`, `judge.take_all` and (for payments) `judge.capture`, and `judge.tell` for emitters of events;
/// needs the product's migrations before.
pub const SCHEMA: &str = include_str!("judge.sql");
