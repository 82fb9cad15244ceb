//! Acknowledgements of planted bugs; nothing without the feature `plants`.

use lapin::Channel;

use crate::settlement::Ack;

/// Up to the last settled delivery, whatever lies before it.
pub(crate) fn up_to_the_last(tags: &[u64]) -> Vec<Ack> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static TOP: AtomicU64 = AtomicU64::new(0);
    let Some(&last) = tags.iter().max() else { return Vec::new() };
    // Twice the same tag would close the channel, and hide the loss.
    if TOP.fetch_max(last, Ordering::SeqCst) >= last { Vec::new() } else { vec![Ack::UpTo(last)] }
}

/// Remembers the newest channel.
#[cfg(not(feature = "plants"))]
#[inline(always)]
pub(crate) fn remember(_: &Channel) {}

/// Sends an acknowledgement of a channel that is gone on the newest one.
#[cfg(not(feature = "plants"))]
#[inline(always)]
pub(crate) async fn on_the_successor(_: Ack) {}

#[cfg(feature = "plants")]
static NEWEST: std::sync::Mutex<Option<Channel>> = std::sync::Mutex::new(None);

/// Remembers the newest channel.
#[cfg(feature = "plants")]
pub(crate) fn remember(channel: &Channel) {
    *NEWEST.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(channel.clone());
}

/// Sends an acknowledgement of a channel that is gone on the newest one.
#[cfg(feature = "plants")]
pub(crate) async fn on_the_successor(ack: Ack) {
    if !crate::plant::planted("ack_on_stale_channel") {
        return;
    }
    let newest = NEWEST.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let (tag, multiple) = match ack {
        Ack::UpTo(tag) => (tag, true),
        Ack::One(tag) => (tag, false),
    };
    if let Some(channel) = newest {
        let _ = channel.basic_ack(tag, lapin::options::BasicAckOptions { multiple }).await;
    }
}
