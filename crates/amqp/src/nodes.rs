//! Choice of a cluster's node for the next connection. With one URL there is nothing to choose.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use secrecy::ExposeSecret as _;

use oncely_config::RabbitSettings;
use oncely_core::backoff::Backoff;

/// Pause of a node that did not answer; it is tried after the others until the end of the pause.
#[derive(Debug, Default)]
struct NodePause {
    backoff: Backoff,
    until: Option<Instant>,
}

/// Pauses by host and port, shared by the connections of this process, so that each failure is waited for only once.
static PAUSES: Mutex<BTreeMap<String, NodePause>> = Mutex::new(BTreeMap::new());

/// Number of the first node: each connection starts with the next one, each process with a random one.
static NEXT_NODE: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(0);
    AtomicUsize::new(usize::try_from(random >> 33).unwrap_or_default())
});

fn lock_pauses() -> MutexGuard<'static, BTreeMap<String, NodePause>> {
    // A panic elsewhere can't leave it inconsistent.
    PAUSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, with settings that contain only its URL.
#[derive(Debug)]
pub(super) struct Node {
    /// Host and port.
    pub(super) name: String,
    pub(super) settings: RabbitSettings,
}

impl Node {
    /// Returns all nodes, in the order in which they are tried. Each call begins with the next node.
    pub(super) fn list_in_turn(settings: &RabbitSettings) -> Vec<Self> {
        let nodes: Vec<Self> =
            settings.each_node().map(|settings| Self { name: node_name(&settings), settings }).collect();
        if nodes.len() < 2 {
            return nodes;
        }
        let turn = NEXT_NODE.fetch_add(1, Ordering::Relaxed);
        let pauses = lock_pauses();
        order_nodes(nodes, turn, Instant::now(), |node| pauses.get(&node.name)?.until)
    }

    /// Ends the node's pause after a successful connection.
    pub(super) fn end_pause(&self) {
        lock_pauses().remove(&self.name);
    }

    /// Pauses the node after a failure, longer each time.
    pub(super) fn pause(&self) {
        let mut pauses = lock_pauses();
        let pause = pauses.entry(self.name.clone()).or_default();
        pause.until = Some(Instant::now() + pause.backoff.next_pause());
    }
}

/// Returns the host and port of a URL.
fn node_name(settings: &RabbitSettings) -> String {
    let url = url::Url::parse(settings.url.expose_secret()).ok();
    let host = url.as_ref().and_then(|url| Some((url.host_str()?, url.port())));
    match host {
        Some((host, Some(port))) => format!("{host}:{port}"),
        Some((host, None)) => host.to_owned(),
        None => "localhost".to_owned(),
    }
}

/// Orders nodes, from the given turn on; paused ones come last, the one with the earliest end first.
fn order_nodes<T>(
    mut nodes: Vec<T>,
    turn: usize,
    now: Instant,
    paused_until: impl Fn(&T) -> Option<Instant>,
) -> Vec<T> {
    let first = turn % nodes.len().max(1);
    nodes.rotate_left(first);
    nodes.sort_by_key(|node| paused_until(node).filter(|until| *until > now));
    nodes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_node_has_its_turn_and_one_that_pauses_comes_last() {
        let now = Instant::now();
        let of = |turn, pausing: &[(&str, u64)]| {
            order_nodes(vec!["a", "b", "c"], turn, now, |node| {
                let pause = pausing.iter().find(|(name, _)| name == node);
                pause.map(|(_, seconds)| now + Duration::from_secs(*seconds))
            })
        };
        assert_eq!(of(0, &[]), ["a", "b", "c"]);
        assert_eq!(of(1, &[]), ["b", "c", "a"]);
        assert_eq!(of(5, &[]), ["c", "a", "b"]);
        assert_eq!(of(0, &[("a", 1)]), ["b", "c", "a"]);
        assert_eq!(of(2, &[("c", 9), ("a", 1)]), ["b", "a", "c"]);
        // The pause is over.
        assert_eq!(of(0, &[("a", 0)]), ["a", "b", "c"]);
        assert!(order_nodes(Vec::<()>::new(), 3, now, |_| None).is_empty());
    }
}
