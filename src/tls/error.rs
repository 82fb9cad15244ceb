//! What goes wrong before and around a handshake.

use std::path::PathBuf;
use std::time::Duration;

/// What a program without TLS says.
pub(crate) const NOT_BUILT: &str = "needs TLS, and this program is built without the feature `tls`";

/// What is wrong with a file; nothing of what it holds.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub(crate) struct FileError {
    /// `ca`, `cert` or `key`.
    pub(crate) setting: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) what: String,
}

/// Why no connection was made as it must be made.
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) enum TlsError {
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
    /// What is refused, and both ways out.
    #[error("{0}")]
    Refused(String),
    #[error("{NOT_BUILT}")]
    NotBuilt,
}
