//! Where a layer keeps its keys.

use super::store::Store;
use crate::lease::AnyStore;

/// Where a layer keeps its keys, and so what its handlers' effects are.
#[derive(Clone)]
pub(super) enum Keys {
    /// In the transaction of the effect.
    Transactions(Store),
    /// Held while the handler runs.
    Leases(AnyStore),
}
