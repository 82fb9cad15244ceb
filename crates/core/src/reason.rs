//! Reasons of dead letters: stable codes for users and programs.

use std::fmt;

use crate::identity::IdentityError;

/// A reason code, as in the header `x-oncely-reason`, the audit row and `idempotency_keys.reason`. Codes are only added, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The signed identity of a copy is invalid: it belongs to another key, version, message or consumer, or is forged. The headers are not
    /// used instead.
    SignatureInvalid,
    /// The source of the tenant is missing.
    TenantMissing,
    /// The tenant is invalid: empty, over 255 bytes, with NUL, not UTF-8, neither text nor integer.
    TenantInvalid,
    /// The source of the key is missing.
    KeyMissing,
    /// The key is invalid: empty, over 255 bytes, with NUL, not UTF-8, neither text nor integer.
    KeyInvalid,
    /// The identity is in the body, or the consumer needs JSON, and the body is not JSON.
    InvalidJson,
    /// The body is over the consumer's limit.
    BodyTooLarge,
    /// The headers hold more than 4,096 values, including those in tables and arrays.
    HeadersTooLarge,
    /// The key came before with another payload.
    KeyConflict,
    /// The handler reported that this message can never succeed.
    HandlerRejected,
    /// PostgreSQL refused data of this message (SQLSTATE classes 22 and 54), and would refuse it again.
    Poison,
    /// The handler failed as often as the consumer allows.
    AttemptsExhausted,
    /// `oncely.claim` was committed without `oncely.complete`: its outcome is unknown.
    IncompleteClaim,
    /// A run under a lease made an outside call with an unknown outcome; or a consumer without leases received such a message.
    OutcomeUnknown,
    /// Another run held its key under a lease, and the consumer rejects copies meanwhile (`lease.in_flight`): this copy did not run.
    InFlight,
    /// An operator parked it (`oncely failed park`): it did not run.
    Parked,
    /// Several of its runs began without reporting their end: it crashes its process.
    Crash,
}

impl Reason {
    /// All reasons, for documentation and tests.
    pub const ALL: &[Self] = &[
        Self::SignatureInvalid,
        Self::TenantMissing,
        Self::TenantInvalid,
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::InvalidJson,
        Self::BodyTooLarge,
        Self::HeadersTooLarge,
        Self::KeyConflict,
        Self::HandlerRejected,
        Self::Poison,
        Self::AttemptsExhausted,
        Self::IncompleteClaim,
        Self::OutcomeUnknown,
        Self::InFlight,
        Self::Parked,
        Self::Crash,
    ];

    /// Returns the stable code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SignatureInvalid => "signature_invalid",
            Self::TenantMissing => "tenant_missing",
            Self::TenantInvalid => "tenant_invalid",
            Self::KeyMissing => "key_missing",
            Self::KeyInvalid => "key_invalid",
            Self::InvalidJson => "invalid_json",
            Self::BodyTooLarge => "body_too_large",
            Self::HeadersTooLarge => "headers_too_large",
            Self::KeyConflict => "key_conflict",
            Self::HandlerRejected => "handler_rejected",
            Self::Poison => "poison",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::IncompleteClaim => "incomplete_claim",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::InFlight => "in_flight",
            Self::Parked => "parked",
            Self::Crash => "crash",
        }
    }

    /// Returns the reason with this code.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == code)
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

    pub(crate) fn tenant(error: IdentityError, place: &str) -> Self {
        let reason =
            if error == IdentityError::Missing { Reason::TenantMissing } else { Reason::TenantInvalid };
        Self::new(reason, format!("the tenant ({place}) {error}"))
    }

    pub(crate) fn key(error: IdentityError, place: &str) -> Self {
        let reason = if error == IdentityError::Missing { Reason::KeyMissing } else { Reason::KeyInvalid };
        Self::new(reason, format!("the key ({place}) {error}"))
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
    }
}
