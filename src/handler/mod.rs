//! What runs inside the transaction: a SQL function or Rust.

mod call;
mod error;
mod row;
mod rust;
mod sql_function;
mod sql_handler;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use call::{Grouping, Record, call, call_fresh, needs_a_look};
pub use error::HandlerError;
pub use rust::{BatchHandler, Context, Handler, handler_fn};
pub(crate) use rust::{ErasedBatchHandler, ErasedHandler};
pub use sql_function::{JsonPolicy, SqlFunction};
pub(crate) use sql_handler::SqlHandler;

use crate::identity::Identity;
use crate::message::Message;

/// What a handler returns: a response that is stored with the key, or nothing.
pub type HandlerResult = Result<Option<Value>, HandlerError>;

/// A message on its way into a handler.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Who it is.
    pub identity: &'a Identity,
    /// The message.
    pub message: &'a Message,
    /// Which run this is, from 1.
    pub attempt: u32,
    /// Its body parses as JSON.
    pub is_json: bool,
}

impl Incoming<'_> {
    /// The body as a typed value.
    ///
    /// # Errors
    /// [`HandlerError::Permanent`] when the body is not JSON of that type: another try would not help.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_slice(&self.message.body).map_err(|error| HandlerError::permanent(error.to_string()))
    }
}

/// A consumer's handler.
#[derive(Clone)]
pub(crate) enum Run {
    /// A SQL function.
    Sql(Arc<SqlHandler>),
    /// One message at a time.
    Rust(Arc<dyn ErasedHandler>),
    /// A batch at a time.
    RustBatch(Arc<dyn ErasedBatchHandler>),
}
