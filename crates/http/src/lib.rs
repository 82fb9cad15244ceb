//! A tower layer by which an HTTP request with an `Idempotency-Key` takes effect once (feature `http`).
//!
//! With [`IdempotencyLayer::transactional`] the key, the handler's writes through [`Tx`] and the answer are one commit; the client gets its
//! answer after it. For effects outside PostgreSQL [`IdempotencyLayer::leased`] holds the key in a lease store while the handler runs its
//! steps on its [`Run`]; the client gets its answer once it is stored. A retry gets the same status, body and headers (except cookies,
//! credentials and connection headers), marked `Idempotent-Replayed: true`, and no handler runs. Key and header follow
//! draft-ietf-httpapi-idempotency-key-header-07; errors are RFC 9457 problems with own types, `urn:oncely:problem:…`.
//!
//! The layer belongs behind authentication, and inside compression and CORS. It holds requests and answers in memory, so neither streams
//! nor upgrades pass through it; methods without a key (all but POST and PATCH) pass unchanged.
//!
//! | situation | status | type |
//! | --- | --- | --- |
//! | no key, if required | 400 | `key-missing` |
//! | key empty, over 255 bytes, malformed or sent twice; its time is in the future or not a date | 400 | `key-invalid` |
//! | the body did not arrive completely, or not within `read_limit` | 400, 408 | `body-incomplete` |
//! | too many requests or bytes are at work (`max_at_work`, `max_bytes_at_work`) | 503, `Retry-After` | `busy` |
//! | the request is larger than `max_request` | 413 | `too-large` |
//! | the same key with another method, path, query, body or principal, or stored by a layer with another fingerprint policy | 422 | `key-reused` |
//! | the key's own time is before the retention (`refuse_old_keys`) | 412 | `key-too-old` |
//! | the first request is at work for longer than `wait` | 409, `Retry-After` (under a lease: its remaining time) | `in-flight` |
//! | a run under a lease has failed, and its delay is longer than `wait` | 503, `Retry-After` (the remaining delay) | `failed` |
//! | the key was given up; its outcome is unknown, or a handler has ended its transaction itself | 409 | `given-up`, `outcome-unknown` |
//! | [`IdempotencyLayerBuilder::on_replay`] refuses a replay | its status | `replay-refused` |
//! | the handler panicked, or its answer can't be stored: nothing was committed; effects under a lease remain | 500 | `failed` |
//! | the handler exceeded its limit: nothing is committed; effects under a lease remain | 503, `Retry-After` | `failed` |
//! | the store is unavailable before the handler, or may not have the answer | 503, `Retry-After` | `unavailable` |
//!
//! Answers that may change on a retry (5xx; 401, 403, 405 to 409, 411 to 417, 421, 423 to 426, 428, 429, 431) are sent and not stored: a
//! transaction is rolled back, a run under a lease counts as failed (with 429 and 503 it is not counted) and the results of its steps are
//! kept. Other 4xx are stored if the handler has used its [`Tx`] or taken its [`Run`], and its writes in the transaction are rolled back.
//! 4xx and redirects of a router, an extractor or a handler that has used neither are sent only (no run is counted); so is each 4xx of a
//! [shared](Consumer::shared) consumer, as its message may still arrive.

mod answer;
mod body;
mod builder;
mod check;
mod claim;
mod consumer;
mod in_flight;
mod key;
mod key_time;
mod layer;
mod leased;
mod limits;
mod problem;
mod replay;
mod request;
mod run;
mod run_resolution;
mod settings;
mod step_result;
mod store;
mod stored;
mod transactional;
mod tx;

pub use body::{Body, BodyError};
pub use builder::IdempotencyLayerBuilder;
pub use check::SettingsError;
pub use consumer::Consumer;
pub use layer::{Idempotency, IdempotencyLayer};
pub use oncely_lease::failure::FailureResponse;
pub use run::{NoRun, Run};
pub use settings::{MessageResult, OnLarge};
pub use tx::{NoTransaction, Tx};

pub use oncely_core::fingerprint::FingerprintPolicy;

pub use for_gateway::*;

/// Items for the gateway.
mod for_gateway {
    pub use super::answer::StreamedBody;
    pub use super::body::{full_body, prefixed_body, streaming_body};
    pub use super::key::HEADER as KEY;
    pub use super::limits::ReceivedBytes;
    pub use super::problem::{AnswerName, PROBLEMS};
    pub use super::replay::REPLAY;
    pub use super::step_result::{response_from_json, response_to_json};
}
