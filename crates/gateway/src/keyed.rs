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

use super::answer::{Meaning, classify_status, is_endless, remove_hop_headers};
use super::answer_memory::AnswerMemory;
use super::body::ServiceBody;
use super::problem::{GatewayProblemKind, build_problem_response};
use super::service_client::{ServiceCallResult, ServiceClient};
use oncely_config::{GatewaySettings, UnknownOutcomePolicy};
use oncely_http::{
    Body, FailureResponse, Run, StreamedBody, full_body, prefixed_body, response_from_json, response_to_json,
    streaming_body,
};
use oncely_lease::handler_error::HandlerError;
use oncely_lease::{Call, Repeat, Step, StepError};
use oncely_net::http_client::wait_for_answer;
use oncely_process::metrics::{GatewayMetrics, ServiceCallOutcome};

/// Name of the step, stored with each key, so it must never change.
const REQUEST_STEP: &str = "request";

/// Calls the service for requests with a key.
pub(super) struct KeyedService {
    unknown: UnknownOutcomePolicy,
    not_done: Vec<u16>,
    limit: Duration,
    memory: AnswerMemory,
    client: Arc<ServiceClient>,
    metrics: Arc<GatewayMetrics>,
}

/// Result of a call.
enum KeyedCallResult {
    /// An answer: the response for the client, and its stored form.
    Answer { meaning: Meaning, response: Response<Body>, stored: Value },
    /// Certainly nothing was sent.
    Unsent(String),
    /// The outcome is unknown.
    Unknown { kind: GatewayProblemKind, why: String },
}

impl KeyedService {
    pub(super) fn new(
        settings: &GatewaySettings,
        client: Arc<ServiceClient>,
        metrics: Arc<GatewayMetrics>,
    ) -> Self {
        Self {
            unknown: settings.unknown,
            not_done: settings.not_done.clone(),
            limit: settings.max_run,
            memory: AnswerMemory::new(usize::try_from(settings.max_response).unwrap_or(usize::MAX)),
            client,
            metrics,
        }
    }

    /// Calls the service, unless an earlier run has stored its answer, or may have called it and a second call is not allowed. Returns the
    /// response for the client.
    pub(super) async fn call(&self, run: &Run, request: Request<Body>) -> Response<Body> {
        let repeat = match self.unknown {
            UnknownOutcomePolicy::Hold => Repeat::Never,
            UnknownOutcomePolicy::Forward => Repeat::Always,
        };
        let (result, result_signal) = (Mutex::new(None), CancellationToken::new());
        let step = Step::new(REQUEST_STEP, repeat);
        let step_outcome = run.step(&step, |_: Call| async {
            let call_result = self.call_service(request).await;
            let step_result = to_step_result(&call_result);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(call_result);
            result_signal.cancel();
            step_result
        });
        // If the run has to end before its step is recorded, the service's answer still ends the run, and is stored with the key.
        let unrecorded = async {
            run.wait_until_lost().await;
            result_signal.cancelled().await;
        };
        let step_outcome = tokio::select! {
            biased;
            step_outcome = step_outcome => step_outcome,
            () = unrecorded => Err(HandlerError::environment("its step is not recorded yet")),
        };
        match (step_outcome, result.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            // Answer of an earlier run, which crashed before it could send it.
            (Ok(stored), None) => response_from_json(&stored).unwrap_or_else(|| {
                FailureResponse::from(HandlerError::transient("the stored answer cannot be read")).answer()
            }),
            // Sent even if its step could not be recorded; the end of the run decides whether it is stored.
            (_, Some(KeyedCallResult::Answer { response, .. })) => response,
            (_, Some(KeyedCallResult::Unsent(why))) => {
                tracing::warn!(error = why, "cannot connect to the service");
                build_problem_response(
                    GatewayProblemKind::UpstreamAway,
                    "Nothing was sent; send the same request with the same key again",
                )
            }
            (_, Some(KeyedCallResult::Unknown { kind, why })) => {
                tracing::warn!(error = why, unknown = ?self.unknown, "outcome of a request with a key is unknown");
                match self.unknown {
                    UnknownOutcomePolicy::Hold => {
                        FailureResponse::from(HandlerError::OutcomeUnknown(why)).answer()
                    }
                    UnknownOutcomePolicy::Forward => build_problem_response(
                        kind,
                        "Send the same request with the same key again: it is sent on",
                    ),
                }
            }
            (Err(error), None) => FailureResponse::from(error).answer(),
        }
    }

    /// Calls the service once and reads its answer, within one time limit; counts the call.
    async fn call_service(&self, request: Request<Body>) -> KeyedCallResult {
        let call = wait_for_answer(self.limit, async {
            match self.client.send(request, false).await {
                ServiceCallResult::Answer(response) => self.read_response(response).await,
                ServiceCallResult::Unsent(why) => KeyedCallResult::Unsent(why),
                // The request's body is complete, so a cut is not the client's.
                ServiceCallResult::Torn(why) | ServiceCallResult::Cut(why) => {
                    KeyedCallResult::Unknown { kind: GatewayProblemKind::UpstreamBroken, why }
                }
                ServiceCallResult::Late => self.build_late_result(),
            }
        });
        let result = call.await.unwrap_or_else(|| self.build_late_result());
        self.metrics.keyed.count_call(match &result {
            KeyedCallResult::Answer { .. } => ServiceCallOutcome::Answered,
            KeyedCallResult::Unsent(_) => ServiceCallOutcome::NotSent,
            KeyedCallResult::Unknown { .. } => ServiceCallOutcome::Unknown,
        });
        result
    }

    /// Builds the result of a call without an answer within `gateway.max_run`.
    fn build_late_result(&self) -> KeyedCallResult {
        let why = format!("the service did not answer within {:?} (gateway.max_run)", self.limit);
        KeyedCallResult::Unknown { kind: GatewayProblemKind::UpstreamLate, why }
    }

    /// Reads a response to its end or to the limit; a larger one, or one over the memory limit, is streamed.
    async fn read_response(&self, response: Response<Incoming>) -> KeyedCallResult {
        let broken = |why: String| KeyedCallResult::Unknown { kind: GatewayProblemKind::UpstreamBroken, why };
        if is_endless(response.headers()) {
            return broken(
                "the service answered with a stream of events, which has no end that could be kept"
                    .to_owned(),
            );
        }
        if !has_known_end(&response) {
            return broken(
                "the service's answer does not tell where it ends: half of it would look whole".to_owned(),
            );
        }
        let (mut parts, mut body) = response.into_parts();
        remove_hop_headers(&mut parts);
        let (mut buffer, mut excess): (_, Option<Bytes>) = (self.memory.begin_body(), None);
        while excess.is_none() {
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => excess = frame.into_data().ok().filter(|data| !buffer.push(data)),
                Some(Err(error)) => return broken(format!("the service's answer was cut off: {error}")),
            }
        }
        let meaning = classify_status(parts.status, &self.not_done);
        let buffer = buffer.into_bytes();
        let stored = response_to_json(parts.status, &parts.headers, excess.is_none().then_some(&buffer));
        let body = match excess {
            None => full_body(buffer),
            Some(excess) => {
                parts.extensions.insert(StreamedBody);
                prefixed_body(buffer, prefixed_body(excess, streaming_body(ServiceBody(body))))
            }
        };
        KeyedCallResult::Answer { meaning, response: Response::from_parts(parts, body), stored }
    }
}

/// Returns whether a response has a length or is chunked. One that ends with its connection also ends when the service crashes half-way.
fn has_known_end(response: &Response<Incoming>) -> bool {
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => {
            response.body().size_hint().exact().is_some()
                || matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        }
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        // The header that names the codings is removed, so that no client could decode the bytes.
        (Some(_), Some(_)) => false,
    }
}

/// Converts the result of a call into that of its step: the stored answer, or an error that decides whether the call may be repeated.
fn to_step_result(result: &KeyedCallResult) -> Result<Value, StepError> {
    match result {
        KeyedCallResult::Answer { meaning: Meaning::Final, stored, .. } => Ok(stored.clone()),
        KeyedCallResult::Answer { meaning: Meaning::NotDone, response, .. } => {
            let why = format!("the service answered {}", response.status());
            Err(StepError::Refused(HandlerError::transient(why)))
        }
        KeyedCallResult::Answer { meaning: Meaning::Unknown, response, .. } => {
            Err(StepError::Unknown(anyhow::anyhow!("the service answered {}", response.status())))
        }
        KeyedCallResult::Unsent(why) => Err(StepError::Refused(HandlerError::environment(why.as_str()))),
        KeyedCallResult::Unknown { why, .. } => Err(StepError::Unknown(anyhow::anyhow!("{why}"))),
    }
}
