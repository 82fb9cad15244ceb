//! A tower layer by which an HTTP request with an `Idempotency-Key` takes effect once (feature `http`).
//!
//! In a transaction of [`IdempotencyLayer::transactional`] the key, what the handler writes through [`Tx`], and the answer are one commit;
//! the client gets its answer after it. A retry gets the same status, body and kept headers, marked `Idempotent-Replayed: true`, and no
//! handler runs. Key and header are those of draft-ietf-httpapi-idempotency-key-header-07; errors are RFC 9457 problems with types of
//! ours, `urn:oncely:problem:…`.
//!
//! The layer belongs behind authentication and inside compression. It holds requests and answers in memory, so neither streams nor
//! upgrades go through it; methods without a key (all but POST and PATCH) pass untouched.
//!
//! | situation | status | type |
//! | --- | --- | --- |
//! | no key, where it is required | 400 | `key-missing` |
//! | key empty, over 255 bytes, malformed or sent twice | 400 | `key-invalid` |
//! | the body did not arrive | 400 | `body-incomplete` |
//! | the request is over `max_request` | 413 | `too-large` |
//! | the same key with another method, path, query, body or principal | 422 | `key-reused` |
//! | the first one is at work for longer than `wait` | 409, `Retry-After` | `in-flight` |
//! | the key was given up as a message, or its outcome is not known | 409 | `given-up`, `outcome-unknown` |
//! | the handler panicked, or its answer can't be stored: nothing was committed | 500 | `failed` |
//! | the handler is past its limit: nothing is committed | 503, `Retry-After` | `failed` |
//! | PostgreSQL is away before the handler, or nobody knows whether it has committed | 503, `Retry-After` | `unavailable` |
//!
//! Answers that may be another one the next time (5xx, 401, 403, 407 to 409, 421, 423, 425, 429) are passed on, rolled back and not stored.
//! Other 4xx are stored, and what the handler wrote is rolled back.

mod answer;
mod body;
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
pub use consumer::Consumer;
pub use failure::Failure;
pub use held::{NoRun, Run};
pub use layer::{Idempotency, IdempotencyLayer};
pub use message_result::MessageResult;
pub use on_large::OnLarge;
pub use settings::{Settings, SettingsError};
pub use tx::{NoTransaction, Tx};

pub use crate::fingerprint::FingerprintPolicy;

#[cfg(feature = "gateway")]
pub(crate) use for_gateway::*;

/// What the gateway builds on.
#[cfg(feature = "gateway")]
mod for_gateway {
    pub(crate) use super::body::{passed, whole};
    pub(crate) use super::key::HEADER as KEY;
    pub(crate) use super::problem::ProblemName;
    pub(crate) use super::replay::REPLAYED;
    pub(crate) use super::step_result::{kept_answer, stored_answer};
}
