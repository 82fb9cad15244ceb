//! `tls = { ca, cert, key, server_name }` of a server.

use std::path::PathBuf;

/// Certificates of a server and of this program. The files are PEM, and read again for each connection, so that short-lived certificates
/// are renewed by replacing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities that may sign the server's certificate; by default those of this machine.
    pub ca: Option<PathBuf>,
    /// This program's own certificate, and the intermediate certificates up to an authority that the server trusts.
    pub cert: Option<PathBuf>,
    /// Private key of `cert`, not encrypted.
    pub key: Option<PathBuf>,
    /// Name in the server's certificate, if it differs from the host of its URL.
    pub server_name: Option<String>,
}
