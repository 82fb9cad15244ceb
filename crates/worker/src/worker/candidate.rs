//! Deliveries in work, and the known parts of their identities.

use oncely_amqp::Delivery;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::outcome::Outcome;
use oncely_core::reason::Rejection;
use oncely_traces::MessageTrace;

/// Most bytes of messages in one transaction: all of them are one message to PostgreSQL, and in memory a few times meanwhile. A larger one
/// is alone in its batch.
pub(crate) const LARGE: usize = 4 << 20;

/// Most bytes of messages, or of responses, in a statement for which a connection keeps its memory.
pub(crate) const KEPT: usize = 1 << 20;

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
    pub(crate) known: PartialIdentity,
}

/// A delivery with its outcome.
#[derive(Clone, Debug)]
pub(crate) struct DecidedDelivery {
    pub(crate) delivery: Box<Delivery>,
    pub(crate) known: PartialIdentity,
    pub(crate) outcome: Outcome,
}

/// A delivery with a committed outcome, and its span.
pub(crate) struct SettledDelivery {
    pub(crate) decided: DecidedDelivery,
    pub(crate) trace: MessageTrace,
}

/// Returns the bytes that messages hold.
pub(crate) fn size_of_all(candidates: &[&Candidate]) -> usize {
    candidates.iter().map(|one| one.delivery.size()).sum()
}

impl Candidate {
    /// Decides the candidate.
    pub(crate) fn decided(self, outcome: Outcome) -> DecidedDelivery {
        DecidedDelivery { known: PartialIdentity::from(&self.identity), delivery: self.delivery, outcome }
    }
}

impl From<RejectedDelivery> for DecidedDelivery {
    fn from(rejected: RejectedDelivery) -> Self {
        let RejectedDelivery { delivery, rejection, known } = rejected;
        Self { delivery, known, outcome: Outcome::rejected(rejection) }
    }
}

/// Known parts of an identity.
#[derive(Clone, Debug, Default)]
pub struct PartialIdentity {
    pub tenant: Option<IdentityPart>,
    pub key: Option<IdentityPart>,
}

/// Returns a part's text; empty if it is unknown, as in the tables.
pub(crate) fn text(part: Option<&IdentityPart>) -> &str {
    part.map_or("", IdentityPart::as_str)
}

impl From<&Identity> for PartialIdentity {
    fn from(identity: &Identity) -> Self {
        Self { tenant: Some(identity.tenant.clone()), key: Some(identity.key.clone()) }
    }
}
