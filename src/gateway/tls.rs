//! TLS on the clients' side.

#[cfg(feature = "tls")]
use std::time::Duration;

use tokio_util::sync::CancellationToken;

#[cfg(feature = "tls")]
pub(super) use crate::tls::Server as Tls;

/// The configuration refuses it.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Copy)]
pub(super) enum Tls {}

/// How often the files of the certificate are read.
#[cfg(feature = "tls")]
const RENEW: Duration = Duration::from_secs(10);

/// Shows clients what the files hold, until `stop`.
#[cfg(feature = "tls")]
pub(super) async fn renew(tls: Tls, stop: CancellationToken) {
    let mut failing = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RENEW) => {}
        }
        let renewed = tls.renew().await;
        match &renewed {
            Ok(true) => tracing::info!("clients are shown another certificate from now on"),
            Ok(false) => {}
            Err(error) if !failing => {
                tracing::error!(%error, "gateway.listen_tls: clients are shown the certificate that was there before");
            }
            Err(error) => tracing::debug!(%error, "gateway.listen_tls can't be read"),
        }
        failing = renewed.is_err();
    }
}

#[cfg(not(feature = "tls"))]
pub(super) async fn renew(tls: Tls, _: CancellationToken) {
    match tls {}
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(super) fn new(_: &crate::tls::TlsSettings) -> Result<Self, crate::tls::TlsError> {
        Err(crate::tls::TlsError::NotBuilt)
    }
}
