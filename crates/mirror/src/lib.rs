//! The mirror in Redis, and how far it is trusted. It is written by the relay only, from committed rows only. A hit means "completed, with
//! exactly this payload, in this epoch"; any other response means "query PostgreSQL". Every client that reaches Redis can change it, so a
//! hit needs evidence that only the owners of the tag key can have written.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

mod breaker;
mod client;
mod cluster;
mod connect;
mod connection;
mod epoch;
mod error;
mod info;
mod judge;
mod layout;
mod library;
mod removal;
mod sentinel;
mod server;
mod tag;
mod tag_keys;
mod watch;

pub use breaker::Breaker;
pub use client::Mirror;
pub use epoch::{DatabaseStatus, EpochWatch};
pub use error::MirrorError;
pub use info::RedisFacts;
pub use judge::MirrorEntry;
pub use library::{Library, LibraryError, ReplyPart};
pub use sentinel::{SentinelAnswer, format_address};
pub use tag::{Tag, TagKey};
pub use tag_keys::{configured_tag_key, read_tag_keys};
pub use watch::MirrorWatch;
