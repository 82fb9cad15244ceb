//! One request under a lease, from its claim to its answer: in a task of its own, which no client can interrupt.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use futures::FutureExt as _;
use http::request::Parts;
use http::{Request, Response};

use super::body::{Body, whole};
use super::held::Taken;
use super::in_flight::{InFlight, Turn};
use super::key_time::check_age;
use super::problem::{Kind, Problem};
use super::replay::replay;
use super::reply::{Call, Reply, send};
use super::request::Asked;
use super::settings::Settings;
use super::stored;
use super::word::{Word, unknown};
use crate::failpoint::step;
use crate::lease::{AnyStore, Claimed, Ended, LeaseRunner, Ran, Running, StoreError};

/// Between two looks at a key that another process has.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// How long a client waits until its answer is stored. Storing goes on after that.
const LOOK: Duration = Duration::from_secs(2);
/// How long a handler past its limit may take to end by itself.
const DROPPED_AFTER: Duration = Duration::from_secs(2);

/// A request in a task of its own.
pub(super) struct Leased {
    pub(super) settings: Arc<Settings>,
    pub(super) runner: Arc<LeaseRunner<AnyStore>>,
    pub(super) in_flight: InFlight,
    pub(super) asked: Asked,
    /// What makes two requests the same, as a store takes it.
    pub(super) digest: [u8; 32],
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Leased {
    /// Runs it. What the store is asked is awaited to its end.
    pub(super) async fn run(self, call: Call, reply: Reply) {
        if self.settings.refuse_old_keys
            && let Err(problem) = check_age(self.asked.made, Utc::now(), self.settings.retention)
        {
            return send(reply, problem);
        }
        match self.claim().await {
            Ok((running, _turn)) => self.handle(call, running, reply).await,
            Err(answer) => send(reply, answer),
        }
    }

    /// Holds the key, or answers.
    async fn claim(&self) -> Result<(Running<AnyStore>, Turn), Response<Body>> {
        let identity = &self.asked.identity;
        let until = tokio::time::Instant::now() + self.settings.wait;
        // Those of this process wait for each other without asking. Whose turn has not come does not claim: the one before it is at work, and its
        // lease may have run out while the store was away.
        let Some(turn) = self.in_flight.enter(identity, until).await else {
            return Err(Problem::in_flight(Duration::from_secs(1)).into());
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
                Claimed::InFlight(_) if left > pause => tokio::time::sleep(pause).await,
                Claimed::InFlight(rest) => return Err(Problem::in_flight(rest).into()),
                Claimed::Wait(rest) if left > rest => tokio::time::sleep(rest).await,
                Claimed::Wait(rest) => return Err(Problem::failed_before(rest).into()),
                Claimed::Done(response) => {
                    let stored = stored::of_response(identity, response.as_ref());
                    return Err(replay(&self.settings, Some(&self.parts), stored));
                }
                Claimed::Conflict => return Err(Problem::key_reused().into()),
                Claimed::GivenUp { reason, .. } => return Err(Problem::given_up(reason).into()),
                Claimed::Granted(_) => return Err(Problem::unavailable().into()),
            }
            pause = (pause * 2).min(LOOK_AGAIN[1]);
        }
    }

    /// Nothing ran.
    fn not_claimed(&self, error: &StoreError) -> Problem {
        let consumer = &self.asked.identity.consumer;
        tracing::error!(%consumer, %error, "a request's key can't be claimed");
        match error {
            StoreError::Unavailable(_) => Problem::unavailable(),
            _ => Problem::new(Kind::Failed, "Nothing was done; ask whoever runs this service"),
        }
    }

    async fn handle(self, call: Call, running: Running<AnyStore>, reply: Reply) {
        let Self { settings, runner, asked, parts, body, .. } = self;
        let consumer = &asked.identity.consumer;
        let run = running.run.clone();
        let mut request = Request::from_parts(parts, whole(body));
        let taken = Taken::default();
        request.extensions_mut().insert(run.clone());
        request.extensions_mut().insert(taken.clone());
        step("leased.handle.before");
        let limit = settings.handler_limit;
        let mut handling = Box::pin(AssertUnwindSafe(async move { call(request).await }).catch_unwind());
        let in_time = tokio::select! {
            biased;
            handled = &mut handling => Some(handled),
            // Another one has its key, or its time is over.
            () = run.lost() => None,
            () = tokio::time::sleep(limit) => None,
        };
        // Its failure does not count then: another run has the key, or an outage or a clock has ended the lease.
        let is_lost = run.is_lost() && !run.is_too_long();
        let (reply, handled) = match in_time {
            Some(handled) => (Some(reply), Some(handled)),
            None => {
                tracing::error!(%consumer, ?limit, "a handler is past its limit, or its lease is lost");
                send(reply, unknown(Kind::Late).retry_after(Duration::from_secs(1)));
                run.stop();
                (None, tokio::time::timeout(DROPPED_AFTER, &mut handling).await.ok())
            }
        };
        drop(handling);
        step("leased.handle.after");
        let mut word = match handled {
            Some(handled) => Word::of(&settings, &running, taken.is(), handled),
            None => Word::failed(format!("the handler is past its limit of {limit:?}")),
        };
        if is_lost && matches!(word.ended, Ended::Failed(_)) {
            word.ended = Ended::GivenBack;
        }
        let is_given_back = matches!(word.ended, Ended::GivenBack);
        step("leased.end.before");
        let mut ending = pin!(runner.end(running, word.ended));
        let ended = tokio::time::timeout(LOOK, &mut ending).await;
        step("leased.end.after");
        if let Some(reply) = reply {
            send(reply, word.told.by(&asked, ended.as_ref().ok()));
        }
        // The client has its answer; storing goes on.
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) => ending.await,
        };
        let token = run.token();
        match ended {
            Ok(Ran::Failed { error, .. }) => tracing::error!(%consumer, token, error, "a request has failed"),
            Ok(Ran::GivenUp { reason, detail }) => {
                tracing::error!(%consumer, token, reason = reason.as_str(), detail, "a request was given up");
            }
            Ok(Ran::Lost) if !is_given_back => {
                tracing::warn!(%consumer, token, "a request has lost its lease: nothing of it is recorded but its steps");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%consumer, token, %error, "the end of a request can't be recorded");
            }
        }
    }
}
