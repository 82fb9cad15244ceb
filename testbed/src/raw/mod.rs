//! AMQP 0-9-1 byte by byte, over a socket of its own: for what a client library cannot send, and for what it would mend on
//! the way in. Shares no code with the AMQP client of the product, so that it is independent of what it checks.

mod connection;
mod properties;
mod value;
mod wire;

pub use connection::{RawConnection, RawMessage, Refusal};
pub use properties::RawProperties;
pub(crate) use properties::TEXTS;
pub use value::RawValue;
