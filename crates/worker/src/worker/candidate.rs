//! Deliveries in work, and the known parts of their identities.

use oncely_amqp::Delivery;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::Outcome;
use oncely_core::reason::Rejection;
use oncely_traces::MessageTrace;

/// Maximum number of bytes of messages in one transaction: all of them are one message to PostgreSQL, and in memory a few times meanwhile.
/// A larger message is alone in its batch.
pub(crate) const MAX_TRANSACTION_BYTES: usize = 4 << 20;

/// Maximum number of bytes of messages, or of responses, in a statement for which a connection keeps its memory.
pub(crate) const MAX_KEPT_BYTES: usize = 1 << 20;

/// A delivery that may run.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) identity: Identity,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) is_json: bool,
    /// Value that its handler locks, if the consumer names a source for it.
    pub(crate) lock: Option<IdentityPart>,
}

/// A delivery that can't be processed, the reason, and the known parts of its identity.
#[derive(Clone, Debug)]
pub(crate) struct RejectedDelivery {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) rejection: Rejection,
    pub(crate) identity: PartialIdentity,
}

/// A delivery with its outcome.
#[derive(Clone, Debug)]
pub(crate) struct DecidedDelivery {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) identity: PartialIdentity,
    pub(crate) outcome: Outcome,
}

/// A delivery with a committed outcome, and its span.
pub(crate) struct SettledDelivery {
    pub(crate) decided: DecidedDelivery,
    pub(crate) trace: MessageTrace,
}

/// Returns the sum of the bytes that messages hold.
pub(crate) fn total_size(candidates: &[&Candidate]) -> usize {
    candidates.iter().map(|one| one.delivery.size()).sum()
}

impl Candidate {
    /// Converts the candidate to a decided delivery with this outcome.
    pub(crate) fn into_decided(self, outcome: Outcome) -> DecidedDelivery {
        DecidedDelivery { identity: PartialIdentity::from(&self.identity), delivery: self.delivery, outcome }
    }
}

impl From<RejectedDelivery> for DecidedDelivery {
    fn from(rejected: RejectedDelivery) -> Self {
        let RejectedDelivery { delivery, rejection, identity } = rejected;
        Self { delivery, identity, outcome: Outcome::from_rejection(rejection) }
    }
}

/// Known parts of an identity.
#[derive(Clone, Debug, Default)]
pub struct PartialIdentity {
    pub tenant: Option<IdentityPart>,
    pub key: Option<IdentityPart>,
}

/// Returns a part's text; empty if it is unknown, as in the tables.
pub(crate) fn text_or_empty(part: Option<&IdentityPart>) -> &str {
    part.map_or("", IdentityPart::as_str)
}

impl From<&Identity> for PartialIdentity {
    fn from(identity: &Identity) -> Self {
        Self { tenant: Some(identity.tenant.clone()), key: Some(identity.key.clone()) }
    }
}
