//! Reasons of dead letters: stable codes for users and programs.

use std::fmt;

use crate::identity::IdentityError;

crate::words! {
    slice;
    /// A reason code, as in the header `x-oncely-reason`, the audit row and `idempotency_keys.reason`. Codes are only added, never changed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Reason {
        /// The signed identity of a copy is invalid: it belongs to another key, version, message or consumer, or is forged. The headers are not
        /// used instead.
        SignatureInvalid = "signature_invalid",
        /// The source of the tenant is missing.
        TenantMissing = "tenant_missing",
        /// The tenant is invalid: empty, over 255 bytes, with NUL, not UTF-8, neither text nor integer.
        TenantInvalid = "tenant_invalid",
        /// The source of the key is missing.
        KeyMissing = "key_missing",
        /// The key is invalid: empty, over 255 bytes, with NUL, not UTF-8, neither text nor integer.
        KeyInvalid = "key_invalid",
        /// The identity is in the body, or the consumer needs JSON, and the body is not JSON.
        InvalidJson = "invalid_json",
        /// The body is over the consumer's limit.
        BodyTooLarge = "body_too_large",
        /// The headers hold more than 4,096 values, including those in tables and arrays; a table counts as seven.
        HeadersTooLarge = "headers_too_large",
        /// The key came before with another payload.
        KeyConflict = "key_conflict",
        /// The handler reported that this message can never succeed.
        HandlerRejected = "handler_rejected",
        /// PostgreSQL refused data of this message (SQLSTATE classes 22 and 54), and would refuse it again.
        Poison = "poison",
        /// The handler failed as often as the consumer allows.
        AttemptsExhausted = "attempts_exhausted",
        /// `oncely.claim` was committed without `oncely.complete`: its outcome is unknown.
        IncompleteClaim = "incomplete_claim",
        /// A run under a lease made an outside call with an unknown outcome; or a consumer without leases received such a message.
        OutcomeUnknown = "outcome_unknown",
        /// Another run held its key under a lease, and the consumer rejects copies meanwhile (`lease.in_flight`): this copy did not run.
        InFlight = "in_flight",
        /// An operator parked it (`oncely failed park`): it did not run.
        Parked = "parked",
        /// Several of its runs began without reporting their end: it crashes its process.
        Crash = "crash",
    }
}

impl Reason {
    /// Returns the reason with this code; `None` for an unknown code.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == code)
    }

    /// Returns the reason that was stored with this code; `AttemptsExhausted` for one that a later release has added.
    #[must_use]
    pub fn from_stored_code(code: &str) -> Self {
        Self::from_code(code).unwrap_or(Self::AttemptsExhausted)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Rejection of a message that can't be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub reason: Reason,
    /// Description for users, with the place. Holds no payload.
    pub detail: String,
}

impl Rejection {
    /// Creates a rejection.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    /// Creates the rejection of a message with a missing or invalid tenant; `source` describes where it was read.
    pub(crate) fn for_tenant(error: IdentityError, source: &str) -> Self {
        let reason =
            if error == IdentityError::Missing { Reason::TenantMissing } else { Reason::TenantInvalid };
        Self::new(reason, format!("the tenant ({source}) {error}"))
    }

    /// Creates the rejection of a message with a missing or invalid key; `source` describes where it was read.
    pub(crate) fn for_key(error: IdentityError, source: &str) -> Self {
        let reason = if error == IdentityError::Missing { Reason::KeyMissing } else { Reason::KeyInvalid };
        Self::new(reason, format!("the key ({source}) {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_names_one_reason() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::from_code("nonsense"), None);
        assert_eq!(Reason::from_stored_code("poison"), Reason::Poison);
        assert_eq!(Reason::from_stored_code("of_a_later_release"), Reason::AttemptsExhausted);
    }
}
