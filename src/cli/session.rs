//! A session of a verb.

pub(super) use crate::preflight::open_session as open;
