//! Limits of simultaneous streams, per user and in total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits the simultaneous streams, per user and in total.
pub(crate) struct StreamLimiter {
    per_user: usize,
    total: usize,
    /// Number of streams by user.
    counts: Mutex<HashMap<String, usize>>,
}

/// The permit of one stream, released when dropped.
pub(crate) struct StreamPermit {
    limiter: Arc<StreamLimiter>,
    user: String,
}

impl StreamLimiter {
    /// Creates a limiter of `per_user` streams for each user and `total` streams for all users.
    pub(crate) fn new(per_user: usize, total: usize) -> Arc<Self> {
        Arc::new(Self { per_user, total, counts: Mutex::default() })
    }

    /// Takes a permit for a user; `None` if the user's limit or the total is reached.
    pub(crate) fn take(self: &Arc<Self>, user: &str) -> Option<StreamPermit> {
        let mut counts = self.lock();
        let count = counts.get(user).copied().unwrap_or(0);
        if count >= self.per_user || counts.values().sum::<usize>() >= self.total {
            return None;
        }
        counts.insert(user.to_owned(), count + 1);
        Some(StreamPermit { limiter: Arc::clone(self), user: user.to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // A panic can't leave the map inconsistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.lock();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_their_share() {
        let limiter = StreamLimiter::new(2, 3);
        let (first, second) = (limiter.take("ana").unwrap(), limiter.take("ana").unwrap());
        assert!(limiter.take("ana").is_none());
        let third = limiter.take("bo").unwrap();
        assert!(limiter.take("bo").is_none(), "all are taken");
        drop(first);
        assert!(limiter.take("bo").is_some() && limiter.take("ana").is_some());
        drop((second, third));
        assert!(limiter.lock().is_empty());
    }
}
