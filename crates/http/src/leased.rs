//! Runs one request under a lease, from its claim to its answer, in its own task, which no client can interrupt.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use futures::FutureExt as _;
use http::request::Parts;
use http::{Request, Response};

use super::answer::{AnswerSender, HandlerCall, send};
use super::body::{Body, whole};
use super::in_flight::{InFlightKeys, KeyTurn};
use super::key_time::check_age;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::replay;
use super::request::RequestIdentity;
use super::run::{Run, RunTakenFlag};
use super::run_resolution::{HandlerResult, RunResolution, unknown};
use super::settings::Settings;
use super::stored;
use oncely_core::identity::Identity;
use oncely_failpoint::step;
use oncely_lease::{
    ActiveRun, AnyStore, ClaimOutcome, LeaseRunner, Run as LeaseRun, RunEnd, RunOutcome, StoreError,
};

/// Shortest and longest pause between two claims of a key that another process holds.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long the answer waits until it is stored. Storing continues after that.
const LOOK: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct LeasedRequest {
    pub(super) settings: Arc<Settings>,
    pub(super) runner: Arc<LeaseRunner<AnyStore>>,
    pub(super) in_flight: InFlightKeys,
    pub(super) asked: RequestIdentity,
    /// Fingerprint of the request in the form of a store.
    pub(super) digest: [u8; 32],
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl LeasedRequest {
    /// Runs the request. Calls of the store are awaited to their end.
    pub(super) async fn run(self, call: HandlerCall, reply: AnswerSender) {
        if self.settings.refuse_old_keys
            && let Err(problem) = check_age(self.asked.made, Utc::now(), self.settings.retention)
        {
            return send(reply, problem);
        }
        match self.claim().await {
            Ok((running, turn)) => self.handle(call, running, turn, reply).await,
            Err(answer) => send(reply, answer),
        }
    }

    /// Claims the key, or returns the answer.
    async fn claim(&self) -> Result<(ActiveRun<AnyStore>, KeyTurn), Response<Body>> {
        let identity = &self.asked.identity;
        let until = tokio::time::Instant::now() + self.settings.wait;
        // Requests of this process wait for each other without querying the store. Without its turn a request does not claim: the previous
        // one is at work, and its lease may have expired while the store was away.
        let Some(turn) = self.in_flight.enter(identity, until).await else {
            return Err(ProblemDetails::in_flight(Duration::from_secs(1)).into());
        };
        let mut pause = LOOK_AGAIN[0];
        loop {
            step("leased.claim.before");
            let claimed = self.runner.begin(identity, self.digest).await;
            step("leased.claim.after");
            let claimed = match claimed {
                Ok(Ok(running)) => return Ok((running, turn)),
                Ok(Err(claimed)) => claimed,
                Err(error) => return Err(self.not_claimed(&error).into()),
            };
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            match claimed {
                ClaimOutcome::InFlight(_) if left > pause => tokio::time::sleep(pause).await,
                ClaimOutcome::InFlight(rest) => return Err(ProblemDetails::in_flight(rest).into()),
                ClaimOutcome::Wait(rest) if left > rest => tokio::time::sleep(rest).await,
                ClaimOutcome::Wait(rest) => return Err(ProblemDetails::failed_before(rest).into()),
                ClaimOutcome::Done(response) => {
                    let stored = stored::of_response(identity, response.as_ref());
                    return Err(replay(&self.settings, Some(&self.parts), stored));
                }
                ClaimOutcome::Conflict => return Err(ProblemDetails::key_reused().into()),
                ClaimOutcome::GivenUp { reason, .. } => return Err(ProblemDetails::given_up(reason).into()),
                ClaimOutcome::Granted(_) => return Err(ProblemDetails::unavailable().into()),
            }
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        }
    }

    /// Reports that the key could not be claimed; no handler ran.
    fn not_claimed(&self, error: &StoreError) -> ProblemDetails {
        let consumer = &self.asked.identity.consumer;
        tracing::error!(%consumer, %error, "cannot claim the key of a request");
        match error {
            StoreError::Unavailable(_) => ProblemDetails::unavailable(),
            _ => {
                ProblemDetails::new(ProblemKind::Failed, "Nothing was done; ask the operator of this service")
            }
        }
    }

    async fn handle(
        self,
        call: HandlerCall,
        running: ActiveRun<AnyStore>,
        turn: KeyTurn,
        reply: AnswerSender,
    ) {
        let mut turn = Some(turn);
        let Self { settings, runner, asked, parts, body, .. } = self;
        let run = running.run.clone();
        let taken = RunTakenFlag::default();
        let mut request = Request::from_parts(parts, whole(body));
        request.extensions_mut().insert(Run::from(run.clone()));
        request.extensions_mut().insert(taken.clone());
        step("leased.handle.before");
        let limit = settings.handler_limit;
        let end = tokio::time::Instant::now() + limit;
        let mut handling = Box::pin(AssertUnwindSafe(async move { call(request).await }).catch_unwind());
        let in_time = handle_in_time(&run, &mut handling, end).await;
        // Then the failure does not count: another run has the key, or an outage or a clock has ended the lease.
        let is_lost = run.is_lost() && !run.is_too_long();
        let (reply, handled) = match in_time {
            Some(handled) => (Some(reply), Some(handled)),
            None => {
                tracing::error!(consumer = %asked.identity.consumer, ?limit, "handler exceeded its limit or lost its lease");
                send(reply, unknown(ProblemKind::Late).retry_after(Duration::from_secs(1)));
                run.stop();
                let handled = handle_after_stop(&run, &mut handling, end, is_lost, &mut turn).await;
                (None, handled)
            }
        };
        drop(handling);
        step("leased.handle.after");
        let resolution = RunResolution::new(&settings, &running, taken.is(), handled, is_lost);
        let is_given_back = matches!(resolution.ended, RunEnd::GivenBack);
        step("leased.end.before");
        let mut ending = pin!(runner.end(running, resolution.ended));
        let ended = tokio::time::timeout(LOOK, &mut ending).await;
        step("leased.end.after");
        if let Some(reply) = reply {
            send(reply, resolution.told.by(&asked, ended.as_ref().ok()));
        }
        // The client has its answer; storing continues.
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) => ending.await,
        };
        log_end(&asked.identity, run.token(), is_given_back, ended);
    }
}

/// Returns the handler's result, unless its time ends or it loses the key before.
async fn handle_in_time(
    run: &LeaseRun<AnyStore>,
    handling: &mut (impl Future<Output = HandlerResult> + Unpin),
    end: tokio::time::Instant,
) -> Option<HandlerResult> {
    tokio::select! {
        biased;
        handled = handling => Some(handled),
        // Another run has the key, or the lease has expired.
        () = run.lost() => None,
        () = tokio::time::sleep_until(end) => None,
    }
}

/// Returns the result of a handler after the stop of its run, unless the run is dropped before. With `is_lost`, a call in progress goes on
/// until `end`: its outcome may be lost otherwise.
async fn handle_after_stop(
    run: &LeaseRun<AnyStore>,
    handling: &mut (impl Future<Output = HandlerResult> + Unpin),
    end: tokio::time::Instant,
    is_lost: bool,
    turn: &mut Option<KeyTurn>,
) -> Option<HandlerResult> {
    let handled = tokio::select! {
        biased;
        handled = &mut *handling => Some(handled),
        () = run.dropped() => None,
    };
    if handled.is_some() || !is_lost || !run.is_calling() {
        return handled;
    }
    // Other requests with the key need not wait for it.
    turn.take();
    tokio::select! {
        biased;
        handled = handling => Some(handled),
        () = run.called() => None,
        () = tokio::time::sleep_until(end) => None,
    }
}

/// Logs the end of a run that did not succeed.
fn log_end(identity: &Identity, token: i64, is_given_back: bool, ended: Result<RunOutcome, StoreError>) {
    let consumer = &identity.consumer;
    match ended {
        Ok(RunOutcome::Failed { error, .. }) => {
            tracing::error!(%consumer, token, error, "request failed")
        }
        Ok(RunOutcome::GivenUp { reason, detail }) => {
            tracing::error!(%consumer, token, reason = reason.as_str(), detail, "request given up");
        }
        Ok(RunOutcome::Lost) if !is_given_back => {
            tracing::warn!(%consumer, token, "request lost its lease; only its steps are recorded");
        }
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%consumer, token, %error, "cannot record the end of a request");
        }
    }
}
