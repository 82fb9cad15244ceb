//! Runs a request with a key as the only step of its run.
//!
//! The step begins before a byte is sent, and ends when the service's complete answer has arrived. If the gateway crashes in between, or no
//! usable answer arrives, the step stays begun: under `unknown = "hold"` its key is given up with an unknown outcome, under `"forward"` the
//! next request with the key calls the service again. If certainly nothing was done, the step is taken back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::answer::{Meaning, is_endless, meaning, remove_hop_headers};
use super::answer_memory::AnswerMemory;
use super::body::Data;
use super::problem::{GatewayProblemKind, problem};
use super::service_client::{ServiceCallResult, ServiceClient};
use oncely_config::{GatewaySettings, UnknownOutcomePolicy};
use oncely_http::{
    Body, FailureResponse, Run, StreamedBody, answer_from_json, answer_to_json, followed, passed, whole,
};
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{Call, Repeat, Step, StepError};
use oncely_net::http_client::within;
use oncely_process::metrics::{GatewayMetrics, ServiceCallOutcome};

/// Stored with each key, so it must never change.
const STEP: &str = "request";

/// Calls the service for requests with a key.
pub(super) struct KeyedService {
    unknown: UnknownOutcomePolicy,
    not_done: Vec<u16>,
    limit: Duration,
    room: AnswerMemory,
    calls: Arc<ServiceClient>,
    metrics: Arc<GatewayMetrics>,
}

/// Result of a call.
enum KeyedCallResult {
    /// An answer, for the client and in its stored form.
    Answer {
        meaning: Meaning,
        answer: Response<Body>,
        stored: Value,
    },
    Unsent(String),
    /// The outcome is unknown.
    Nothing {
        kind: GatewayProblemKind,
        why: String,
    },
}

impl KeyedService {
    pub(super) fn new(
        settings: &GatewaySettings,
        calls: Arc<ServiceClient>,
        metrics: Arc<GatewayMetrics>,
    ) -> Self {
        Self {
            unknown: settings.unknown,
            not_done: settings.not_done.clone(),
            limit: settings.max_run,
            room: AnswerMemory::new(usize::try_from(settings.max_response).unwrap_or(usize::MAX)),
            calls,
            metrics,
        }
    }

    /// Calls the service, unless an earlier run has stored its answer, or may have called it and a second call is not allowed.
    pub(super) async fn call(&self, run: &Run, request: Request<Body>) -> Response<Body> {
        let repeat = match self.unknown {
            UnknownOutcomePolicy::Hold => Repeat::Never,
            UnknownOutcomePolicy::Forward => Repeat::Always,
        };
        let (came, answered) = (Mutex::new(None), CancellationToken::new());
        let step = Step::new(STEP, repeat);
        let stepped = run.step(&step, |_: Call| async {
            let found = self.ask(request).await;
            let said = call_result(&found);
            *came.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            answered.cancel();
            said
        });
        // If the run has to end before its step is recorded, the service's answer still ends the run, and is stored with the key.
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
            // Answer of an earlier run, which crashed before it could send it.
            (Ok(stored), None) => answer_from_json(&stored).unwrap_or_else(|| {
                FailureResponse::from(HandlerError::transient("the stored answer cannot be read")).answer()
            }),
            // Sent even if its step could not be recorded; the end of the run decides whether it is stored.
            (_, Some(KeyedCallResult::Answer { answer, .. })) => answer,
            (_, Some(KeyedCallResult::Unsent(why))) => {
                tracing::warn!(error = why, "cannot connect to the service");
                problem(
                    GatewayProblemKind::UpstreamAway,
                    "Nothing was sent; send the same request with the same key again",
                )
            }
            (_, Some(KeyedCallResult::Nothing { kind, why })) => {
                tracing::warn!(error = why, unknown = ?self.unknown, "outcome of a request with a key is unknown");
                match self.unknown {
                    UnknownOutcomePolicy::Hold => {
                        FailureResponse::from(HandlerError::OutcomeUnknown(why)).answer()
                    }
                    UnknownOutcomePolicy::Forward => {
                        problem(kind, "Send the same request with the same key again: it is sent on")
                    }
                }
            }
            (Err(error), None) => FailureResponse::from(error).answer(),
        }
    }

    async fn ask(&self, request: Request<Body>) -> KeyedCallResult {
        let asked = within(self.limit, async {
            match self.calls.send(request, false).await {
                ServiceCallResult::Answer(answer) => self.read(answer).await,
                ServiceCallResult::Unsent(why) => KeyedCallResult::Unsent(why),
                // The request's body is complete, so a cut is not the client's.
                ServiceCallResult::Torn(why) | ServiceCallResult::Cut(why) => {
                    KeyedCallResult::Nothing { kind: GatewayProblemKind::UpstreamBroken, why }
                }
                ServiceCallResult::Late => self.late(),
            }
        });
        let came = asked.await.unwrap_or_else(|| self.late());
        self.metrics.keyed.called(match &came {
            KeyedCallResult::Answer { .. } => ServiceCallOutcome::Answered,
            KeyedCallResult::Unsent(_) => ServiceCallOutcome::NotSent,
            KeyedCallResult::Nothing { .. } => ServiceCallOutcome::Unknown,
        });
        came
    }

    fn late(&self) -> KeyedCallResult {
        let why = format!("the service did not answer within {:?} (gateway.max_run)", self.limit);
        KeyedCallResult::Nothing { kind: GatewayProblemKind::UpstreamLate, why }
    }

    /// Reads an answer to its end or to the limit; a larger one, or one over the memory limit, is streamed.
    async fn read(&self, answer: Response<Incoming>) -> KeyedCallResult {
        let broken = |why: String| KeyedCallResult::Nothing { kind: GatewayProblemKind::UpstreamBroken, why };
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
        remove_hop_headers(&mut parts);
        let (mut held, mut more): (_, Option<Bytes>) = (self.room.answer(), None);
        while more.is_none() {
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => more = frame.into_data().ok().filter(|data| !held.push(data)),
                Some(Err(error)) => return broken(format!("the service's answer was cut off: {error}")),
            }
        }
        let meaning = meaning(parts.status, &self.not_done);
        let held = held.freeze();
        let stored = answer_to_json(parts.status, &parts.headers, more.is_none().then_some(&held));
        let body = match more {
            None => whole(held),
            Some(more) => {
                parts.extensions.insert(StreamedBody);
                followed(held, followed(more, passed(Data(body))))
            }
        };
        KeyedCallResult::Answer { meaning, answer: Response::from_parts(parts, body), stored }
    }
}

/// Returns whether an answer has a length or is chunked. One that ends with its connection also ends when the service crashes half-way.
fn tells_its_end(answer: &Response<Incoming>) -> bool {
    let mut codings = answer.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {
            answer.body().size_hint().exact().is_some()
                || matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        }
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        // The header that names the codings is removed, so that no client could decode the bytes.
        (Some(_), Some(_)) => false,
    }
}

/// Returns the result of the step.
fn call_result(came: &KeyedCallResult) -> Result<Value, StepError> {
    match came {
        KeyedCallResult::Answer { meaning: Meaning::Final, stored, .. } => Ok(stored.clone()),
        KeyedCallResult::Answer { meaning: Meaning::NotDone, answer, .. } => {
            let why = format!("the service answered {}", answer.status());
            Err(StepError::Refused(HandlerError::transient(why)))
        }
        KeyedCallResult::Answer { meaning: Meaning::Unknown, answer, .. } => {
            Err(StepError::Unknown(anyhow::anyhow!("the service answered {}", answer.status())))
        }
        KeyedCallResult::Unsent(why) => Err(StepError::Refused(HandlerError::environment(why.as_str()))),
        KeyedCallResult::Nothing { why, .. } => Err(StepError::Unknown(anyhow::anyhow!("{why}"))),
    }
}
