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

use super::answer::{AnswerSender, HandlerAnswer, HandlerCall, send};
use super::body::{Body, whole};
use super::claim::{RequestClaimOutcome, claim, claim_in};
use super::in_flight::InFlightKeys;
use super::key_time::check_age;
use super::problem::{ProblemDetails, ProblemKind};
use super::replay::replay;
use super::request::RequestIdentity;
use super::settings::Settings;
use super::store::Store;
use super::tx::Slot;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, AnswerTrace};

/// Shortest and longest pause between two claims of a key that another process holds.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long a COMMIT may take to answer before its key is queried.
const COMMIT: Duration = Duration::from_secs(5);
/// How long the key is queried after the answer to COMMIT was lost.
const LOOK: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct TransactionalRequest {
    pub(super) settings: Arc<Settings>,
    pub(super) store: Store,
    pub(super) in_flight: InFlightKeys,
    pub(super) asked: RequestIdentity,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) call: HandlerCall,
}

impl TransactionalRequest {
    /// Runs the request. Database futures are awaited to their end.
    pub(super) async fn run(self, reply: AnswerSender) {
        let until = tokio::time::Instant::now() + self.settings.wait;
        let Some(_turn) = self.in_flight.enter(&self.asked.identity, until).await else {
            return send(reply, ProblemDetails::in_flight(Duration::from_secs(1)));
        };
        let mut pause = LOOK_AGAIN[0];
        let (transaction, at) = loop {
            let claimed = async {
                let consumer = &self.asked.identity.consumer;
                if !self.store.prepare(consumer, until, || self.settings.registration(consumer)).await? {
                    return Ok(RequestClaimOutcome::Locked);
                }
                if self.settings.refuse_old_keys
                    && let Err(problem) =
                        check_age(self.asked.made, self.store.now(), self.settings.retention)
                {
                    return Ok(RequestClaimOutcome::Refused(problem));
                }
                claim(&self.store, &self.asked).await
            };
            match claimed.await {
                Ok(RequestClaimOutcome::Run(transaction, at)) => break (transaction, at),
                Ok(RequestClaimOutcome::Done(answer)) => {
                    return send(reply, replay(&self.settings, Some(&self.parts), answer));
                }
                Ok(RequestClaimOutcome::Refused(problem)) => return send(reply, problem),
                Ok(RequestClaimOutcome::Locked) if tokio::time::Instant::now() + pause >= until => {
                    return send(
                        reply,
                        match self.store.knows(&self.asked.identity.consumer) {
                            true => ProblemDetails::in_flight(Duration::from_secs(1)),
                            false => ProblemDetails::unavailable(),
                        },
                    );
                }
                // Another process holds it. No connection is held meanwhile.
                Ok(RequestClaimOutcome::Locked) => tokio::time::sleep(pause).await,
                Err(error) => return send(reply, self.unavailable(error)),
            }
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        };
        self.handle(transaction, at, reply).await;
    }

    /// Reports that the key could not be claimed; no handler ran.
    fn unavailable(&self, error: sqlx::Error) -> ProblemDetails {
        let error = pg::describe(&error);
        tracing::error!(consumer = %self.asked.identity.consumer, error, "cannot claim the key of a request");
        ProblemDetails::unavailable()
    }

    async fn handle(
        self,
        transaction: Transaction<'static, Postgres>,
        at: DateTime<Utc>,
        reply: AnswerSender,
    ) {
        let Self { settings, store, asked, parts, body, call, .. } = self;
        // For `on_replay`, if the answer to COMMIT is lost.
        let asked_by = settings.on_replay.is_some().then(|| parts.clone());
        let mut request = Request::from_parts(parts, whole(body));
        let began = Instant::now();
        let slot = Slot::new(transaction);
        request.extensions_mut().insert(slot.clone());
        step("http.handle.before");
        let limit = settings.handler_limit;
        let mut handling = Box::pin(AssertUnwindSafe(async move { call(request).await }).catch_unwind());
        let handled = tokio::select! {
            biased;
            handled = &mut handling => handled,
            () = tokio::time::sleep(limit) => {
                let consumer = &asked.identity.consumer;
                tracing::error!(%consumer, ?limit, "handler exceeded its limit; rolling back its transaction");
                let detail = "Send the same request with the same key again";
                send(reply, ProblemDetails::new(ProblemKind::Late, detail).retry_after(Duration::from_secs(1)));
                // Its statements are not cancelled: the handler may end by itself, and is rolled back.
                let _ = tokio::time::timeout(limit, handling).await;
                if let Some(transaction) = slot.take() {
                    roll_back(&store, &asked, transaction).await;
                }
                return;
            }
        };
        step("http.handle.after");
        drop(handling);
        let Some(transaction) = slot.take() else {
            // The holder of the transaction rolls it back.
            let text = "handler kept its transaction beyond its answer; nothing is committed";
            tracing::error!(consumer = %asked.identity.consumer, "{text}");
            return send(reply, not_committed());
        };
        match handled {
            Ok(Ok(answer)) if answer.is_stored(&settings, slot.is_used()) => {
                let (settings, store, asked) = (&*settings, &store, &asked);
                let ending = AnswerCommit { settings, store, asked, asked_by: asked_by.as_ref(), at, began };
                let answer = ending.store_and_commit(transaction, answer).await;
                send(reply, answer);
            }
            // An answer that may change on a retry.
            Ok(Ok(answer)) => {
                let left = roll_back(&store, &asked, transaction).await;
                send(
                    reply,
                    if left.is_ended() { transaction_misused().into() } else { answer.into_response() },
                );
            }
            Ok(Err(error)) => {
                tracing::error!(consumer = %asked.identity.consumer, error = %error, "request failed");
                let left = roll_back(&store, &asked, transaction).await;
                send(reply, if left.is_whole() { not_committed() } else { transaction_misused() });
            }
            Err(_) => {
                tracing::error!(consumer = %asked.identity.consumer, "handler panicked");
                let left = roll_back(&store, &asked, transaction).await;
                send(reply, if left.is_whole() { not_committed() } else { transaction_misused() });
            }
        }
    }
}

/// End of a run with a final answer.
struct AnswerCommit<'a> {
    settings: &'a Settings,
    store: &'a Store,
    asked: &'a RequestIdentity,
    asked_by: Option<&'a Parts>,
    at: DateTime<Utc>,
    began: Instant,
}

impl AnswerCommit<'_> {
    /// Stores the answer and commits; then returns the answer.
    async fn store_and_commit(
        mut self,
        mut transaction: Transaction<'static, Postgres>,
        answer: HandlerAnswer,
    ) -> Response<Body> {
        let (settings, asked) = (self.settings, self.asked);
        let consumer = &asked.identity.consumer;
        let is_refused = answer.status.is_client_error();
        if is_refused {
            (transaction, self.at) = match self.claim_anew(transaction).await {
                Ok(claimed) => claimed,
                Err(response) => return response,
            };
        }
        step("http.leave.before");
        let left = leave(&mut transaction).await;
        step("http.leave.after");
        match left {
            TransactionState::Whole => {}
            TransactionState::Aborted | TransactionState::Away(_) => {
                tracing::error!(%consumer, key = %asked.identity.key, "handler answered in an aborted transaction");
                undo(transaction).await;
                return transaction_misused().into();
            }
            TransactionState::Ended(error) => {
                hold(self.store, asked, transaction, &error).await;
                return transaction_misused().into();
            }
        }
        let kept = answer.kept(&settings.omitted);
        let trace = AnswerTrace {
            is_response: settings.consumer.as_ref().is_some_and(|one| one.is_shared())
                && answer.is_response(),
            is_refused,
            took: self.began.elapsed(),
            worker: &settings.worker,
            trace_id: asked.trace_id.as_deref(),
        };
        step("http.store.before");
        let now = self.store.now();
        let stored =
            pg::store_http_answer(&mut transaction, &asked.identity, self.at, &kept, trace, now).await;
        step("http.store.after");
        match stored {
            Ok(true) => {}
            Ok(false) => {
                tracing::error!(%consumer, "the key of a request is missing from its transaction");
                undo(transaction).await;
                return not_committed().into();
            }
            Err(error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "cannot store an answer");
                undo(transaction).await;
                return not_committed().into();
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
        let asked = self.asked;
        let claimed = match leave(&mut transaction).await {
            TransactionState::Whole | TransactionState::Aborted => {
                match pg::begin_request_anew(&mut transaction).await {
                    Ok(()) => claim_in(transaction, self.store, asked).await,
                    Err(error) => Err(error),
                }
            }
            TransactionState::Away(error) => Err(error),
            TransactionState::Ended(error) => {
                hold(self.store, asked, transaction, &error).await;
                return Err(transaction_misused().into());
            }
        };
        Err(match claimed {
            Ok(RequestClaimOutcome::Run(claimed, at)) => return Ok((claimed, at)),
            Ok(RequestClaimOutcome::Done(stored)) => replay(self.settings, self.asked_by, stored),
            Ok(RequestClaimOutcome::Refused(problem)) => problem.into(),
            Ok(RequestClaimOutcome::Locked) => ProblemDetails::in_flight(Duration::from_secs(1)).into(),
            Err(error) => {
                let consumer = &asked.identity.consumer;
                tracing::error!(%consumer, error = pg::describe(&error), "cannot store a refusal");
                ProblemDetails::unavailable().into()
            }
        })
    }

    /// Commits; then returns the answer.
    async fn commit(
        &self,
        transaction: Transaction<'static, Postgres>,
        answer: HandlerAnswer,
    ) -> Response<Body> {
        let consumer = &self.asked.identity.consumer;
        step("http.commit.before");
        // Awaited to its end, however long that takes.
        let mut committing = tokio::spawn(async move { transaction.commit().await });
        let committed = tokio::time::timeout(COMMIT, &mut committing).await;
        step("http.commit.after");
        match committed {
            Ok(Ok(Ok(()))) => answer.into_response(),
            // A deferred constraint of the handler's writes has failed.
            Ok(Ok(Err(error))) if !pg::is_outage(&error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "cannot commit a request");
                not_committed().into()
            }
            _ => {
                tracing::warn!(%consumer, "reply to COMMIT lost; reading the key");
                self.look_up_commit(answer).await
            }
        }
    }

    /// Queries whether the commit happened.
    async fn look_up_commit(&self, answer: HandlerAnswer) -> Response<Body> {
        let until = tokio::time::Instant::now() + LOOK;
        let mut pause = LOOK_AGAIN[0];
        loop {
            match claim(self.store, self.asked).await {
                Ok(RequestClaimOutcome::Done(stored)) => {
                    // The stored answer equals this one, which has all its headers.
                    let is_own = stored.http.as_ref() == Some(&answer.kept(&self.settings.omitted));
                    return if is_own {
                        answer.into_response()
                    } else {
                        replay(self.settings, self.asked_by, stored)
                    };
                }
                // It did not. The handler has run, so the client must retry.
                Ok(RequestClaimOutcome::Run(transaction, _)) => {
                    undo(transaction).await;
                    return ProblemDetails::unavailable().into();
                }
                Ok(RequestClaimOutcome::Refused(problem)) => return problem.into(),
                Ok(RequestClaimOutcome::Locked) | Err(_) => {}
            }
            if tokio::time::Instant::now() + pause >= until {
                return ProblemDetails::unavailable().into();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        }
    }
}

/// Reports that nothing was committed; a retry is a new run.
fn not_committed() -> ProblemDetails {
    ProblemDetails::new(ProblemKind::Failed, "Nothing was done; the same key may be used again")
}

/// Reports that the handler misused its transaction and may have ended it. The key shows the outcome: it is free if nothing was committed,
/// otherwise given up as `outcome_unknown`.
fn transaction_misused() -> ProblemDetails {
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
    /// The session is lost, and with it all that was not committed.
    Away(sqlx::Error),
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

async fn leave(transaction: &mut PgConnection) -> TransactionState {
    match pg::leave_request(transaction).await {
        Ok(()) => TransactionState::Whole,
        Err(error) if pg::is_aborted(&error) => TransactionState::Aborted,
        Err(error) if pg::is_outage(&error) => TransactionState::Away(error),
        Err(error) => TransactionState::Ended(error),
    }
}

/// Rolls back the handler's writes.
async fn roll_back(
    store: &Store,
    asked: &RequestIdentity,
    mut transaction: Transaction<'static, Postgres>,
) -> TransactionState {
    let left = leave(&mut transaction).await;
    match &left {
        TransactionState::Ended(error) => hold(store, asked, transaction, error).await,
        _ => undo(transaction).await,
    }
    left
}

/// Gives up the key after a handler has ended its transaction, and with it the claim: a COMMIT has given the key up already, a ROLLBACK has
/// not. Writes after that can't be rolled back, so the key is given up in either case: a retry would repeat them.
async fn hold(
    store: &Store,
    asked: &RequestIdentity,
    transaction: Transaction<'static, Postgres>,
    error: &sqlx::Error,
) {
    let (consumer, key) = (&asked.identity.consumer, &asked.identity.key);
    tracing::error!(%consumer, %key, error = pg::describe(error),
        "handler ended its transaction itself; giving up its key as outcome_unknown");
    undo(transaction).await;
    let held = match claim(store, asked).await {
        Ok(RequestClaimOutcome::Run(transaction, _)) => transaction.commit().await,
        // The key is known already, or held by another process.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = held {
        tracing::error!(%consumer, %key, error = pg::describe(&error),
            "cannot give up a key as outcome_unknown; a retry may run it again");
    }
}

/// Rolls back the transaction; if that fails, PostgreSQL does it when the session ends.
async fn undo(transaction: Transaction<'static, Postgres>) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(error = %error, "a transaction could not be rolled back");
    }
}
