//! Checks of a batch's messages before its transaction.

pub(super) mod precheck;
pub(super) mod prepare;
