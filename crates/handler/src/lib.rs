//! Handlers: SQL functions and Rust code that run inside the transaction, and handlers that run under a lease.

mod call;
mod context;
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

pub use call::{BatchRecord, Subtransactions, call_batch, call_in_subtransactions, commit_fresh_batch};
pub use context::Context;
pub use function::{HandlerFn, handler_fn};
pub use http::HttpEndpoint;
#[cfg(feature = "http-handler")]
pub use http::HttpHandler;
pub use lease::{Finish, Lease, LeasedHandler};
pub use message::Message;
pub use oncely_lease::handler_error::HandlerError;
pub use response::{IntoResponse, IntoResponses, Json};
pub use sql_function::{JsonPolicy, SqlFunction};
pub use sql_handler::SqlHandler;
pub use traits::{BatchHandler, Handler};
pub use traits::{ErasedBatchHandler, ErasedHandler};

/// A consumer's handler.
#[derive(Clone)]
pub enum ConsumerHandler {
    /// A SQL function.
    Sql(Arc<SqlHandler>),
    /// One message at a time.
    Rust(Arc<dyn ErasedHandler>),
    /// One message at a time, under a lease.
    Leased(Arc<dyn lease::ErasedLeasedHandler>),
    /// A batch at a time.
    RustBatch(Arc<dyn ErasedBatchHandler>),
}
