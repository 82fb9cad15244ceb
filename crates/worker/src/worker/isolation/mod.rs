//! Redelivered messages, of which one may have killed a process, and lanes that stand in each other's way.

pub(super) mod contention;
pub(super) mod marks;
pub(super) mod permit;
pub(super) mod suspects;
