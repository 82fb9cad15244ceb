//! Implementation of ciphers.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// Returns the implementation of ciphers, which is always named: an embedding program may add another, and with two there is no default.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
