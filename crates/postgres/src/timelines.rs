//! The newest timeline that this process has seen of each server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The newest timeline of each server. After a failover the old primary may come back at its address; writes there would be lost. It does
/// not know its successor, but this process does.
#[derive(Clone, Debug, Default)]
pub struct Timelines(Arc<Mutex<HashMap<String, u32>>>);

impl Timelines {
    /// Returns whether no timeline was recorded yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Records the timeline in an epoch (`oncely.epoch()`); returns false if a newer one of the same server was recorded before.
    pub fn record_epoch(&self, epoch: &str) -> bool {
        // System identifier, timeline in eight hexadecimal digits, and more.
        let mut parts = epoch.splitn(3, '-');
        let (Some(server), Some(Ok(timeline))) =
            (parts.next(), parts.next().map(|timeline| u32::from_str_radix(timeline, 16)))
        else {
            return true;
        };
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match newest.get_mut(server) {
            Some(seen) if *seen > timeline => false,
            Some(seen) => {
                *seen = timeline;
                true
            }
            None => {
                newest.insert(server.to_owned(), timeline);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_timeline_of_the_same_server_is_not_admitted() {
        let timelines = Timelines::default();
        assert!(timelines.record_epoch("7001-00000001-5-a"));
        assert!(timelines.record_epoch("7001-0000000A-5-a"));
        assert!(!timelines.record_epoch("7001-00000002-5-a"), "hexadecimal, not text");
        assert!(timelines.record_epoch("7001-0000000A-5-b"), "a restored history on the same timeline");
        assert!(timelines.record_epoch("7002-00000001-5-a"), "another server");
    }
}
