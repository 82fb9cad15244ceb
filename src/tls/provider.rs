//! Which implementation of ciphers is used.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// Named wherever one is needed: an embedding program may bring another, and with two there is no default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
