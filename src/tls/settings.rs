//! `tls = { ca, cert, key, server_name }` of a server.

use std::path::PathBuf;

use super::FileError;

/// How a server proves who it is, and how this program does. The files are PEM, and read again for each connection: certificates that
/// live for an hour are renewed by replacing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The authorities that may vouch for the server; by default those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// This program's own certificate, and those between it and an authority that the server trusts.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`, not encrypted.
    pub key: Option<PathBuf>,
    /// The name that stands in the server's certificate, where that is not the host of its URL.
    pub server_name: Option<String>,
}

impl TlsSettings {
    /// All that is wrong with the files.
    #[cfg_attr(not(feature = "tls"), allow(clippy::unused_self))]
    pub(crate) fn problems(&self) -> Vec<FileError> {
        #[cfg(feature = "tls")]
        return super::Files::read(self).err().unwrap_or_default();
        #[cfg(not(feature = "tls"))]
        Vec::new()
    }
}
