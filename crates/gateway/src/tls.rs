//! TLS of the clients' connections.

#[cfg(feature = "tls")]
use std::time::Duration;

use tokio_util::sync::CancellationToken;

#[cfg(feature = "tls")]
pub(super) use oncely_net::tls::TlsServer as Tls;

/// Never constructed: the configuration refuses TLS without the feature.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Copy)]
pub(super) enum Tls {}

/// Interval at which the certificate files are read.
#[cfg(feature = "tls")]
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Reloads the certificate files at intervals until `stop`; a failure is logged, and the previous certificate stays in use.
#[cfg(feature = "tls")]
pub(super) async fn reload_certificates(tls: Tls, stop: CancellationToken) {
    let mut is_failing = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
        }
        let result = tls.renew().await;
        match &result {
            Ok(true) => tracing::info!("loaded a new TLS certificate"),
            Ok(false) => {}
            Err(error) if !is_failing => {
                tracing::error!(%error,
                    "cannot load the TLS certificate of gateway.listen_tls; the previous one stays in use");
            }
            Err(error) => tracing::debug!(%error, "gateway.listen_tls can't be read"),
        }
        is_failing = result.is_err();
    }
}

#[cfg(not(feature = "tls"))]
pub(super) async fn reload_certificates(tls: Tls, _: CancellationToken) {
    match tls {}
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(super) fn load(_: &oncely_net::tls::TlsSettings) -> Result<Self, oncely_net::tls::TlsError> {
        Err(oncely_net::tls::TlsError::NotBuilt)
    }
}
