//! A tower layer by which an HTTP request with an `Idempotency-Key` takes effect once (feature `http`).
//!
//! In a transaction of [`IdempotencyLayer::transactional`] the key, what the handler writes through [`Tx`], and the answer are one commit;
//! the client gets its answer after it. For effects outside PostgreSQL [`IdempotencyLayer::leased`] holds the key in a store of leases while the
//! handler runs, by whose [`Run`] it takes its steps; the client gets its answer once it is stored. A retry gets the same status, body and
//! headers (but cookies, credentials and those of a connection), marked `Idempotent-Replayed: true`, and no handler runs. Key and header are those of
//! draft-ietf-httpapi-idempotency-key-header-07; errors are RFC 9457 problems with types of ours, `urn:oncely:problem:…`.
//!
//! The layer belongs behind authentication, and inside compression and CORS. It holds requests and answers in memory, so neither streams nor
//! upgrades go through it; methods without a key (all but POST and PATCH) pass untouched.
//!
//! | situation | status | type |
//! | --- | --- | --- |
//! | no key, where it is required | 400 | `key-missing` |
//! | key empty, over 255 bytes, malformed or sent twice; its time is ahead, or no date | 400 | `key-invalid` |
//! | the body did not arrive, or not in time | 400, 408 | `body-incomplete` |
//! | too much is at work (`max_at_work`, `max_bytes_at_work`) | 503, `Retry-After` | `busy` |
//! | the request is over `max_request` | 413 | `too-large` |
//! | the same key with another method, path, query, body or principal, or stored by a layer that compares something else | 422 | `key-reused` |
//! | the key's own time is before the retention, where that is asked for | 412 | `key-too-old` |
//! | the first one is at work for longer than `wait` | 409, `Retry-After` (under a lease: its rest) | `in-flight` |
//! | a run under a lease has failed, and its delay is longer than `wait` | 503, `Retry-After` (its rest) | `failed` |
//! | the key was given up; its outcome is not known, or a handler has ended its transaction itself | 409 | `given-up`, `outcome-unknown` |
//! | a replay that [`Settings::on_replay`] refuses | as it says | `replay-refused` |
//! | the handler panicked, or its answer can't be stored: nothing was committed; what was done under a lease stays | 500 | `failed` |
//! | the handler is past its limit: nothing is committed; what was done under a lease stays | 503, `Retry-After` | `failed` |
//! | the store is away before the handler, or nobody knows whether it has the answer | 503, `Retry-After` | `unavailable` |
//!
//! Answers that may be another one the next time (5xx; 401, 403, 405 to 409, 411 to 417, 421, 423 to 426, 428, 429, 431) are passed on and not
//! stored: a transaction is rolled back, a run under a lease counts as failed (429 and 503: as none) and the results of its steps are kept. Other
//! 4xx are stored where the handler has used its [`Tx`], or taken its [`Run`], and what it wrote in the transaction is rolled back. Those of a
//! router, an extractor or a handler that has used nothing are passed on (a run counts as none), as are their redirects; and so is each 4xx of a
//! [shared](Consumer::shared) consumer, whose message may come yet.

mod answer;
mod body;
mod check;
mod claim;
mod consumer;
mod failure;
mod held;
mod in_flight;
mod key;
mod key_time;
mod keys;
mod layer;
mod leased;
mod limits;
mod message_result;
mod on_large;
mod problem;
mod replay;
mod reply;
mod request;
mod settings;
#[cfg(feature = "gateway")]
mod step_result;
mod store;
mod stored;
mod transactional;
mod tx;
mod word;

pub use body::{Body, BodyError};
pub use check::SettingsError;
pub use consumer::Consumer;
pub use failure::Failure;
pub use held::{NoRun, Run};
pub use layer::{Idempotency, IdempotencyLayer};
pub use message_result::MessageResult;
pub use on_large::OnLarge;
pub use settings::Settings;
pub use tx::{NoTransaction, Tx};

pub use crate::fingerprint::FingerprintPolicy;

#[cfg(feature = "gateway")]
pub(crate) use for_gateway::*;

/// What the gateway builds on.
#[cfg(feature = "gateway")]
mod for_gateway {
    pub(crate) use super::answer::Unheld;
    pub(crate) use super::body::{followed, passed, whole};
    pub(crate) use super::key::HEADER as KEY;
    pub(crate) use super::limits::Arrived;
    pub(crate) use super::problem::{AnswerName, PROBLEMS};
    pub(crate) use super::replay::REPLAY;
    pub(crate) use super::step_result::{kept_answer, stored_answer};
}
