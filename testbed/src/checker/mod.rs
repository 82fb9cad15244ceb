//! The independent judge: what was sent against what is found. Knows the product's tables, queues and mirror as a user
//! does who has read the documentation, and shares no code with it.

mod calls;
pub mod events;
mod evidence;
mod fairness;
mod finding;
mod judge;
mod ladder;
mod leases;
mod ledger;
mod letter;
pub mod mirror;
mod observed;
mod proxied;
mod requests;
mod verdicts;
mod watched;

pub use calls::{Answer, Call, Memory, Order, Side};
pub use evidence::Evidence;
pub use fairness::Fairness;
pub use finding::{Invariant, Violation, What, count};
pub use judge::{RECOVERY_LIMIT, judge};
pub use ladder::{Ladder, Meanwhile, Step};
pub use leases::{LEASED, LeaseRow, LeaseStep, Leases};
pub use ledger::{
    Act, Beside, Class, FORGOTTEN, FRAGILE, Intent, Key, RETURNING, SHOPS, Sent, UNCOUNTED, Version, WITNESS,
    digest,
};
pub use letter::{Letter, drain_queue};
pub use observed::{OBSERVED, Observed};
pub use proxied::{PROXIED, Proxied, ProxiedRow};
pub use requests::{HttpAnswer, Requests};
pub use watched::{PAGE_LIMIT, Watched};

/// The judge's tables, the handlers `judge.take`, `judge.take_all` and (for payments) `judge.capture`, and `judge.tell` for emitters of events;
/// needs the product's migrations before.
pub const SCHEMA: &str = include_str!("judge.sql");
