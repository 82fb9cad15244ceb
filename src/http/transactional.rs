//! One request, from its claim to its answer: in a task of its own, which no client can interrupt.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use http::request::Parts;
use http::{Request, Response};
use sqlx::{PgConnection, Postgres, Transaction};

use super::answer::Answer;
use super::body::{Body, whole};
use super::claim::{Claimed, claim, claim_in};
use super::in_flight::InFlight;
use super::key_time::check_age;
use super::problem::{Kind, Problem};
use super::replay::replay;
use super::reply::{Call, Reply, send};
use super::request::Asked;
use super::settings::Settings;
use super::store::Store;
use super::tx::Slot;
use crate::failpoint::step;
use crate::pg::{self, AnswerTrace};

/// Between two looks at a key that another process has.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long the answer to COMMIT is waited for before its key is looked at.
const COMMIT: Duration = Duration::from_secs(5);
/// How long it is looked for whether a COMMIT happened whose answer was lost.
const LOOK: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct Transactional {
    pub(super) settings: Arc<Settings>,
    pub(super) store: Store,
    pub(super) in_flight: InFlight,
    pub(super) asked: Asked,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    pub(super) call: Call,
}

impl Transactional {
    /// Runs it. Database futures are awaited to their end.
    pub(super) async fn run(self, reply: Reply) {
        let until = tokio::time::Instant::now() + self.settings.wait;
        let Some(_turn) = self.in_flight.enter(&self.asked.identity, until).await else {
            return send(reply, Problem::in_flight(Duration::from_secs(1)));
        };
        let mut pause = LOOK_AGAIN[0];
        let (transaction, at) = loop {
            let claimed = async {
                let consumer = &self.asked.identity.consumer;
                if !self.store.prepare(consumer, until, || self.settings.told_of(consumer)).await? {
                    return Ok(Claimed::Locked);
                }
                if self.settings.refuse_old_keys
                    && let Err(problem) =
                        check_age(self.asked.made, self.store.now(), self.settings.retention)
                {
                    return Ok(Claimed::Refused(problem));
                }
                claim(&self.store, &self.asked).await
            };
            match claimed.await {
                Ok(Claimed::Run(transaction, at)) => break (transaction, at),
                Ok(Claimed::Done(answer)) => {
                    return send(reply, replay(&self.settings, Some(&self.parts), answer));
                }
                Ok(Claimed::Refused(problem)) => return send(reply, problem),
                Ok(Claimed::Locked) if tokio::time::Instant::now() + pause >= until => {
                    return send(
                        reply,
                        match self.store.knows(&self.asked.identity.consumer) {
                            true => Problem::in_flight(Duration::from_secs(1)),
                            false => Problem::unavailable(),
                        },
                    );
                }
                // Another process is at work on it. No connection is held meanwhile.
                Ok(Claimed::Locked) => tokio::time::sleep(pause).await,
                Err(error) => return send(reply, self.unavailable(error)),
            }
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        };
        self.handle(transaction, at, reply).await;
    }

    /// Nothing ran.
    fn unavailable(&self, error: sqlx::Error) -> Problem {
        let error = pg::describe(&error);
        tracing::error!(consumer = %self.asked.identity.consumer, error, "a request's key can't be claimed");
        Problem::unavailable()
    }

    async fn handle(self, transaction: Transaction<'static, Postgres>, at: DateTime<Utc>, reply: Reply) {
        let Self { settings, store, asked, parts, body, call, .. } = self;
        // For whoever decides about replays, where the answer to COMMIT is lost.
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
                tracing::error!(%consumer, ?limit, "a handler is past its limit: its transaction is rolled back");
                let detail = "Send the same request with the same key again";
                send(reply, Problem::new(Kind::Late, detail).retry_after(Duration::from_secs(1)));
                // Its statements are not cancelled: it may end by itself, and is rolled back.
                let _ = tokio::time::timeout(limit, handling).await;
                if let Some(transaction) = slot.take() {
                    end(&store, &asked, transaction).await;
                }
                return;
            }
        };
        step("http.handle.after");
        drop(handling);
        let Some(transaction) = slot.take() else {
            // Whoever has it rolls it back.
            let text = "a handler has kept its transaction beyond its answer: nothing is committed";
            tracing::error!(consumer = %asked.identity.consumer, "{text}");
            return send(reply, failed());
        };
        match handled {
            Ok(Ok(answer)) if settings.is_stored(answer.status, slot.is_used()) => {
                let (settings, store, asked) = (&*settings, &store, &asked);
                let ending = Ending { settings, store, asked, asked_by: asked_by.as_ref(), at, began };
                let answer = ending.end(transaction, answer).await;
                send(reply, answer);
            }
            // May be another one the next time.
            Ok(Ok(answer)) => {
                let left = end(&store, &asked, transaction).await;
                send(reply, if left.is_ended() { broken().into() } else { answer.into_response() });
            }
            Ok(Err(error)) => {
                tracing::error!(consumer = %asked.identity.consumer, error = %error, "a request has failed");
                let left = end(&store, &asked, transaction).await;
                send(reply, if left.is_whole() { failed() } else { broken() });
            }
            Err(_) => {
                tracing::error!(consumer = %asked.identity.consumer, "a handler has panicked");
                let left = end(&store, &asked, transaction).await;
                send(reply, if left.is_whole() { failed() } else { broken() });
            }
        }
    }
}

/// How a run ends whose answer is final.
struct Ending<'a> {
    settings: &'a Settings,
    store: &'a Store,
    asked: &'a Asked,
    asked_by: Option<&'a Parts>,
    at: DateTime<Utc>,
    began: Instant,
}

impl Ending<'_> {
    /// Stores the answer and commits; then it may be given.
    async fn end(
        mut self,
        mut transaction: Transaction<'static, Postgres>,
        answer: Answer,
    ) -> Response<Body> {
        let (settings, asked) = (self.settings, self.asked);
        let consumer = &asked.identity.consumer;
        let is_refused = answer.status.is_client_error();
        if is_refused {
            // What the handler wrote goes with its claim. The refusal is stored under another one, which somebody else may have by now: then
            // that one's answer is the key's.
            let claimed = match leave(&mut transaction).await {
                Left::Whole | Left::Aborted => match pg::begin_request_anew(&mut transaction).await {
                    Ok(()) => claim_in(transaction, self.store, asked).await,
                    Err(error) => Err(error),
                },
                Left::Away(error) => Err(error),
                Left::Ended(error) => {
                    hold(self.store, asked, transaction, &error).await;
                    return broken().into();
                }
            };
            match claimed {
                Ok(Claimed::Run(claimed, at)) => (transaction, self.at) = (claimed, at),
                Ok(Claimed::Done(stored)) => return replay(settings, self.asked_by, stored),
                Ok(Claimed::Refused(problem)) => return problem.into(),
                Ok(Claimed::Locked) => return Problem::in_flight(Duration::from_secs(1)).into(),
                Err(error) => {
                    tracing::error!(%consumer, error = pg::describe(&error), "a refusal can't be stored");
                    return Problem::unavailable().into();
                }
            }
        }
        step("http.leave.before");
        let left = leave(&mut transaction).await;
        step("http.leave.after");
        match left {
            Left::Whole => {}
            Left::Aborted | Left::Away(_) => {
                tracing::error!(%consumer, key = %asked.identity.key, "a handler has answered in a transaction that had failed");
                undo(transaction).await;
                return broken().into();
            }
            Left::Ended(error) => {
                hold(self.store, asked, transaction, &error).await;
                return broken().into();
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
                tracing::error!(%consumer, "a request's key is not in its transaction any more");
                undo(transaction).await;
                return failed().into();
            }
            Err(error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "an answer can't be stored");
                undo(transaction).await;
                return failed().into();
            }
        }
        step("http.commit.before");
        // To its end, however long that takes.
        let mut committing = tokio::spawn(async move { transaction.commit().await });
        let committed = tokio::time::timeout(COMMIT, &mut committing).await;
        step("http.commit.after");
        match committed {
            Ok(Ok(Ok(()))) => answer.into_response(),
            // What the handler deferred has failed.
            Ok(Ok(Err(error))) if !pg::is_outage(&error) => {
                tracing::error!(%consumer, error = pg::describe(&error), "a request can't be committed");
                failed().into()
            }
            _ => {
                tracing::warn!(%consumer, "the answer to a COMMIT was lost: its key is looked at");
                self.look(answer).await
            }
        }
    }

    /// Was it committed?
    async fn look(&self, answer: Answer) -> Response<Body> {
        let until = tokio::time::Instant::now() + LOOK;
        let mut pause = LOOK_AGAIN[0];
        loop {
            match claim(self.store, self.asked).await {
                Ok(Claimed::Done(stored)) => {
                    // The same as this one: this one's, with all its headers.
                    let is_own = stored.http.as_ref() == Some(&answer.kept(&self.settings.omitted));
                    return if is_own {
                        answer.into_response()
                    } else {
                        replay(self.settings, self.asked_by, stored)
                    };
                }
                // It was not. Its handler has run, so its client asks again.
                Ok(Claimed::Run(transaction, _)) => {
                    undo(transaction).await;
                    return Problem::unavailable().into();
                }
                Ok(Claimed::Refused(problem)) => return problem.into(),
                Ok(Claimed::Locked) | Err(_) => {}
            }
            if tokio::time::Instant::now() + pause >= until {
                return Problem::unavailable().into();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        }
    }
}

/// Nothing was committed, and a retry is a new try.
fn failed() -> Problem {
    Problem::new(Kind::Failed, "Nothing was done; the same key may be used again")
}

/// The handler has not left its transaction as it should, and may have ended it itself. The key tells: it is free where nothing was committed,
/// and else given up as `outcome_unknown`.
fn broken() -> Problem {
    Problem::new(Kind::Failed, "It is not known what was done; the same request with the same key tells")
}

/// How a handler has left its transaction.
enum Left {
    /// All that it wrote is in it.
    Whole,
    /// A statement of it has failed. It may have ended the transaction before, and begun another: its key tells.
    Aborted,
    /// The session is gone, and what it did not commit with it.
    Away(sqlx::Error),
    /// It has ended the transaction itself.
    Ended(sqlx::Error),
}

impl Left {
    fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

async fn leave(transaction: &mut PgConnection) -> Left {
    match pg::leave_request(transaction).await {
        Ok(()) => Left::Whole,
        Err(error) if pg::is_aborted(&error) => Left::Aborted,
        Err(error) if pg::is_outage(&error) => Left::Away(error),
        Err(error) => Left::Ended(error),
    }
}

/// Takes back what a handler wrote, for good.
async fn end(store: &Store, asked: &Asked, mut transaction: Transaction<'static, Postgres>) -> Left {
    let left = leave(&mut transaction).await;
    match &left {
        Left::Ended(error) => hold(store, asked, transaction, error).await,
        _ => undo(transaction).await,
    }
    left
}

/// A handler has ended its transaction itself, and the claim with it: by a COMMIT, which has given the key up, or by a ROLLBACK. What it wrote
/// after that is nobody's to take back, so the key is given up then, too: a retry would do it again.
async fn hold(
    store: &Store,
    asked: &Asked,
    transaction: Transaction<'static, Postgres>,
    error: &sqlx::Error,
) {
    let (consumer, key) = (&asked.identity.consumer, &asked.identity.key);
    tracing::error!(%consumer, %key, error = pg::describe(error),
        "a handler has ended its transaction itself: its key is given up as outcome_unknown");
    undo(transaction).await;
    let held = match claim(store, asked).await {
        Ok(Claimed::Run(transaction, _)) => transaction.commit().await,
        // Known already, or somebody's.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = held {
        tracing::error!(%consumer, %key, error = pg::describe(&error), "a key can't be given up, and may be free");
    }
}

/// Takes all of it back; a session that can't is of no use any more, and PostgreSQL does it at its end.
async fn undo(transaction: Transaction<'static, Postgres>) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(error = %error, "a transaction could not be rolled back");
    }
}
