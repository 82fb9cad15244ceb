//! A session of a verb.

pub(super) use crate::preflight::{fit, open_session as open};
