//! What the layer itself answers: RFC 9457.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use super::body::{Body, whole};
use crate::reason::Reason;

/// Why the handler's answer is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    KeyMissing,
    KeyInvalid,
    BodyIncomplete,
    BodyLate,
    Busy,
    TooLarge,
    KeyReused,
    InFlight,
    GivenUp,
    OutcomeUnknown,
    Failed,
    Late,
    Unavailable,
    KeyTooOld,
    /// By whoever decides about replays, with this status.
    ReplayRefused(StatusCode),
}

impl Kind {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::KeyMissing => {
                (StatusCode::BAD_REQUEST, "key-missing", "This request needs an Idempotency-Key")
            }
            Self::KeyInvalid => (StatusCode::BAD_REQUEST, "key-invalid", "The Idempotency-Key is not valid"),
            Self::BodyIncomplete => {
                (StatusCode::BAD_REQUEST, "body-incomplete", "The request did not arrive whole")
            }
            Self::BodyLate => {
                (StatusCode::REQUEST_TIMEOUT, "body-incomplete", "The request did not arrive in time")
            }
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy", "Too many requests are at work"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large"),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "This Idempotency-Key came before with another request",
            ),
            Self::InFlight => {
                (StatusCode::CONFLICT, "in-flight", "The first request with this key is at work")
            }
            Self::GivenUp => (StatusCode::CONFLICT, "given-up", "What this key stands for was given up"),
            Self::OutcomeUnknown => (
                StatusCode::CONFLICT,
                "outcome-unknown",
                "Whether this key has taken effect is not known, and it is not tried again",
            ),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "failed", "The request has failed"),
            Self::Late => (StatusCode::SERVICE_UNAVAILABLE, "failed", "The request has failed"),
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The store of keys does not answer")
            }
            Self::KeyTooOld => (
                StatusCode::PRECONDITION_FAILED,
                "key-too-old",
                "This Idempotency-Key is older than keys are remembered",
            ),
            Self::ReplayRefused(status) => {
                (status, "replay-refused", "The answer that this key has is not for this request")
            }
        }
    }
}

/// In the extensions of an answer that is no handler's: by what name it is counted. Of a problem: the last part of its type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerName(pub(crate) &'static str);

/// Names of all problems.
#[cfg(feature = "gateway")]
pub(crate) const PROBLEMS: [&str; 13] = [
    "key-missing",
    "key-invalid",
    "body-incomplete",
    "busy",
    "too-large",
    "key-reused",
    "in-flight",
    "given-up",
    "outcome-unknown",
    "failed",
    "unavailable",
    "key-too-old",
    "replay-refused",
];

/// A problem on its way to the client.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    /// For people: what to do about it.
    detail: String,
    retry_after: Option<Duration>,
    described_by: Option<HeaderValue>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), retry_after: None, described_by: None }
    }

    /// A retry before that is of no use.
    pub(super) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Where the rules of keys stand.
    pub(super) fn described_by(mut self, link: Option<HeaderValue>) -> Self {
        self.described_by = link;
        self
    }

    /// The run of this request may be tried again soon.
    pub(super) fn unavailable() -> Self {
        Self::new(Kind::Unavailable, "Send the same request with the same key again")
            .retry_after(Duration::from_secs(1))
    }

    /// Another run has the key.
    pub(super) fn in_flight(rest: Duration) -> Self {
        Self::new(Kind::InFlight, "Send the same request with the same key again, later").retry_after(rest)
    }

    /// A run has failed, and the next one is not to begin before.
    pub(super) fn failed_before(rest: Duration) -> Self {
        Self::new(Kind::Late, "Send the same request with the same key again, later").retry_after(rest)
    }

    /// Nothing of this request has run.
    pub(super) fn busy() -> Self {
        Self::new(Kind::Busy, "Send the same request with the same key again, later")
            .retry_after(Duration::from_secs(1))
    }

    /// Nobody knows what it would have been answered.
    pub(super) fn outcome_unknown() -> Self {
        Self::new(
            Kind::OutcomeUnknown,
            "Ask whoever runs this service; a retry is answered only if it becomes known what was done",
        )
    }

    /// The key is another request's.
    pub(super) fn key_reused() -> Self {
        let detail = "Use a new key for another request; the same request must be sent again byte for byte: keep the body of the first try, since a \
                      multipart boundary or the time in a gzip header is another one when it is made again";
        Self::new(Kind::KeyReused, detail)
    }

    /// No retry changes anything.
    pub(super) fn given_up(reason: Reason) -> Self {
        match reason {
            Reason::OutcomeUnknown => Self::outcome_unknown(),
            reason => Self::new(
                Kind::GivenUp,
                format!("It was given up as {}; ask whoever runs this service", reason.as_str()),
            ),
        }
    }
}

impl From<Problem> for Response<Body> {
    fn from(problem: Problem) -> Self {
        let (status, name, title) = problem.kind.parts();
        let text = json!({
            "type": format!("urn:oncely:problem:{name}"), "title": title, "status": status.as_u16(),
            "detail": problem.detail,
        });
        let mut response = Self::new(whole(Bytes::from(text.to_string())));
        *response.status_mut() = status;
        response.extensions_mut().insert(AnswerName(name));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = problem.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(link) = problem.described_by {
            headers.insert(LINK, link);
        }
        response
    }
}

#[cfg(all(test, feature = "gateway"))]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_name_that_is_counted() {
        use Kind::*;
        let mut next = Some(KeyMissing);
        let mut names = Vec::new();
        while let Some(kind) = next {
            names.push(kind.parts().1);
            // One that is new has no place here until somebody gives it one.
            next = match kind {
                KeyMissing => Some(KeyInvalid),
                KeyInvalid => Some(BodyIncomplete),
                BodyIncomplete => Some(BodyLate),
                BodyLate => Some(Busy),
                Busy => Some(TooLarge),
                TooLarge => Some(KeyReused),
                KeyReused => Some(InFlight),
                InFlight => Some(GivenUp),
                GivenUp => Some(OutcomeUnknown),
                OutcomeUnknown => Some(Failed),
                Failed => Some(Late),
                Late => Some(Unavailable),
                Unavailable => Some(KeyTooOld),
                KeyTooOld => Some(ReplayRefused(StatusCode::CONFLICT)),
                ReplayRefused(_) => None,
            };
        }
        let names: std::collections::BTreeSet<&str> = names.into_iter().collect();
        assert_eq!(names, PROBLEMS.into());
    }
}
