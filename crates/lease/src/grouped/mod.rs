//! A store in PostgreSQL for many runs of one process: renewals and completions that are due at the same time share one statement and one
//! commit.

mod group;
mod sessions;
mod store;
mod trail;

pub use group::{CallGroup, GroupLimits};
pub use sessions::{
    LeaseSessions, SessionReuse, Statement, StatementError, build_repeatable_error, build_statement,
};
pub use store::{GroupedStore, RunCompletion, TagFn};
pub use trail::RunTrail;
