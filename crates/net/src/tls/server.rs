//! Handshakes with clients of this program.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{TlsError, TlsFiles, TlsSettings, provider};

/// Server side of handshakes. Its certificate can be replaced while it is at work.
#[derive(Clone)]
pub struct TlsServer {
    acceptor: TlsAcceptor,
    settings: TlsSettings,
    certificate: Arc<CurrentCertificate>,
}

/// The current certificate for clients.
#[derive(Debug)]
struct CurrentCertificate(Mutex<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // Every change leaves it consistent.
        Some(Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl TlsServer {
    /// Loads the files of `cert` and `key`. Blocks: they are small.
    ///
    /// # Errors
    /// If they can't be used.
    pub fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let certificate = Arc::new(CurrentCertificate(Mutex::new(read_certificate(settings)?)));
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        // The provider supports all default versions.
        let builder = builder.map_err(|_| TlsError::NotBuilt)?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::<CurrentCertificate>::clone(&certificate));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), settings: settings.clone(), certificate })
    }

    /// Reads the files again, for new connections. Returns whether the certificate has changed.
    ///
    /// # Errors
    /// If the files can't be used: clients get the previous certificate.
    pub async fn renew(&self) -> Result<bool, TlsError> {
        let settings = self.settings.clone();
        let new = tokio::task::spawn_blocking(move || read_certificate(&settings)).await;
        let new = new.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        let mut certificate = self.certificate.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = certificate.cert != new.cert;
        *certificate = new;
        Ok(has_changed)
    }

    /// Makes the handshake with a client.
    ///
    /// # Errors
    /// If the handshake fails: rustls's error as the inner error. If the client does not answer within `limit`: [`TlsError`].
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        limit: Duration,
    ) -> io::Result<TlsStream<S>> {
        match tokio::time::timeout(limit, self.acceptor.accept(socket)).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, TlsError::ClientSilent(limit))),
        }
    }
}

/// Reads the certificate and its key.
fn read_certificate(settings: &TlsSettings) -> Result<Arc<CertifiedKey>, TlsError> {
    let files = TlsFiles::read(settings).map_err(TlsError::Files)?;
    // The configuration sets both of them, or neither.
    let identity = files.identity.ok_or(TlsError::NotBuilt)?;
    let key = CertifiedKey::from_der(identity.chain, identity.key, &provider());
    // Checked when it was read.
    Ok(Arc::new(key.map_err(|_| TlsError::NotBuilt)?))
}
