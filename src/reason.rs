//! Why a message was dead-lettered: stable codes for people and programs.

use std::fmt;

use crate::identity::IdentityError;

/// A reason code, as in the header `x-oncely-reason`, the audit row and `idempotency_keys.reason`. Codes are only added,
/// never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The signed identity of a copy does not count: it has another key, version, message or consumer, or is forged. The headers are not
    /// asked instead.
    SignatureInvalid,
    /// Nothing where the tenant should be.
    TenantMissing,
    /// A tenant that can't be one: empty, over 255 bytes, NUL, not UTF-8, neither text nor integer.
    TenantInvalid,
    /// Nothing where the key should be.
    KeyMissing,
    /// A key that can't be one: empty, over 255 bytes, NUL, not UTF-8, neither text nor integer.
    KeyInvalid,
    /// The identity is in the body, or the consumer needs JSON, and the body is not JSON.
    InvalidJson,
    /// The body is over the consumer's limit.
    BodyTooLarge,
    /// The headers hold more than 4,096 values, those in tables and arrays counted.
    HeadersTooLarge,
    /// The key came before with another payload.
    KeyConflict,
    /// The handler said that this message can never succeed.
    HandlerRejected,
    /// PostgreSQL refused data of this message (SQLSTATE classes 22 and 54): it would refuse it again.
    Poison,
    /// The handler failed as often as the consumer allows.
    AttemptsExhausted,
    /// `oncely.claim` was committed without `oncely.complete`: whether it took effect is not known.
    IncompleteClaim,
    /// A run under a lease called something outside, and whether it happened is not known; or a consumer without leases met such a message.
    OutcomeUnknown,
    /// Another run held its key under a lease, and the consumer rejects what comes meanwhile (`lease.in_flight`): this copy did not run.
    InFlight,
    /// Somebody set it aside by hand (`oncely failed park`): it did not run.
    Parked,
    /// Its runs began and nobody reported their end, several times: it kills the process that runs it.
    Crash,
}

impl Reason {
    /// All of them, for documentation and tests.
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

    /// The stable code.
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

    /// The reason with this code.
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

/// A message that can't be processed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub reason: Reason,
    /// For people: what and where. Holds no payload.
    pub detail: String,
}

impl Rejection {
    /// A rejection.
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
