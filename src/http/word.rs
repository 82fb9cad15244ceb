//! How a run under a lease ends, and what its client is told.

use std::time::Duration;

use http::{Response, StatusCode};

use super::answer::{Answer, NoAnswer};
use super::body::Body;
use super::problem::{Kind, Problem};
use super::replay::of_message;
use super::request::Asked;
use super::settings::Settings;
use super::stored;
use crate::handler::HandlerError;
use crate::lease::{AnyStore, Ended, Ran, Running, StoreError};

/// How a handler has ended: by an answer, without one, or by a panic.
pub(super) type Handled = std::thread::Result<Result<Answer, NoAnswer>>;

/// The last word about a run.
pub(super) struct Word {
    pub(super) ended: Ended,
    pub(super) told: Told,
}

/// What the client is told.
pub(super) enum Told {
    /// This, once it is stored: a retry gets the same.
    Stored(Answer),
    /// This in any case: a retry may get another one.
    Passed(Answer),
    /// That it has failed.
    Failed,
    /// What became of the run.
    Fate,
}

impl Word {
    /// `is_taken`: a handler has taken the run; else a router or an extractor may have answered in its place.
    pub(super) fn of(
        settings: &Settings,
        running: &Running<AnyStore>,
        is_taken: bool,
        handled: Handled,
    ) -> Self {
        let mut answer = match handled {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Self::failed(error.to_string()),
            Err(_) => return Self::failed("the handler has panicked".to_owned()),
        };
        if let Some(error) = answer.failure() {
            return Self::of_failure(error);
        }
        if settings.is_stored(answer.status, is_taken) {
            let response = stored::to_json(&answer.kept(&settings.omitted));
            return Self { ended: Ended::Done(Some(response)), told: Told::Stored(answer) };
        }
        // What a step said, and the handler said in other words.
        if let Some(error) = running.run.unknown() {
            return Self::of_failure(error);
        }
        let ended = match answer.status {
            // It is not this request's fault: nothing is counted.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Ended::GivenBack,
            // Nothing has run: a router's 404 or redirect, an extractor's 422.
            status if (status.is_client_error() || status.is_redirection()) && !is_taken => Ended::GivenBack,
            status => Ended::Failed(HandlerError::transient(format!("answered with {}", status.as_u16()))),
        };
        Self { ended, told: Told::Passed(answer) }
    }

    fn of_failure(error: HandlerError) -> Self {
        let ended = match error {
            HandlerError::Environment(why) => {
                tracing::warn!(
                    error = why,
                    "a request is given back: its handler says that it is not its fault"
                );
                Ended::GivenBack
            }
            error => Ended::Failed(error),
        };
        Self { ended, told: Told::Fate }
    }

    /// A run that has failed, whose client is told no more.
    pub(super) fn failed(why: String) -> Self {
        Self { ended: Ended::Failed(HandlerError::transient(why)), told: Told::Failed }
    }
}

impl Told {
    /// The answer. `ended`: what was recorded; none where nobody knows yet whether it was.
    pub(super) fn by(self, asked: &Asked, ended: Option<&Result<Ran, StoreError>>) -> Response<Body> {
        match (self, ended) {
            (Self::Passed(answer), _) | (Self::Stored(answer), Some(Ok(Ran::Done(_)))) => {
                answer.into_response()
            }
            (Self::Failed, _) => unknown(Kind::Failed).into(),
            (Self::Stored(_) | Self::Fate, None) => Problem::unavailable().into(),
            (Self::Stored(_) | Self::Fate, Some(Err(_))) => unknown(Kind::Failed).into(),
            (Self::Stored(_) | Self::Fate, Some(Ok(ran))) => fate(asked, ran),
        }
    }
}

/// What is told of a run by what became of it.
fn fate(asked: &Asked, ran: &Ran) -> Response<Body> {
    match ran {
        // The answer is no.
        Ran::Done(response) => of_message(stored::of_response(&asked.identity, response.as_ref())),
        Ran::GivenUp { reason, .. } => Problem::given_up(*reason).into(),
        Ran::Failed { delay, .. } => Problem::failed_before(*delay).into(),
        _ => unknown(Kind::Late).retry_after(Duration::from_secs(1)).into(),
    }
}

/// A run that has ended somewhere.
pub(super) fn unknown(kind: Kind) -> Problem {
    let detail = "What was done of it stays; the same request with the same key goes on from there";
    Problem::new(kind, detail)
}
