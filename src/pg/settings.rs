//! How to reach PostgreSQL.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::tls::TlsSettings;
use crate::url_file::{self, UrlFileError};

/// How to connect.
#[derive(Clone, Debug)]
pub struct PgSettings {
    /// `postgres://user:password@host:port/database`.
    pub url: SecretString,
    /// A file that holds the URL, read again for each connection; `url` is what it held at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates. Where there are some, or the URL's `sslmode` asks for TLS, the server is verified (`verify-full`), always.
    pub tls: Option<TlsSettings>,
    /// Without TLS a connection may go to another machine.
    pub allow_plaintext: bool,
    /// For a connection attempt.
    pub connect_timeout: Duration,
    /// Server-side limit of one statement; a whole batch of SQL-function handlers is one statement.
    pub statement_timeout: Duration,
    /// Server-side limit of waiting for a lock, such as for another worker's claim of the same key.
    pub lock_timeout: Duration,
}

impl PgSettings {
    /// Longer than any statement may take on a server that is there.
    pub(crate) fn client_timeout(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(5)
    }

    /// With the URL that the file holds now, where there is one.
    pub(crate) fn current(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        Ok(match &self.url_file {
            None => Cow::Borrowed(self),
            Some(file) => Cow::Owned(Self { url: url_file::read(file)?, ..self.clone() }),
        })
    }
}
