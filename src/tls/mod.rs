//! TLS to the servers: with which files, when there must be some, and why a server and this program did not trust each other.

#[cfg(feature = "tls")]
mod client;
mod error;
mod fault;
#[cfg(feature = "tls")]
mod files;
mod plaintext;
#[cfg(feature = "tls")]
mod provider;
#[cfg(all(feature = "tls", feature = "gateway"))]
mod server;
mod settings;

#[cfg(feature = "tls")]
pub(crate) use client::{Client, client_config};
pub(crate) use error::{FileError, NOT_BUILT, TlsError};
pub use fault::TlsFault;
pub(crate) use fault::fault_of;
#[cfg(feature = "tls")]
pub(crate) use files::Files;
pub(crate) use plaintext::{is_local, of_scheme, refused};
#[cfg(feature = "tls")]
pub(crate) use provider::provider;
#[cfg(all(feature = "tls", feature = "gateway"))]
pub(crate) use server::Server;
pub use settings::TlsSettings;

/// All that is wrong with the files.
#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
pub(crate) fn problems(settings: &TlsSettings) -> Vec<FileError> {
    #[cfg(feature = "tls")]
    return Files::read(settings).err().unwrap_or_default();
    #[cfg(not(feature = "tls"))]
    Vec::new()
}
