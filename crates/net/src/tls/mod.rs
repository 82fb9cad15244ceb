//! TLS connections: files, when TLS is required, and causes of failed trust.

#[cfg(feature = "tls")]
mod client;
mod error;
mod fault;
#[cfg(feature = "tls")]
mod files;
mod plaintext;
#[cfg(feature = "tls")]
mod provider;
#[cfg(feature = "tls")]
mod server;
mod settings;

#[cfg(feature = "tls")]
pub use client::{TlsClient, build_client_config};
pub use error::{FileError, NOT_BUILT, TlsError};
pub use fault::TlsFault;
pub use fault::classify_fault;
#[cfg(feature = "tls")]
pub use files::TlsFiles;
pub use plaintext::{describe_plaintext_refusal, is_local, tls_for_scheme};
#[cfg(feature = "tls")]
pub use provider::provider;
#[cfg(feature = "tls")]
pub use server::TlsServer;
pub use settings::TlsSettings;

/// Checks the files, and returns all their problems. Blocks while it reads them.
#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
pub fn check_files(settings: &TlsSettings) -> Vec<FileError> {
    #[cfg(feature = "tls")]
    return TlsFiles::read(settings).err().unwrap_or_default();
    #[cfg(not(feature = "tls"))]
    Vec::new()
}
