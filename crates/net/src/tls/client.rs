//! Handshakes with servers. PostgreSQL's driver, the HTTP client and the exporter of traces make their own, with the same files.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{TlsError, TlsFiles, TlsSettings, provider};

/// Client side of a handshake, with the files read when it was created: for one connection.
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: Option<String>,
}

impl TlsClient {
    /// Reads the files, on a thread for blocking work.
    ///
    /// # Errors
    /// If the files can't be used.
    pub async fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let (settings, name) = (settings.clone(), settings.server_name.clone());
        let config = tokio::task::spawn_blocking(move || build_client_config(&settings)).await;
        let config = config.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// Makes the handshake with the server `host`, or with the configured server name.
    ///
    /// # Errors
    /// If the handshake fails: rustls's error as the inner error. If the server does not answer within `limit`: [`TlsError`].
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        socket: S,
        limit: Duration,
    ) -> io::Result<TlsStream<S>> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.name.as_deref().unwrap_or(host);
        let server = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::other(TlsError::Name(name.to_owned())))?;
        let handshake = TlsConnector::from(Arc::clone(&self.config)).connect(server, socket);
        match tokio::time::timeout(limit, handshake).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, TlsError::Silent(limit))),
        }
    }
}

/// Builds the configuration of a client. Blocks while it reads the files.
pub fn build_client_config(settings: &TlsSettings) -> Result<ClientConfig, TlsError> {
    let files = TlsFiles::read(settings).map_err(TlsError::Files)?;
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(load_roots(&files)?);
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    // The provider supports all default versions.
    let builder = builder.map_err(|_| TlsError::NotBuilt)?.with_root_certificates(store);
    match files.identity {
        None => Ok(builder.with_no_client_auth()),
        // Checked when it was read.
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain, identity.key).map_err(|_| TlsError::NotBuilt)
        }
    }
}

/// Returns the configured authorities, or loads those of this machine.
fn load_roots(files: &TlsFiles) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match &files.ca {
        Some(ca) => Ok(ca.certificates.clone()),
        None => {
            let certificates = rustls_native_certs::load_native_certs().certs;
            if certificates.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(certificates) }
        }
    }
}
