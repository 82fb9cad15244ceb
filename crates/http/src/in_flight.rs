//! Serializes requests of one key within this process. A waiting request holds no connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use oncely_core::identity::Identity;

type KeyMutex = tokio::sync::Mutex<()>;

/// The keys with requests at work in this process.
#[derive(Clone, Default)]
pub(super) struct InFlightKeys(Arc<Mutex<HashMap<Identity, Weak<KeyMutex>>>>);

/// The right to query and claim a key.
pub(super) struct KeyTurn {
    identity: Identity,
    keys: InFlightKeys,
    guard: Option<OwnedMutexGuard<()>>,
}

impl InFlightKeys {
    /// Waits until the earlier requests of the key have ended; returns `None` if that takes longer than `until`.
    pub(super) async fn enter(&self, identity: &Identity, until: Instant) -> Option<KeyTurn> {
        let gate = self.get_or_insert_gate(identity);
        let mut turn = KeyTurn { identity: identity.clone(), keys: self.clone(), guard: None };
        turn.guard = Some(tokio::time::timeout_at(until, gate.lock_owned()).await.ok()?);
        Some(turn)
    }

    /// Returns the mutex of a key; inserts one if no request of the key is at work.
    fn get_or_insert_gate(&self, identity: &Identity) -> Arc<KeyMutex> {
        // Every change leaves the map consistent.
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = keys.get(identity).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = Arc::new(KeyMutex::default());
        keys.insert(identity.clone(), Arc::downgrade(&gate));
        gate
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        self.guard = None;
        let mut keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No other request waits for the key.
        if keys.get(&self.identity).is_some_and(|gate| gate.strong_count() == 0) {
            keys.remove(&self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use oncely_core::identity::IdentityPart;

    fn identity(key: &str) -> Identity {
        let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
        Identity { tenant: part("acme"), consumer: part("pay"), key: part(key) }
    }

    #[tokio::test]
    async fn one_at_a_time_for_each_key_and_nothing_is_left() {
        let keys = InFlightKeys::default();
        let soon = || Instant::now() + Duration::from_millis(20);
        let first = keys.enter(&identity("a"), soon()).await.unwrap();
        assert!(keys.enter(&identity("b"), soon()).await.is_some(), "another key");
        assert!(keys.enter(&identity("a"), soon()).await.is_none());
        let waiting = tokio::spawn({
            let keys = keys.clone();
            async move { keys.enter(&identity("a"), Instant::now() + Duration::from_secs(60)).await.is_some() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.unwrap());
        assert_eq!(keys.0.lock().unwrap().len(), 0);
    }
}
