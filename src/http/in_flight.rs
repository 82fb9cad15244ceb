//! Requests of one key in this process: one at a time. Who waits has no connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::identity::Identity;

type Gate = tokio::sync::Mutex<()>;

/// The keys that are at work in this process.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Mutex<HashMap<Identity, Weak<Gate>>>>);

/// The right to look at a key.
pub(super) struct Turn {
    identity: Identity,
    keys: InFlight,
    held: Option<OwnedMutexGuard<()>>,
}

impl InFlight {
    /// Waits for those of the same key that came before; `None` where that takes longer.
    pub(super) async fn enter(&self, identity: &Identity, until: Instant) -> Option<Turn> {
        let gate = self.gate(identity);
        let mut turn = Turn { identity: identity.clone(), keys: self.clone(), held: None };
        turn.held = Some(tokio::time::timeout_at(until, gate.lock_owned()).await.ok()?);
        Some(turn)
    }

    fn gate(&self, identity: &Identity) -> Arc<Gate> {
        // Every change leaves the map whole.
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = keys.get(identity).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = Arc::new(Gate::default());
        keys.insert(identity.clone(), Arc::downgrade(&gate));
        gate
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.held = None;
        let mut keys = self.keys.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else waits, or has come meanwhile.
        if keys.get(&self.identity).is_some_and(|gate| gate.strong_count() == 0) {
            keys.remove(&self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::IdentityPart;

    fn identity(key: &str) -> Identity {
        let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
        Identity { tenant: part("acme"), consumer: part("pay"), key: part(key) }
    }

    #[tokio::test]
    async fn one_at_a_time_for_each_key_and_nothing_is_left() {
        let keys = InFlight::default();
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
