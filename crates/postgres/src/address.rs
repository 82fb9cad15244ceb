//! PostgreSQL's address, and the protection of connections to it: verified TLS, or plaintext if the settings allow it. One never replaces
//! the other.

use std::str::FromStr as _;

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgSslMode};

use super::settings::PgSettings;
use oncely_net::tls::{self, TlsError, TlsFault, TlsSettings};

/// Connect options and the effective TLS settings; `None` for a connection in plaintext.
pub struct Address {
    options: PgConnectOptions,
    pub tls: Option<TlsSettings>,
}

/// The reason why settings give no connection options.
#[derive(Debug)]
pub enum AddressError {
    /// The driver can't parse the URL.
    Url,
    Tls(TlsError),
}

impl From<AddressError> for sqlx::Error {
    fn from(error: AddressError) -> Self {
        match error {
            // Not the driver's message, which may contain parts of the URL.
            AddressError::Url => {
                let text = "postgres.url is no URL that PostgreSQL's driver understands";
                Self::Io(std::io::Error::new(std::io::ErrorKind::InvalidInput, text))
            }
            AddressError::Tls(error) => Self::Tls(error.into()),
        }
    }
}

impl Address {
    /// Determines the connection options from the settings. Reads no files.
    pub fn from_settings(settings: &PgSettings) -> Result<Self, AddressError> {
        let refused = |reason: String| Err(AddressError::Tls(TlsError::Refused(reason)));
        let options =
            PgConnectOptions::from_str(settings.url.expose_secret()).map_err(|_| AddressError::Url)?;
        let socket = options.get_socket().is_some() || options.get_host().starts_with('/');
        let host = options.get_host().to_owned();
        let tls = merge_files(&settings.url, settings.tls.as_ref());
        let mode = options.get_ssl_mode();
        // Encryption without verification does not protect from a man in the middle: a setting that requires TLS requires full
        // verification.
        let requires_tls = matches!(mode, PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull);
        if !requires_tls && tls.is_none() {
            if !socket && !tls::is_local(&host) && !settings.allow_plaintext {
                return refused(tls::describe_plaintext_refusal(
                    &host,
                    "?sslmode=verify-full behind the URL",
                    "postgres",
                ));
            }
            // Not "prefer", the default: a man in the middle can answer that there is no TLS.
            return Ok(Self { options: options.ssl_mode(PgSslMode::Disable), tls: None });
        }
        if matches!(mode, PgSslMode::Disable | PgSslMode::Allow) {
            return refused(
                "has certificates and an sslmode that uses none: leave one of them out".to_owned(),
            );
        }
        if socket {
            return refused("is a socket of this machine, where there is no TLS: leave it out".to_owned());
        }
        if !cfg!(feature = "tls") {
            return Err(AddressError::Tls(TlsError::NotBuilt));
        }
        let options = options.ssl_mode(PgSslMode::VerifyFull);
        Ok(Self { options, tls: Some(tls.unwrap_or_default()) })
    }

    /// Converts the address to connection options; reads the certificates and the key from their files.
    pub(super) async fn into_options(self) -> sqlx::Result<PgConnectOptions> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls {
            let read = tokio::task::spawn_blocking(move || tls::TlsFiles::read(&tls)).await;
            let files = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            let files = files.map_err(|wrong| sqlx::Error::Tls(TlsError::Files(wrong).into()))?;
            let mut options = self.options;
            if let Some(ca) = files.ca {
                options = options.ssl_root_cert_from_pem(ca.pem);
            }
            if let Some(identity) = files.identity {
                options =
                    options.ssl_client_cert_from_pem(identity.pem).ssl_client_key_from_pem(identity.key_pem);
            }
            return Ok(options);
        }
        Ok(self.options)
    }
}

/// Parses the names of TLS files in a URL's parameters, by libpq's names.
pub fn parse_url_files(url: &SecretString) -> TlsSettings {
    let mut files = TlsSettings::default();
    if let Ok(url) = url::Url::parse(url.expose_secret()) {
        for (name, value) in url.query_pairs() {
            let file = match name.as_ref() {
                "sslrootcert" | "ssl-root-cert" | "ssl-ca" => &mut files.ca,
                "sslcert" | "ssl-cert" => &mut files.cert,
                "sslkey" | "ssl-key" => &mut files.key,
                _ => continue,
            };
            *file = Some(value.into_owned().into());
        }
    }
    files
}

/// Merges the TLS files of a URL and of the settings; the settings take precedence. `None` if neither names any.
fn merge_files(url: &SecretString, settings: Option<&TlsSettings>) -> Option<TlsSettings> {
    let url_files = parse_url_files(url);
    match settings {
        None => Some(url_files).filter(|url_files| *url_files != TlsSettings::default()),
        Some(settings) => Some(TlsSettings {
            ca: settings.ca.clone().or(url_files.ca),
            cert: settings.cert.clone().or(url_files.cert),
            key: settings.key.clone().or(url_files.key),
            server_name: None,
        }),
    }
}

/// Classifies an error as a TLS failure between PostgreSQL and this program; `None` for any other error.
pub fn classify_tls_fault(error: &sqlx::Error, settings: &PgSettings) -> Option<TlsFault> {
    let tls = Address::from_settings(settings).ok().and_then(|address| address.tls);
    let has_certificate = tls.as_ref().is_some_and(|tls| tls.cert.is_some());
    let fault = tls::classify_fault(error, has_certificate);
    if fault.is_some() || tls.is_none() {
        return fault;
    }
    match error {
        // The driver has no error type for a server that declines TLS; its other TLS errors have one.
        sqlx::Error::Tls(_) => Some(TlsFault::NotTls),
        sqlx::Error::Database(error) => {
            // pg_hba.conf has no line for this login and connection, or one that requires another certificate.
            let error = error.try_downcast_ref::<PgDatabaseError>()?;
            let is_authentication = matches!(error.routine(), Some("ClientAuthentication" | "auth_failed"));
            match (error.code(), is_authentication, has_certificate) {
                ("28000", true, false) => Some(TlsFault::ClientCertificateMissing),
                ("28000", true, true) => Some(TlsFault::ClientCertificateRefused),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::settings::HostState;
    use super::*;

    fn address(url: &str, tls: Option<TlsSettings>, allow_plaintext: bool) -> Result<Address, AddressError> {
        let second = Duration::from_secs(1);
        Address::from_settings(&PgSettings {
            url: url.to_owned().into(),
            other_hosts: Vec::new(),
            url_file: None,
            tls,
            allow_plaintext,
            connect_timeout: second,
            statement_timeout: second,
            lock_timeout: second,
            host_state: HostState::default(),
            citus: None,
            node: None,
        })
    }

    #[test]
    fn plaintext_stays_on_this_machine_unless_somebody_says_otherwise() {
        for url in [
            "postgres://u@localhost/d",
            "postgres://u@127.0.0.1/d",
            "postgres://u@[::1]/d",
            "postgres://u@localhost/d?sslmode=prefer",
            "postgres:///d?host=/var/run/postgresql",
        ] {
            let address = address(url, None, false).unwrap();
            assert!(address.tls.is_none(), "{url}");
            assert!(matches!(address.options.get_ssl_mode(), PgSslMode::Disable), "{url}");
        }
        for url in [
            "postgres://u@db/d",
            "postgres://u@10.1.2.3/d?sslmode=prefer",
            "postgres://u@db/d?sslmode=disable",
        ] {
            assert!(
                matches!(address(url, None, false), Err(AddressError::Tls(TlsError::Refused(_)))),
                "{url}"
            );
            assert!(
                matches!(address(url, None, true).unwrap().options.get_ssl_mode(), PgSslMode::Disable),
                "{url}"
            );
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn whatever_asks_for_tls_gets_a_server_that_is_verified() {
        let file = || TlsSettings { ca: Some("ca.pem".into()), ..TlsSettings::default() };
        for (url, tls) in [
            ("postgres://u@db/d?sslmode=require", None),
            ("postgres://u@db/d?sslmode=verify-ca", None),
            ("postgres://u@localhost/d?sslmode=verify-full", None),
            ("postgres://u@db/d", Some(TlsSettings::default())),
            ("postgres://u@localhost/d?sslmode=prefer", Some(file())),
            ("postgres://u@db/d?sslrootcert=ca.pem", None),
        ] {
            let address = address(url, tls, true).unwrap();
            assert!(address.tls.is_some(), "{url}");
            assert!(matches!(address.options.get_ssl_mode(), PgSslMode::VerifyFull), "{url}");
        }
        let both = address("postgres://u@db/d?sslrootcert=other.pem&sslcert=mine.pem", Some(file()), false);
        let tls = both.unwrap().tls.unwrap();
        assert_eq!((tls.ca, tls.cert), (Some("ca.pem".into()), Some("mine.pem".into())));
        for url in ["postgres://u@db/d?sslmode=disable", "postgres:///d?host=/var/run/postgresql"] {
            assert!(address(url, Some(file()), true).is_err(), "{url}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_program_without_tls_says_so() {
        for url in ["postgres://u@db/d?sslmode=require", "postgres://u@localhost/d?sslmode=verify-full"] {
            assert!(matches!(address(url, None, true), Err(AddressError::Tls(TlsError::NotBuilt))), "{url}");
        }
    }
}
