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

use super::{Files, TlsError, TlsSettings, provider};

/// This program's end of handshakes. Its certificate can be replaced while it is at work.
#[derive(Clone)]
pub(crate) struct Server {
    acceptor: TlsAcceptor,
    settings: TlsSettings,
    shown: Arc<Shown>,
}

/// The certificate that clients are shown now.
#[derive(Debug)]
struct Shown(Mutex<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // Every change leaves it whole.
        Some(Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Server {
    /// Reads the files of `cert` and `key`. Blocks: they are small.
    ///
    /// # Errors
    /// When there is something wrong with them.
    pub(crate) fn new(settings: &TlsSettings) -> Result<Self, TlsError> {
        let shown = Arc::new(Shown(Mutex::new(read(settings)?)));
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        // The provider knows them all.
        let builder = builder.map_err(|_| TlsError::NotBuilt)?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::<Shown>::clone(&shown));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), settings: settings.clone(), shown })
    }

    /// Reads the files again: connections from now on get what they hold. True where that is another certificate.
    ///
    /// # Errors
    /// When there is something wrong with them: clients get the former certificate.
    pub(crate) async fn renew(&self) -> Result<bool, TlsError> {
        let settings = self.settings.clone();
        let read = tokio::task::spawn_blocking(move || read(&settings)).await;
        let read = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        let mut shown = self.shown.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_another = shown.cert != read.cert;
        *shown = read;
        Ok(is_another)
    }

    /// Shakes hands with a client.
    ///
    /// # Errors
    /// With what rustls says, as the inner error; [`TlsError`] where the client says nothing.
    pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        limit: Duration,
    ) -> io::Result<TlsStream<S>> {
        match tokio::time::timeout(limit, self.acceptor.accept(socket)).await {
            Ok(shaken) => shaken,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, TlsError::ClientSilent(limit))),
        }
    }
}

fn read(settings: &TlsSettings) -> Result<Arc<CertifiedKey>, TlsError> {
    let files = Files::read(settings).map_err(TlsError::Files)?;
    // The configuration has both, or none of it is read.
    let identity = files.identity.ok_or(TlsError::NotBuilt)?;
    let key = CertifiedKey::from_der(identity.chain, identity.key, &provider());
    // It was looked at when it was read.
    Ok(Arc::new(key.map_err(|_| TlsError::NotBuilt)?))
}
