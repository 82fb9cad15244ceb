//! A delivery on its way, and as much of its identity as is known.

use crate::amqp::Delivery;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};
use crate::reason::Rejection;

/// A delivery that may run.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) is_json: bool,
    /// What it locks, where the consumer says where that is.
    pub(crate) lock: Option<IdentityPart>,
}

/// A delivery that can't be processed, why, and as much of its identity as is known.
#[derive(Clone, Debug)]
pub(crate) struct Rejected {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) rejection: Rejection,
    pub(crate) known: Known,
}

/// As much of an identity as is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) tenant: Option<IdentityPart>,
    pub(crate) key: Option<IdentityPart>,
}

/// A part's text; empty where it is not known, as in the tables.
pub(crate) fn text(part: Option<&IdentityPart>) -> &str {
    part.map_or("", IdentityPart::as_str)
}

impl From<&Identity> for Known {
    fn from(identity: &Identity) -> Self {
        Self { tenant: Some(identity.tenant.clone()), key: Some(identity.key.clone()) }
    }
}
