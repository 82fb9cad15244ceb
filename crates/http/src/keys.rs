//! Stores of a layer's keys.

use super::store::Store;
use oncely_lease::AnyStore;

/// Store of a layer's keys, which also decides the kind of effects.
#[derive(Clone)]
pub(super) enum KeyStore {
    /// Keys are claimed in the transaction of the effect.
    Transactions(Store),
    /// Keys are held under a lease while the handler runs.
    Leases(AnyStore),
}
