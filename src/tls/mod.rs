//! TLS to the servers: with which files, when there must be some, and why a server and this program did not trust each other.

#[cfg(feature = "tls")]
mod client;
mod error;
mod fault;
#[cfg(feature = "tls")]
mod files;
mod plaintext;
mod settings;

#[cfg(feature = "tls")]
pub(crate) use client::{Client, client_config, provider, roots};
pub(crate) use error::{FileError, NOT_BUILT, TlsError};
pub use fault::TlsFault;
pub(crate) use fault::fault_of;
#[cfg(feature = "tls")]
pub(crate) use files::Files;
pub(crate) use plaintext::{is_local, of_scheme, refused};
pub use settings::TlsSettings;
