//! End of a run under a lease, and the client's answer.

use std::time::Duration;

use http::{Response, StatusCode};

use super::answer::{AnswerReadError, HandlerAnswer};
use super::body::Body;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::of_message;
use super::request::RequestIdentity;
use super::settings::Settings;
use super::stored;
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{ActiveRun, AnyStore, RunEnd, RunOutcome, StoreError};

/// Result of a handler: an answer, an error, or a panic.
pub(super) type HandlerResult = std::thread::Result<Result<HandlerAnswer, AnswerReadError>>;

/// The run's recorded end and the client's answer.
pub(super) struct RunResolution {
    pub(super) ended: RunEnd,
    pub(super) told: ResolvedAnswer,
}

/// Answer for the client.
pub(super) enum ResolvedAnswer {
    /// This answer, once it is stored: a retry gets the same.
    Stored(HandlerAnswer),
    /// This answer in any case: a retry may get another one.
    Passed(HandlerAnswer),
    /// The problem `failed`.
    Failed,
    /// An answer by the run's recorded end.
    Fate,
}

impl RunResolution {
    /// Decides a run's end. `is_taken`: a handler has taken the run; if not, a router or an extractor may have answered. `handled`: `None` if
    /// it was dropped, past its limit or without its lease. `is_lost`: another run has the key, or an outage or a clock has ended the lease; a failure does
    /// not count then.
    pub(super) fn new(
        settings: &Settings,
        running: &ActiveRun<AnyStore>,
        is_taken: bool,
        handled: Option<HandlerResult>,
        is_lost: bool,
    ) -> Self {
        let mut resolution = match handled {
            Some(handled) => Self::of_result(settings, running, is_taken, handled),
            None => {
                let limit = settings.handler_limit;
                Self::failed_run(format!("the handler exceeded its limit of {limit:?}"))
            }
        };
        if is_lost && matches!(resolution.ended, RunEnd::Failed(_)) {
            resolution.ended = RunEnd::GivenBack;
        }
        resolution
    }

    fn of_result(
        settings: &Settings,
        running: &ActiveRun<AnyStore>,
        is_taken: bool,
        handled: HandlerResult,
    ) -> Self {
        let mut answer = match handled {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Self::failed_run(error.to_string()),
            Err(_) => return Self::failed_run("the handler has panicked".to_owned()),
        };
        if let Some(error) = answer.take_failure() {
            return Self::of_failure(error);
        }
        if answer.is_stored(settings, is_taken) {
            let response = stored::to_json(&answer.kept(&settings.omitted));
            return Self { ended: RunEnd::Done(Some(response)), told: ResolvedAnswer::Stored(answer) };
        }
        // A step reported that its outcome is unknown, and the handler answered otherwise.
        if let Some(error) = running.run.unknown() {
            return Self::of_failure(error);
        }
        let ended = match answer.status {
            // Not the request's fault: not counted.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => RunEnd::GivenBack,
            // No handler ran: a router's 404 or redirect, an extractor's 422.
            status if (status.is_client_error() || status.is_redirection()) && !is_taken => RunEnd::GivenBack,
            status => RunEnd::Failed(HandlerError::transient(format!("answered with {}", status.as_u16()))),
        };
        Self { ended, told: ResolvedAnswer::Passed(answer) }
    }

    fn of_failure(error: HandlerError) -> Self {
        let ended = match error {
            HandlerError::Environment(why) => {
                tracing::warn!(
                    error = why,
                    "handler reported an environment fault; the attempt is not counted"
                );
                RunEnd::GivenBack
            }
            error => RunEnd::Failed(error),
        };
        Self { ended, told: ResolvedAnswer::Fate }
    }

    /// Returns a failed run, without details for the client.
    fn failed_run(why: String) -> Self {
        Self { ended: RunEnd::Failed(HandlerError::transient(why)), told: ResolvedAnswer::Failed }
    }
}

impl ResolvedAnswer {
    /// Returns the answer. `ended`: the recorded end; `None` if recording has not finished yet.
    pub(super) fn by(
        self,
        asked: &RequestIdentity,
        ended: Option<&Result<RunOutcome, StoreError>>,
    ) -> Response<Body> {
        match (self, ended) {
            (Self::Passed(answer), _) | (Self::Stored(answer), Some(Ok(RunOutcome::Done(_)))) => {
                answer.into_response()
            }
            (Self::Failed, _) => unknown(ProblemKind::Failed).into(),
            (Self::Stored(_) | Self::Fate, None) => ProblemDetails::unavailable().into(),
            (Self::Stored(_) | Self::Fate, Some(Err(_))) => unknown(ProblemKind::Failed).into(),
            (Self::Stored(_) | Self::Fate, Some(Ok(ran))) => fate(asked, ran),
        }
    }
}

/// Returns the answer for a run's recorded end.
fn fate(asked: &RequestIdentity, ran: &RunOutcome) -> Response<Body> {
    match ran {
        // The handler refused: the answer is no.
        RunOutcome::Done(response) => of_message(stored::of_response(&asked.identity, response.as_ref())),
        RunOutcome::GivenUp { reason, .. } => ProblemDetails::given_up(*reason).into(),
        RunOutcome::Failed { delay, .. } => ProblemDetails::failed_before(*delay).into(),
        _ => unknown(ProblemKind::Late).retry_after(Duration::from_secs(1)).into(),
    }
}

/// Reports a run that has ended without a final answer.
pub(super) fn unknown(kind: ProblemKind) -> ProblemDetails {
    let detail = "What was done of it stays; the same request with the same key goes on from there";
    ProblemDetails::new(kind, detail)
}
