//! `tls = { ca, cert, key, server_name }` of a server.

use std::path::PathBuf;

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
