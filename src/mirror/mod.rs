//! What Redis holds, and how little we believe it: written by the relay only, from committed rows only; a hit says
//! "completed, with exactly this payload, of this epoch", everything else says "ask PostgreSQL". Redis belongs to whoever can
//! reach it: a hit is evidence that only the key's owners can have written, never a word of Redis.

mod breaker;
mod client;
mod epoch;
mod error;
mod judge;
mod layout;
mod library;
mod link;
mod reach;
mod removal;
mod sentinel;
mod server;
mod tag;
mod tag_keys;
mod watch;

pub(crate) use breaker::Breaker;
pub(crate) use client::Mirror;
pub(crate) use epoch::{DatabaseStatus, EpochWatch};
pub(crate) use error::MirrorError;
pub(crate) use judge::Found;
pub(crate) use library::{Library, LibraryError, Part};
pub(crate) use sentinel::shown as shown_place;
pub(crate) use server::RedisFacts;
pub use tag::{Tag, TagKey};
pub(crate) use tag_keys::{configured_tag_key, tag_keys};
pub(crate) use watch::MirrorWatch;
