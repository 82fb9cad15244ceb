//! Errors before and around a handshake.

use std::path::PathBuf;
use std::time::Duration;

/// Error text of a program without TLS.
pub const NOT_BUILT: &str = "needs TLS, and this program is built without the feature `tls`";

/// Problem of a file, without its contents.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct FileError {
    /// `ca`, `cert` or `key`.
    pub setting: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) message: String,
}

/// Error of a connection that must be protected by TLS.
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub enum TlsError {
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Files(Vec<FileError>),
    #[error("this machine trusts no authority (no certificates in its store): name one in tls.ca")]
    NoAuthorities,
    #[error("{0:?} can't be the name in a certificate")]
    Name(String),
    #[error("the server accepts connections, and did not answer the TLS handshake within {0:?}")]
    Silent(Duration),
    #[error("the client did not finish the TLS handshake within {0:?}")]
    ClientSilent(Duration),
    #[error("the server answers in plaintext, and not to a TLS handshake")]
    NotTls,
    /// A refused connection, and both remedies.
    #[error("{0}")]
    Refused(String),
    #[error("{NOT_BUILT}")]
    NotBuilt,
}
