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

use super::answer::{HandlerCall, ResponseSender, send_response};
use super::body::{Body, full_body};
use super::in_flight::{InFlightKeys, KeyTurn};
use super::key_time::check_age;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::build_replay_response;
use super::request::RequestIdentity;
use super::run::{Run, RunTakenFlag};
use super::run_resolution::{HandlerResult, RunResolution, build_unfinished_problem};
use super::settings::Settings;
use super::stored;
use oncely_core::identity::Identity;
use oncely_failpoint::step;
use oncely_lease::{
    ActiveRun, AnyStore, ClaimOutcome, LeaseRunner, Run as LeaseRun, RunEnd, RunOutcome, StoreError,
};

/// Shortest and longest pause between two claims of a key that another process holds.
const CLAIM_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long the answer waits until it is stored. Storing continues after that.
const STORE_WAIT: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct LeasedRequest {
    pub(super) settings: Arc<Settings>,
    pub(super) runner: Arc<LeaseRunner<AnyStore>>,
    pub(super) in_flight: InFlightKeys,
    pub(super) request: RequestIdentity,
    /// Fingerprint of the request in the form of a store.
    pub(super) digest: [u8; 32],
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl LeasedRequest {
    /// Runs the request. Calls of the store are awaited to their end.
    pub(super) async fn run(self, call: HandlerCall, sender: ResponseSender) {
        if self.settings.refuse_old_keys
            && let Err(problem) = check_age(self.request.key_time, Utc::now(), self.settings.retention)
        {
            return send_response(sender, problem);
        }
        match self.claim().await {
            Ok((active_run, turn)) => self.handle(call, active_run, turn, sender).await,
            Err(response) => send_response(sender, response),
        }
    }

    /// Claims the key for a run. Waits for other requests and runs with the key. An error is the response to a request that does not run.
    async fn claim(&self) -> Result<(ActiveRun<AnyStore>, KeyTurn), Response<Body>> {
        let identity = &self.request.identity;
        let until = tokio::time::Instant::now() + self.settings.wait;
        // Requests of this process wait for each other without querying the store. Without its turn a request does not claim: the previous
        // one is at work, and its lease may have expired while the store was away.
        let Some(turn) = self.in_flight.enter(identity, until).await else {
            return Err(ProblemDetails::in_flight(Duration::from_secs(1)).into());
        };
        let mut pause = CLAIM_PAUSES[0];
        loop {
            step("leased.claim.before");
            let outcome = self.runner.begin(identity, self.digest).await;
            step("leased.claim.after");
            let outcome = match outcome {
                Ok(Ok(active_run)) => return Ok((active_run, turn)),
                Ok(Err(outcome)) => outcome,
                Err(error) => return Err(self.report_claim_failure(&error).into()),
            };
            let time_left = until.saturating_duration_since(tokio::time::Instant::now());
            match outcome {
                ClaimOutcome::InFlight(_) if time_left > pause => tokio::time::sleep(pause).await,
                ClaimOutcome::InFlight(remaining) => return Err(ProblemDetails::in_flight(remaining).into()),
                ClaimOutcome::Wait(remaining) if time_left > remaining => tokio::time::sleep(remaining).await,
                ClaimOutcome::Wait(remaining) => return Err(ProblemDetails::failed_before(remaining).into()),
                ClaimOutcome::Done(response) => {
                    let stored = stored::parse_response(identity, response.as_ref());
                    return Err(build_replay_response(&self.settings, Some(&self.parts), stored));
                }
                ClaimOutcome::Conflict => return Err(ProblemDetails::key_reused().into()),
                ClaimOutcome::GivenUp { reason, .. } => return Err(ProblemDetails::given_up(reason).into()),
                ClaimOutcome::Granted(_) => return Err(ProblemDetails::unavailable().into()),
            }
            pause = (pause * 2).min(CLAIM_PAUSES[1]);
        }
    }

    /// Logs that the key could not be claimed, and returns the problem for the client: no handler ran.
    fn report_claim_failure(&self, error: &StoreError) -> ProblemDetails {
        let consumer = &self.request.identity.consumer;
        tracing::error!(%consumer, %error, "cannot claim the key of a request");
        match error {
            StoreError::Unavailable(_) => ProblemDetails::unavailable(),
            _ => {
                ProblemDetails::new(ProblemKind::Failed, "Nothing was done; ask the operator of this service")
            }
        }
    }

    /// Runs the handler under a lease, stores its answer, and sends it to the client, if the client still waits for it.
    async fn handle(
        self,
        call: HandlerCall,
        active_run: ActiveRun<AnyStore>,
        turn: KeyTurn,
        sender: ResponseSender,
    ) {
        let mut turn = Some(turn);
        let Self { settings, runner, request, parts, body, .. } = self;
        let run = active_run.run.clone();
        let taken_flag = RunTakenFlag::default();
        let mut http_request = Request::from_parts(parts, full_body(body));
        http_request.extensions_mut().insert(Run::from(run.clone()));
        http_request.extensions_mut().insert(taken_flag.clone());
        step("leased.handle.before");
        let limit = settings.handler_limit;
        let deadline = tokio::time::Instant::now() + limit;
        let mut handling = Box::pin(AssertUnwindSafe(async move { call(http_request).await }).catch_unwind());
        let result_in_time = wait_for_handler(&run, &mut handling, deadline).await;
        // Another run has the key, or an outage or a clock has ended the lease: a failure does not count.
        let is_lost = run.is_lost() && !run.is_too_long();
        let (sender, result) = match result_in_time {
            Some(result) => (Some(sender), Some(result)),
            None => {
                tracing::error!(consumer = %request.identity.consumer, ?limit, "handler exceeded its limit or lost its lease");
                send_response(
                    sender,
                    build_unfinished_problem(ProblemKind::Late).retry_after(Duration::from_secs(1)),
                );
                run.stop();
                let result =
                    wait_for_stopped_handler(&run, &mut handling, deadline, is_lost, &mut turn).await;
                (None, result)
            }
        };
        drop(handling);
        step("leased.handle.after");
        let resolution = RunResolution::new(&settings, &active_run, taken_flag.is_set(), result, is_lost);
        let is_given_back = matches!(resolution.end, RunEnd::GivenBack);
        step("leased.end.before");
        let mut ending = pin!(runner.end(active_run, resolution.end));
        let outcome = tokio::time::timeout(STORE_WAIT, &mut ending).await;
        step("leased.end.after");
        if let Some(sender) = sender {
            send_response(sender, resolution.response.into_response(&request, outcome.as_ref().ok()));
        }
        // The client has its answer; storing continues.
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(_) => ending.await,
        };
        log_end(&request.identity, run.token(), is_given_back, outcome);
    }
}

/// Waits for the handler's result; `None` if `deadline` comes, or the run loses its lease, before.
async fn wait_for_handler(
    run: &LeaseRun<AnyStore>,
    handling: &mut (impl Future<Output = HandlerResult> + Unpin),
    deadline: tokio::time::Instant,
) -> Option<HandlerResult> {
    tokio::select! {
        biased;
        result = handling => Some(result),
        // Another run has the key, or the lease has expired.
        () = run.wait_until_lost() => None,
        () = tokio::time::sleep_until(deadline) => None,
    }
}

/// Waits for the result of a handler after the stop of its run; `None` if the handler is still at work when the run is overdue. With
/// `is_lost`, a call in progress goes on until `deadline`: its outcome may be lost otherwise.
async fn wait_for_stopped_handler(
    run: &LeaseRun<AnyStore>,
    handling: &mut (impl Future<Output = HandlerResult> + Unpin),
    deadline: tokio::time::Instant,
    is_lost: bool,
    turn: &mut Option<KeyTurn>,
) -> Option<HandlerResult> {
    let result = tokio::select! {
        biased;
        result = &mut *handling => Some(result),
        () = run.wait_until_overdue() => None,
    };
    if result.is_some() || !is_lost || !run.is_calling() {
        return result;
    }
    // Other requests with the key need not wait for it.
    turn.take();
    tokio::select! {
        biased;
        result = handling => Some(result),
        () = run.wait_until_not_calling() => None,
        () = tokio::time::sleep_until(deadline) => None,
    }
}

/// Logs the end of a run that did not succeed.
fn log_end(identity: &Identity, token: i64, is_given_back: bool, outcome: Result<RunOutcome, StoreError>) {
    let consumer = &identity.consumer;
    match outcome {
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
