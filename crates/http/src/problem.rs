//! Answers of the layer itself, as RFC 9457 problems.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use super::body::{Body, full_body};
use oncely_core::reason::Reason;

/// Kind of a problem, which the client gets in place of the handler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProblemKind {
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
    /// [`IdempotencyLayerBuilder::on_replay`](super::IdempotencyLayerBuilder::on_replay) refused with this status.
    ReplayRefused(StatusCode),
}

impl ProblemKind {
    /// Returns status, name and title of the problem.
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

/// Extension of an answer that no handler gave: its name in metrics. For a problem, the last part of its type.
#[derive(Clone, Copy, Debug)]
pub struct AnswerName(pub &'static str);

/// Names of all problems.
pub const PROBLEMS: [&str; 13] = [
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

/// A problem for the client.
#[derive(Clone, Debug)]
pub(super) struct ProblemDetails {
    pub(super) kind: ProblemKind,
    /// Instruction for the client's operator.
    detail: String,
    retry_after: Option<Duration>,
    described_by: Option<HeaderValue>,
}

impl ProblemDetails {
    pub(super) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), retry_after: None, described_by: None }
    }

    /// Sets the shortest useful delay of a retry.
    pub(super) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Sets the link to the documentation of keys.
    pub(super) fn described_by(mut self, link: Option<HeaderValue>) -> Self {
        self.described_by = link;
        self
    }

    /// Creates the problem of a store that does not answer: the request may be retried soon.
    pub(super) fn unavailable() -> Self {
        Self::new(ProblemKind::Unavailable, "Send the same request with the same key again")
            .retry_after(Duration::from_secs(1))
    }

    /// Creates the problem of a key that another run holds for at most the time `remaining`.
    pub(super) fn in_flight(remaining: Duration) -> Self {
        Self::new(ProblemKind::InFlight, "Send the same request with the same key again, later")
            .retry_after(remaining)
    }

    /// Creates the problem of a run that has failed: the next run must not begin before `delay` is over.
    pub(super) fn failed_before(delay: Duration) -> Self {
        Self::new(ProblemKind::Late, "Send the same request with the same key again, later")
            .retry_after(delay)
    }

    /// Creates the problem of a reached limit: no handler of this request ran.
    pub(super) fn busy() -> Self {
        Self::new(ProblemKind::Busy, "Send the same request with the same key again, later")
            .retry_after(Duration::from_secs(1))
    }

    /// Creates the problem of an unknown outcome.
    pub(super) fn outcome_unknown() -> Self {
        Self::new(
            ProblemKind::OutcomeUnknown,
            "Ask the operator of this service; a retry is answered only if it becomes known what was done",
        )
    }

    /// Creates the problem of a key that belongs to another request.
    pub(super) fn key_reused() -> Self {
        let detail = "Use a new key for another request; the same request must be sent again byte for byte: keep the body of the first try, since a \
                      multipart boundary or the time in a gzip header is another one when it is made again";
        Self::new(ProblemKind::KeyReused, detail)
    }

    /// Creates the problem of a key that was given up: a retry changes nothing.
    pub(super) fn given_up(reason: Reason) -> Self {
        match reason {
            Reason::OutcomeUnknown => Self::outcome_unknown(),
            reason => Self::new(
                ProblemKind::GivenUp,
                format!("It was given up as {}; ask the operator of this service", reason.as_str()),
            ),
        }
    }
}

impl From<ProblemDetails> for Response<Body> {
    fn from(problem: ProblemDetails) -> Self {
        let (status, name, title) = problem.kind.parts();
        let text = json!({
            "type": format!("urn:oncely:problem:{name}"), "title": title, "status": status.as_u16(),
            "detail": problem.detail,
        });
        let mut response = Self::new(full_body(Bytes::from(text.to_string())));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_name_that_is_counted() {
        use ProblemKind::*;
        let mut next = Some(KeyMissing);
        let mut names = Vec::new();
        while let Some(kind) = next {
            names.push(kind.parts().1);
            // A new kind does not compile until it is listed here.
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
