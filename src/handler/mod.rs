//! What runs inside the transaction: a SQL function or Rust.

mod call;
mod context;
mod error;
mod function;
mod http;
pub mod lease;
mod message;
mod response;
mod row;
mod sql_function;
mod sql_handler;
mod traits;

use std::sync::Arc;

pub(crate) use call::{Record, Subtransactions, call_apart, call_together, commit_fresh};
pub use context::Context;
pub use error::HandlerError;
pub use function::{HandlerFn, handler_fn};
pub use http::HttpEndpoint;
#[cfg(feature = "http-handler")]
pub(crate) use http::HttpHandler;
#[cfg(feature = "management")]
pub(crate) use http::Transport;
#[cfg(feature = "gateway")]
pub(crate) use http::{CONNECT, Failed};
pub use message::Message;
pub use response::{IntoResponse, IntoResponses, Json};
pub use sql_function::{JsonPolicy, SqlFunction};
pub(crate) use sql_handler::SqlHandler;
pub use traits::{BatchHandler, Handler};
pub(crate) use traits::{ErasedBatchHandler, ErasedHandler};

/// A consumer's handler.
#[derive(Clone)]
pub(crate) enum Run {
    /// A SQL function.
    Sql(Arc<SqlHandler>),
    /// One message at a time.
    Rust(Arc<dyn ErasedHandler>),
    /// One message at a time, under a lease.
    Leased(Arc<dyn lease::ErasedLeasedHandler>),
    /// A batch at a time.
    RustBatch(Arc<dyn ErasedBatchHandler>),
}
