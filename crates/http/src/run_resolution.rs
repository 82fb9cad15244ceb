//! End of a run under a lease, and the client's response.

use std::time::Duration;

use http::{Response, StatusCode};

use super::answer::{AnswerReadError, HandlerAnswer};
use super::body::Body;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::build_message_response;
use super::request::RequestIdentity;
use super::settings::Settings;
use super::stored;
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{ActiveRun, AnyStore, RunEnd, RunOutcome, StoreError};

/// Result of a handler: an answer, an error, or a panic.
pub(super) type HandlerResult = std::thread::Result<Result<HandlerAnswer, AnswerReadError>>;

/// End of a run, to be recorded, and the client's response.
pub(super) struct RunResolution {
    pub(super) end: RunEnd,
    pub(super) response: ResolvedResponse,
}

/// Response for the client, before the outcome of recording the end is known.
pub(super) enum ResolvedResponse {
    /// This answer, once it is stored: a retry gets the same.
    Stored(HandlerAnswer),
    /// This answer in any case: a retry may get another one.
    Passed(HandlerAnswer),
    /// The problem `failed`.
    Failed,
    /// A response by the run's recorded outcome.
    ByOutcome,
}

impl RunResolution {
    /// Resolves the end of a run and the response for its client. `is_taken`: a handler has taken the run; if not, a router or an extractor
    /// may have answered. `result`: `None` if the handler was dropped, past its limit or without its lease. `is_lost`: another run has the
    /// key, or an outage or a clock has ended the lease; a failure does not count then.
    pub(super) fn new(
        settings: &Settings,
        active_run: &ActiveRun<AnyStore>,
        is_taken: bool,
        result: Option<HandlerResult>,
        is_lost: bool,
    ) -> Self {
        let mut resolution = match result {
            Some(result) => Self::from_result(settings, active_run, is_taken, result),
            None => {
                let limit = settings.handler_limit;
                Self::build_failed_run(format!("the handler exceeded its limit of {limit:?}"))
            }
        };
        if is_lost && matches!(resolution.end, RunEnd::Failed(_)) {
            resolution.end = RunEnd::GivenBack;
        }
        resolution
    }

    /// Resolves the end of a run and the response for its client from the handler's result.
    fn from_result(
        settings: &Settings,
        active_run: &ActiveRun<AnyStore>,
        is_taken: bool,
        result: HandlerResult,
    ) -> Self {
        let mut answer = match result {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Self::build_failed_run(error.to_string()),
            Err(_) => return Self::build_failed_run("the handler has panicked".to_owned()),
        };
        if let Some(error) = answer.take_failure() {
            return Self::from_failure(error);
        }
        if answer.is_stored(settings, is_taken) {
            let json = stored::to_json(&answer.to_stored(&settings.omitted));
            return Self { end: RunEnd::Done(Some(json)), response: ResolvedResponse::Stored(answer) };
        }
        // A step reported that its outcome is unknown, and the handler answered otherwise.
        if let Some(error) = active_run.run.unknown_outcome() {
            return Self::from_failure(error);
        }
        let end = match answer.status {
            // Not the request's fault: not counted.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => RunEnd::GivenBack,
            // No handler ran: a router's 404 or redirect, an extractor's 422.
            status if (status.is_client_error() || status.is_redirection()) && !is_taken => RunEnd::GivenBack,
            status => RunEnd::Failed(HandlerError::transient(format!("answered with {}", status.as_u16()))),
        };
        Self { end, response: ResolvedResponse::Passed(answer) }
    }

    /// Resolves the end of a run from the error that its handler has reported: an environment fault is not counted, and logged.
    fn from_failure(error: HandlerError) -> Self {
        let end = match error {
            HandlerError::Environment(why) => {
                tracing::warn!(
                    error = why,
                    "handler reported an environment fault; the attempt is not counted"
                );
                RunEnd::GivenBack
            }
            error => RunEnd::Failed(error),
        };
        Self { end, response: ResolvedResponse::ByOutcome }
    }

    /// Builds the resolution of a failed run, without details for the client.
    fn build_failed_run(why: String) -> Self {
        Self { end: RunEnd::Failed(HandlerError::transient(why)), response: ResolvedResponse::Failed }
    }
}

impl ResolvedResponse {
    /// Converts this into the response for the client. `outcome`: result of recording the run's end; `None` if it is not known yet.
    pub(super) fn into_response(
        self,
        request: &RequestIdentity,
        outcome: Option<&Result<RunOutcome, StoreError>>,
    ) -> Response<Body> {
        match (self, outcome) {
            (Self::Passed(answer), _) | (Self::Stored(answer), Some(Ok(RunOutcome::Done(_)))) => {
                answer.into_response()
            }
            (Self::Failed, _) => build_unfinished_problem(ProblemKind::Failed).into(),
            (Self::Stored(_) | Self::ByOutcome, None) => ProblemDetails::unavailable().into(),
            (Self::Stored(_) | Self::ByOutcome, Some(Err(_))) => {
                build_unfinished_problem(ProblemKind::Failed).into()
            }
            (Self::Stored(_) | Self::ByOutcome, Some(Ok(outcome))) => {
                build_outcome_response(request, outcome)
            }
        }
    }
}

/// Builds the response for the recorded outcome of a run, if the handler's answer is not sent: 422 for a refusal, which completes the key;
/// 409 for a key that was given up; 503 for a failed run, with the delay until the next one, and for a run that lost its lease or was
/// given back.
fn build_outcome_response(request: &RequestIdentity, outcome: &RunOutcome) -> Response<Body> {
    match outcome {
        // The handler refused the request: `RunEnd::Failed` with `HandlerError::Refused`.
        RunOutcome::Done(response) => {
            build_message_response(stored::parse_response(&request.identity, response.as_ref()))
        }
        RunOutcome::GivenUp { reason, .. } => ProblemDetails::given_up(*reason).into(),
        RunOutcome::Failed { delay, .. } => ProblemDetails::failed_before(*delay).into(),
        _ => build_unfinished_problem(ProblemKind::Late).retry_after(Duration::from_secs(1)).into(),
    }
}

/// Builds the problem for a run that has ended without a final answer.
pub(super) fn build_unfinished_problem(kind: ProblemKind) -> ProblemDetails {
    let detail = "What was done of it stays; the same request with the same key goes on from there";
    ProblemDetails::new(kind, detail)
}
