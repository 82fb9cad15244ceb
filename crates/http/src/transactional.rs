//! Runs one request in a transaction, from its claim to its answer, in its own task, which no client can interrupt.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use http::request::Parts;
use http::{Request, Response};
use sqlx::{PgConnection, Postgres, Transaction};

use super::answer::{HandlerAnswer, HandlerCall, ResponseSender, send_response};
use super::body::{Body, full_body};
use super::claim::{RequestClaimOutcome, claim, claim_in};
use super::in_flight::InFlightKeys;
use super::key_time::check_age;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::build_replay_response;
use super::request::RequestIdentity;
use super::settings::Settings;
use super::store::Store;
use super::tx::TransactionSlot;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, AnswerTrace};

/// Shortest and longest pause between two claims of a key that another process holds.
const CLAIM_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long a COMMIT may take to answer before its key is queried.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the key is queried after the answer to COMMIT was lost.
const COMMIT_QUERY_TIME: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct TransactionalRequest {
    pub(super) settings: Arc<Settings>,
    pub(super) store: Store,
    pub(super) in_flight: InFlightKeys,
    pub(super) request: RequestIdentity,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) call: HandlerCall,
}

impl TransactionalRequest {
    /// Runs the request. Database futures are awaited to their end.
    pub(super) async fn run(self, sender: ResponseSender) {
        let until = tokio::time::Instant::now() + self.settings.wait;
        let Some(_turn) = self.in_flight.enter(&self.request.identity, until).await else {
            return send_response(sender, ProblemDetails::in_flight(Duration::from_secs(1)));
        };
        let mut pause = CLAIM_PAUSES[0];
        let (transaction, at) = loop {
            let claiming = async {
                let consumer = &self.request.identity.consumer;
                if !self.store.prepare(consumer, until, || self.settings.registration(consumer)).await? {
                    return Ok(RequestClaimOutcome::Locked);
                }
                if self.settings.refuse_old_keys
                    && let Err(problem) =
                        check_age(self.request.key_time, self.store.now(), self.settings.retention)
                {
                    return Ok(RequestClaimOutcome::Refused(problem));
                }
                claim(&self.store, &self.request).await
            };
            match claiming.await {
                Ok(RequestClaimOutcome::Run(transaction, at)) => break (transaction, at),
                Ok(RequestClaimOutcome::Done(answer)) => {
                    return send_response(
                        sender,
                        build_replay_response(&self.settings, Some(&self.parts), answer),
                    );
                }
                Ok(RequestClaimOutcome::Refused(problem)) => return send_response(sender, problem),
                Ok(RequestClaimOutcome::Locked) if tokio::time::Instant::now() + pause >= until => {
                    return send_response(
                        sender,
                        match self.store.is_registered(&self.request.identity.consumer) {
                            true => ProblemDetails::in_flight(Duration::from_secs(1)),
                            false => ProblemDetails::unavailable(),
                        },
                    );
                }
                // Another process holds it. No connection is held meanwhile.
                Ok(RequestClaimOutcome::Locked) => tokio::time::sleep(pause).await,
                Err(error) => return send_response(sender, self.report_claim_failure(error)),
            }
            pause = (pause * 2).min(CLAIM_PAUSES[1]);
        };
        self.handle(transaction, at, sender).await;
    }

    /// Logs that the key could not be claimed, and returns the problem for the client: no handler ran.
    fn report_claim_failure(&self, error: sqlx::Error) -> ProblemDetails {
        let error = pg::describe(&error);
        tracing::error!(consumer = %self.request.identity.consumer, error, "cannot claim the key of a request");
        ProblemDetails::unavailable()
    }

    /// Runs the handler in the transaction that claimed the key, completes the key and commits.
    async fn handle(
        self,
        transaction: Transaction<'static, Postgres>,
        at: DateTime<Utc>,
        sender: ResponseSender,
    ) {
        let Self { settings, store, request, parts, body, call, .. } = self;
        // For `on_replay`, if the answer to COMMIT is lost.
        let replay_parts = settings.on_replay.is_some().then(|| parts.clone());
        let mut http_request = Request::from_parts(parts, full_body(body));
        let began = Instant::now();
        let slot = TransactionSlot::new(transaction);
        http_request.extensions_mut().insert(slot.clone());
        step("http.handle.before");
        let limit = settings.handler_limit;
        let mut handling = Box::pin(AssertUnwindSafe(async move { call(http_request).await }).catch_unwind());
        let result = tokio::select! {
            biased;
            result = &mut handling => result,
            () = tokio::time::sleep(limit) => {
                let consumer = &request.identity.consumer;
                tracing::error!(%consumer, ?limit, "handler exceeded its limit; rolling back its transaction");
                let detail = "Send the same request with the same key again";
                send_response(sender, ProblemDetails::new(ProblemKind::Late, detail).retry_after(Duration::from_secs(1)));
                // Its statements are not cancelled: the handler may end by itself, and is rolled back.
                let _ = tokio::time::timeout(limit, handling).await;
                if let Some(transaction) = slot.take() {
                    roll_back(&store, &request, transaction).await;
                }
                return;
            }
        };
        step("http.handle.after");
        drop(handling);
        let Some(transaction) = slot.take() else {
            // The holder of the transaction rolls it back.
            let text = "handler kept its transaction beyond its answer; nothing is committed";
            tracing::error!(consumer = %request.identity.consumer, "{text}");
            return send_response(sender, build_not_committed_problem());
        };
        match result {
            Ok(Ok(answer)) if answer.is_stored(&settings, slot.is_used()) => {
                let (settings, store, request) = (&*settings, &store, &request);
                let commit =
                    AnswerCommit { settings, store, request, replay_parts: replay_parts.as_ref(), at, began };
                let response = commit.store_and_commit(transaction, answer).await;
                send_response(sender, response);
            }
            // An answer that may change on a retry.
            Ok(Ok(answer)) => {
                let state = roll_back(&store, &request, transaction).await;
                send_response(
                    sender,
                    if state.is_ended() { build_misuse_problem().into() } else { answer.into_response() },
                );
            }
            Ok(Err(error)) => {
                tracing::error!(consumer = %request.identity.consumer, error = %error, "request failed");
                let state = roll_back(&store, &request, transaction).await;
                send_response(
                    sender,
                    if state.is_whole() { build_not_committed_problem() } else { build_misuse_problem() },
                );
            }
            Err(_) => {
                tracing::error!(consumer = %request.identity.consumer, "handler panicked");
                let state = roll_back(&store, &request, transaction).await;
                send_response(
                    sender,
                    if state.is_whole() { build_not_committed_problem() } else { build_misuse_problem() },
                );
            }
        }
    }
}

/// Commit of a request with an answer that is stored.
struct AnswerCommit<'a> {
    settings: &'a Settings,
    store: &'a Store,
    request: &'a RequestIdentity,
    /// The request's parts, for `on_replay`.
    replay_parts: Option<&'a Parts>,
    at: DateTime<Utc>,
    began: Instant,
}

impl AnswerCommit<'_> {
    /// Stores the answer and commits; returns the response for the client.
    async fn store_and_commit(
        mut self,
        mut transaction: Transaction<'static, Postgres>,
        answer: HandlerAnswer,
    ) -> Response<Body> {
        let (settings, request) = (self.settings, self.request);
        let consumer = &request.identity.consumer;
        let is_refused = answer.status.is_client_error();
        if is_refused {
            (transaction, self.at) = match self.claim_anew(transaction).await {
                Ok(claim) => claim,
                Err(response) => return response,
            };
        }
        step("http.leave.before");
        let state = leave_transaction(&mut transaction).await;
        step("http.leave.after");
        match state {
            TransactionState::Whole => {}
            TransactionState::Aborted | TransactionState::Lost(_) => {
                tracing::error!(%consumer, key = %request.identity.key, "handler answered in an aborted transaction");
                try_rollback(transaction).await;
                return build_misuse_problem().into();
            }
            TransactionState::Ended(error) => {
                give_up_key(self.store, request, transaction, &error).await;
                return build_misuse_problem().into();
            }
        }
        let stored_answer = answer.to_stored(&settings.omitted);
        let trace = AnswerTrace {
            is_response: settings.consumer.as_ref().is_some_and(|one| one.is_shared())
                && answer.is_response(),
            is_refused,
            duration: self.began.elapsed(),
            worker: &settings.worker,
            trace_id: request.trace_id.as_deref(),
        };
        step("http.store.before");
        let now = self.store.now();
        let result =
            pg::store_http_answer(&mut transaction, &request.identity, self.at, &stored_answer, trace, now)
                .await;
        step("http.store.after");
        match result {
            Ok(true) => {}
            Ok(false) => {
                tracing::error!(%consumer, "the key of a request is missing from its transaction");
                try_rollback(transaction).await;
                return build_not_committed_problem().into();
            }
            Err(error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "cannot store an answer");
                try_rollback(transaction).await;
                return build_not_committed_problem().into();
            }
        }
        self.commit(transaction, answer).await
    }

    /// Rolls back the handler's writes and its claim, and claims the key in a new transaction, which stores the refusal. Another process's
    /// answer counts if that process has claimed the key by then.
    async fn claim_anew(
        &self,
        mut transaction: Transaction<'static, Postgres>,
    ) -> Result<(Transaction<'static, Postgres>, DateTime<Utc>), Response<Body>> {
        let request = self.request;
        let outcome = match leave_transaction(&mut transaction).await {
            TransactionState::Whole | TransactionState::Aborted => {
                match pg::begin_request_anew(&mut transaction).await {
                    Ok(()) => claim_in(transaction, self.store, request).await,
                    Err(error) => Err(error),
                }
            }
            TransactionState::Lost(error) => Err(error),
            TransactionState::Ended(error) => {
                give_up_key(self.store, request, transaction, &error).await;
                return Err(build_misuse_problem().into());
            }
        };
        Err(match outcome {
            Ok(RequestClaimOutcome::Run(transaction, at)) => return Ok((transaction, at)),
            Ok(RequestClaimOutcome::Done(stored)) => {
                build_replay_response(self.settings, self.replay_parts, stored)
            }
            Ok(RequestClaimOutcome::Refused(problem)) => problem.into(),
            Ok(RequestClaimOutcome::Locked) => ProblemDetails::in_flight(Duration::from_secs(1)).into(),
            Err(error) => {
                let consumer = &request.identity.consumer;
                tracing::error!(%consumer, error = pg::describe(&error), "cannot store a refusal");
                ProblemDetails::unavailable().into()
            }
        })
    }

    /// Commits; returns the response for the client.
    async fn commit(
        &self,
        transaction: Transaction<'static, Postgres>,
        answer: HandlerAnswer,
    ) -> Response<Body> {
        let consumer = &self.request.identity.consumer;
        step("http.commit.before");
        // Awaited to its end, however long that takes.
        let mut committing = tokio::spawn(async move { transaction.commit().await });
        let result = tokio::time::timeout(COMMIT_TIMEOUT, &mut committing).await;
        step("http.commit.after");
        match result {
            Ok(Ok(Ok(()))) => answer.into_response(),
            // A deferred constraint of the handler's writes has failed.
            Ok(Ok(Err(error))) if !pg::is_outage(&error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "cannot commit a request");
                build_not_committed_problem().into()
            }
            _ => {
                tracing::warn!(%consumer, "reply to COMMIT lost; reading the key");
                self.look_up_commit(answer).await
            }
        }
    }

    /// Queries the key until it shows whether the commit happened, for up to [`COMMIT_QUERY_TIME`]; returns the response for the client.
    async fn look_up_commit(&self, answer: HandlerAnswer) -> Response<Body> {
        let until = tokio::time::Instant::now() + COMMIT_QUERY_TIME;
        let mut pause = CLAIM_PAUSES[0];
        loop {
            match claim(self.store, self.request).await {
                Ok(RequestClaimOutcome::Done(stored)) => {
                    // The stored answer equals this one, which has all its headers.
                    let is_own = stored.http.as_ref() == Some(&answer.to_stored(&self.settings.omitted));
                    return if is_own {
                        answer.into_response()
                    } else {
                        build_replay_response(self.settings, self.replay_parts, stored)
                    };
                }
                // Nothing was committed. The handler has run, so the client must retry.
                Ok(RequestClaimOutcome::Run(transaction, _)) => {
                    try_rollback(transaction).await;
                    return ProblemDetails::unavailable().into();
                }
                Ok(RequestClaimOutcome::Refused(problem)) => return problem.into(),
                Ok(RequestClaimOutcome::Locked) | Err(_) => {}
            }
            if tokio::time::Instant::now() + pause >= until {
                return ProblemDetails::unavailable().into();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CLAIM_PAUSES[1]);
        }
    }
}

/// Builds the problem for a request of which nothing was committed: a retry is a new run.
fn build_not_committed_problem() -> ProblemDetails {
    ProblemDetails::new(ProblemKind::Failed, "Nothing was done; the same key may be used again")
}

/// Builds the problem for a handler that misused its transaction and may have ended it. The key shows the outcome: it is free if nothing
/// was committed, otherwise given up as `outcome_unknown`.
fn build_misuse_problem() -> ProblemDetails {
    ProblemDetails::new(
        ProblemKind::Failed,
        "It is not known what was done; the same request with the same key tells",
    )
}

/// State in which a handler has left its transaction.
enum TransactionState {
    /// The transaction holds all of its writes.
    Whole,
    /// A statement has failed. The handler may have ended the transaction before that and begun another: its key shows it.
    Aborted,
    /// The session, or its transaction, is lost, and with it all that was not committed.
    Lost(sqlx::Error),
    /// The handler has ended the transaction itself.
    Ended(sqlx::Error),
}

impl TransactionState {
    fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// Restores the session's role, and returns the state in which the handler has left its transaction.
async fn leave_transaction(transaction: &mut PgConnection) -> TransactionState {
    match pg::leave_request(transaction).await {
        Ok(()) => TransactionState::Whole,
        Err(error) if pg::is_aborted(&error) => TransactionState::Aborted,
        Err(error) if pg::is_role_missing(&error) => TransactionState::Ended(error),
        Err(error) => TransactionState::Lost(error),
    }
}

/// Rolls back the handler's writes, and returns the state in which the handler had left the transaction. If it had ended the transaction,
/// the key is given up.
async fn roll_back(
    store: &Store,
    request: &RequestIdentity,
    mut transaction: Transaction<'static, Postgres>,
) -> TransactionState {
    let state = leave_transaction(&mut transaction).await;
    match &state {
        TransactionState::Ended(error) => give_up_key(store, request, transaction, error).await,
        _ => try_rollback(transaction).await,
    }
    state
}

/// Gives up the key after a handler has ended its transaction, and with it the claim: a COMMIT has given the key up already, a ROLLBACK has
/// not. Writes after that can't be rolled back, so the key is given up in either case: a retry would repeat them.
async fn give_up_key(
    store: &Store,
    request: &RequestIdentity,
    transaction: Transaction<'static, Postgres>,
    error: &sqlx::Error,
) {
    let (consumer, key) = (&request.identity.consumer, &request.identity.key);
    tracing::error!(%consumer, %key, error = pg::describe(error),
        "handler ended its transaction itself; giving up its key as outcome_unknown");
    try_rollback(transaction).await;
    let result = match claim(store, request).await {
        Ok(RequestClaimOutcome::Run(transaction, _)) => transaction.commit().await,
        // The key is known already, or held by another process.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::error!(%consumer, %key, error = pg::describe(&error),
            "cannot give up a key as outcome_unknown; a retry may run it again");
    }
}

/// Rolls back a transaction; a failure is only logged, as PostgreSQL does it when the session ends.
async fn try_rollback(transaction: Transaction<'static, Postgres>) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(error = %error, "a transaction could not be rolled back");
    }
}
