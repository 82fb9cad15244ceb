//! A request with a key: one step of its run.
//!
//! The step begins before a byte is sent, and is over when the service's answer is there as a whole. Where the gateway dies in between, or the
//! answer is none, the step has begun and is not over: under `unknown = "hold"` its key is given up as one whose outcome nobody knows, under
//! `"forward"` the next request with the key calls the service again. Where certainly nothing was done, the step is taken back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::answer::{Meaning, is_endless, meaning, onward};
use super::body::Data;
use super::calls::{Calls, Sent};
use super::held::Room;
use super::problem::{Kind, problem};
use crate::config::{GatewaySettings, Unknown};
use crate::handler::HandlerError;
use crate::http::{Body, Failure, Run, Unheld, followed, kept_answer, passed, stored_answer, whole};
use crate::lease::{Call, Repeat, Step, StepError};
use crate::metrics::{Called, GatewayMetrics};

/// Part of what is stored of a key, so it never changes.
const STEP: &str = "request";

/// Calls the service for requests with a key.
pub(super) struct Keyed {
    unknown: Unknown,
    not_done: Vec<u16>,
    limit: Duration,
    room: Room,
    calls: Arc<Calls>,
    metrics: Arc<GatewayMetrics>,
}

/// What came of a call.
enum Came {
    /// An answer, for this client; and as it is stored.
    Answer {
        meaning: Meaning,
        answer: Response<Body>,
        stored: Value,
    },
    Unsent(String),
    /// Nobody knows whether it took effect.
    Nothing {
        kind: Kind,
        why: String,
    },
}

impl Keyed {
    pub(super) fn new(settings: &GatewaySettings, calls: Arc<Calls>, metrics: Arc<GatewayMetrics>) -> Self {
        Self {
            unknown: settings.unknown,
            not_done: settings.not_done.clone(),
            limit: settings.max_run,
            room: Room::new(usize::try_from(settings.max_response).unwrap_or(usize::MAX)),
            calls,
            metrics,
        }
    }

    /// Calls the service, unless an earlier run has its answer, or may have called it and it must not be called again.
    pub(super) async fn call(&self, run: &Run, request: Request<Body>) -> Response<Body> {
        let repeat = match self.unknown {
            Unknown::Hold => Repeat::Never,
            Unknown::Forward => Repeat::Always,
        };
        let (came, answered) = (Mutex::new(None), CancellationToken::new());
        let step = Step::new(STEP, repeat);
        let stepped = run.step(&step, |_: Call| async {
            let found = self.ask(request).await;
            let said = said(&found);
            *came.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            answered.cancel();
            said
        });
        // If the run has to end before its step is recorded, the service's answer still ends the run: it is stored with the key instead.
        let unrecorded = async {
            run.lost().await;
            answered.cancelled().await;
        };
        let stepped = tokio::select! {
            biased;
            stepped = stepped => stepped,
            () = unrecorded => Err(HandlerError::environment("its step is not recorded yet")),
        };
        match (stepped, came.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            // Of an earlier run, which died before it could say so.
            (Ok(stored), None) => stored_answer(&stored).unwrap_or_else(|| {
                Failure::from(HandlerError::transient("what is stored of the answer is none")).answer()
            }),
            // It is passed on even where its step could not be recorded; the end of the run says whether it is stored.
            (_, Some(Came::Answer { answer, .. })) => answer,
            (_, Some(Came::Unsent(why))) => {
                tracing::warn!(error = why, "the service can't be reached");
                problem(Kind::UpstreamAway, "Nothing was sent; send the same request with the same key again")
            }
            (_, Some(Came::Nothing { kind, why })) => {
                tracing::warn!(error = why, unknown = ?self.unknown, "nobody knows whether a request with a key took effect");
                match self.unknown {
                    Unknown::Hold => Failure::from(HandlerError::OutcomeUnknown(why)).answer(),
                    Unknown::Forward => {
                        problem(kind, "Send the same request with the same key again: it is sent on")
                    }
                }
            }
            (Err(error), None) => Failure::from(error).answer(),
        }
    }

    async fn ask(&self, request: Request<Body>) -> Came {
        let asked = tokio::time::timeout(self.limit, async {
            match self.calls.send(request, false).await {
                Sent::Answer(answer) => self.read(answer).await,
                Sent::Unsent(why) => Came::Unsent(why),
                // Its body is here as a whole.
                Sent::Torn(why) | Sent::Cut(why) => Came::Nothing { kind: Kind::UpstreamBroken, why },
                Sent::Late => self.late(),
            }
        });
        let came = asked.await.unwrap_or_else(|_| self.late());
        self.metrics.keyed.called(match &came {
            Came::Answer { .. } => Called::Answered,
            Came::Unsent(_) => Called::NotSent,
            Came::Nothing { .. } => Called::Unknown,
        });
        came
    }

    fn late(&self) -> Came {
        let why = format!("the service did not answer within {:?} (gateway.max_run)", self.limit);
        Came::Nothing { kind: Kind::UpstreamLate, why }
    }

    /// Reads an answer to its end, or as far as it is held: what is longer, or finds no room, is passed on as it comes.
    async fn read(&self, answer: Response<Incoming>) -> Came {
        let broken = |why: String| Came::Nothing { kind: Kind::UpstreamBroken, why };
        if is_endless(answer.headers()) {
            return broken(
                "the service answered with a stream of events, which has no end that could be kept"
                    .to_owned(),
            );
        }
        if !tells_its_end(&answer) {
            return broken(
                "the service's answer does not tell where it ends: half of it would look whole".to_owned(),
            );
        }
        let (mut parts, mut body) = answer.into_parts();
        onward(&mut parts);
        let (mut held, mut more): (_, Option<Bytes>) = (self.room.answer(), None);
        while more.is_none() {
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => more = frame.into_data().ok().filter(|data| !held.push(data)),
                Some(Err(error)) => return broken(format!("the service's answer broke off: {error}")),
            }
        }
        let meaning = meaning(parts.status, &self.not_done);
        let held = held.freeze();
        let stored = kept_answer(parts.status, &parts.headers, more.is_none().then_some(&held));
        let body = match more {
            None => whole(held),
            Some(more) => {
                parts.extensions.insert(Unheld);
                followed(held, followed(more, passed(Data(body))))
            }
        };
        Came::Answer { meaning, answer: Response::from_parts(parts, body), stored }
    }
}

/// Has an answer a length, or is it chunked? One that ends with its connection also ends where the service dies half-way.
fn tells_its_end(answer: &Response<Incoming>) -> bool {
    let mut codings = answer.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {
            answer.body().size_hint().exact().is_some()
                || matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        }
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        // The header that names the codings is removed, so nobody could read the bytes.
        (Some(_), Some(_)) => false,
    }
}

/// What a step is told of its call.
fn said(came: &Came) -> Result<Value, StepError> {
    match came {
        Came::Answer { meaning: Meaning::Final, stored, .. } => Ok(stored.clone()),
        Came::Answer { meaning: Meaning::NotDone, answer, .. } => {
            let why = format!("the service answered {}", answer.status());
            Err(StepError::Refused(HandlerError::transient(why)))
        }
        Came::Answer { meaning: Meaning::Unknown, answer, .. } => {
            Err(StepError::Unknown(anyhow::anyhow!("the service answered {}", answer.status())))
        }
        Came::Unsent(why) => Err(StepError::Refused(HandlerError::environment(why.as_str()))),
        Came::Nothing { why, .. } => Err(StepError::Unknown(anyhow::anyhow!("{why}"))),
    }
}
