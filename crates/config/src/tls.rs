//! `tls` and `allow_plaintext` of a server's table.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use oncely_net::tls::{self, NOT_BUILT, TlsError, TlsSettings};

/// Certificates for a connection.
#[derive(Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TlsTable {
    /// File (PEM) of the authorities that may vouch for the server; by default those that this machine trusts.
    pub(crate) ca: Option<PathBuf>,
    /// File (PEM) of our certificate.
    pub(crate) cert: Option<PathBuf>,
    /// File (PEM) of its key.
    pub(crate) key: Option<PathBuf>,
    /// Name in the server's certificate, where it is not the URL's host.
    pub(crate) server_name: Option<String>,
}

/// Certificate of a listener.
#[derive(Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServedTlsTable {
    /// File (PEM) of the certificate, with those between it and an authority.
    pub(crate) cert: Option<PathBuf>,
    /// File (PEM) of its key.
    pub(crate) key: Option<PathBuf>,
}

impl TlsTable {
    /// Checks the files and the server's name, and converts the table. `place`: name of the table.
    pub(crate) fn into_settings(self, place: &str, problems: &mut Problems) -> TlsSettings {
        let Self { ca, cert, key, server_name } = self;
        let settings = TlsSettings { ca, cert, key, server_name };
        if !cfg!(feature = "tls") {
            problems.add(place, NOT_BUILT);
        }
        match (&settings.cert, &settings.key) {
            (Some(_), None) => {
                problems.add(format!("{place}.key"), "is missing: cert is of no use without its key");
            }
            (None, Some(_)) => {
                problems.add(format!("{place}.cert"), "is missing: key is of no use without its certificate");
            }
            _ => {}
        }
        if let Some(name) = &settings.server_name
            && !is_server_name(name)
        {
            problems
                .add(format!("{place}.server_name"), "is not the name of a machine, as certificates have it");
        }
        check_files(&settings, place, problems);
        settings
    }
}

impl ServedTlsTable {
    /// Checks the files, both of which are required, and converts the table. `place`: name of the table.
    pub(crate) fn into_settings(self, place: &str, problems: &mut Problems) -> TlsSettings {
        let settings = TlsSettings { cert: self.cert, key: self.key, ..TlsSettings::default() };
        if !cfg!(feature = "tls") {
            problems.add(place, NOT_BUILT);
        }
        for (name, file) in [("cert", &settings.cert), ("key", &settings.key)] {
            if file.is_none() {
                problems.add(
                    format!("{place}.{name}"),
                    "is missing: clients are shown a certificate, and it has a key",
                );
            }
        }
        check_files(&settings, place, problems);
        settings
    }
}

fn check_files(settings: &TlsSettings, place: &str, problems: &mut Problems) {
    for error in tls::check_files(settings) {
        problems.add(format!("{place}.{}", error.setting), error.to_string());
    }
}

/// Reports the error of a connection with the URL at `place` that is not allowed. `tls` is `None` if the URL is invalid.
pub(super) fn report_refused_connection<T>(
    tls: Option<Result<T, TlsError>>,
    place: &str,
    problems: &mut Problems,
) {
    if let Some(Err(error)) = tls {
        problems.add(place, error.to_string());
    }
}

/// Returns whether a text may be the name of a server in a certificate.
fn is_server_name(name: &str) -> bool {
    #[cfg(feature = "tls")]
    return rustls::pki_types::ServerName::try_from(name).is_ok();
    #[cfg(not(feature = "tls"))]
    return !name.is_empty();
}
