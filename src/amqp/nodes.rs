//! Which node of a cluster is asked, and which one next. Where there is one URL there is nothing to choose.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use secrecy::ExposeSecret as _;

use crate::backoff::Backoff;
use crate::config::RabbitSettings;

/// A node that did not answer is asked after the others until then.
#[derive(Debug, Default)]
struct Rest {
    pauses: Backoff,
    until: Option<Instant>,
}

/// What this process knows of nodes, by host and port: what one connection has waited for in vain the next one needn't.
static RESTS: Mutex<BTreeMap<String, Rest>> = Mutex::new(BTreeMap::new());

/// Connections of a process begin with one node after the other, and processes anywhere.
static TURN: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(0);
    AtomicUsize::new(usize::try_from(random >> 33).unwrap_or_default())
});

fn rests() -> MutexGuard<'static, BTreeMap<String, Rest>> {
    RESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node, with the settings that lead to it alone.
#[derive(Debug)]
pub(super) struct Node {
    /// Host and port.
    pub(super) name: String,
    pub(super) settings: RabbitSettings,
}

impl Node {
    /// All of them, in the order in which they are asked.
    pub(super) fn in_turn(settings: &RabbitSettings) -> Vec<Self> {
        let nodes: Vec<Self> =
            settings.each_node().map(|settings| Self { name: name(&settings), settings }).collect();
        if nodes.len() < 2 {
            return nodes;
        }
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let rests = rests();
        order(nodes, turn, Instant::now(), |node| rests.get(&node.name)?.until)
    }

    /// It let us in.
    pub(super) fn answered(&self) {
        rests().remove(&self.name);
    }

    /// It did not: others go first for a while, and longer each time.
    pub(super) fn failed(&self) {
        let mut rests = rests();
        let rest = rests.entry(self.name.clone()).or_default();
        rest.until = Some(Instant::now() + rest.pauses.next());
    }
}

fn name(settings: &RabbitSettings) -> String {
    let url = url::Url::parse(settings.url.expose_secret()).ok();
    let host = url.as_ref().and_then(|url| Some((url.host_str()?, url.port())));
    match host {
        Some((host, Some(port))) => format!("{host}:{port}"),
        Some((host, None)) => host.to_owned(),
        None => "localhost".to_owned(),
    }
}

/// From the one whose turn it is on; those that rest come last, and among them first who has rested most.
fn order<T>(
    mut nodes: Vec<T>,
    turn: usize,
    now: Instant,
    rests_until: impl Fn(&T) -> Option<Instant>,
) -> Vec<T> {
    let first = turn % nodes.len().max(1);
    nodes.rotate_left(first);
    nodes.sort_by_key(|node| rests_until(node).filter(|until| *until > now));
    nodes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_node_has_its_turn_and_one_that_rests_comes_last() {
        let now = Instant::now();
        let of = |turn, resting: &[(&str, u64)]| {
            order(vec!["a", "b", "c"], turn, now, |node| {
                let rest = resting.iter().find(|(name, _)| name == node);
                rest.map(|(_, seconds)| now + Duration::from_secs(*seconds))
            })
        };
        assert_eq!(of(0, &[]), ["a", "b", "c"]);
        assert_eq!(of(1, &[]), ["b", "c", "a"]);
        assert_eq!(of(5, &[]), ["c", "a", "b"]);
        assert_eq!(of(0, &[("a", 1)]), ["b", "c", "a"]);
        assert_eq!(of(2, &[("c", 9), ("a", 1)]), ["b", "a", "c"]);
        // It has rested.
        assert_eq!(of(0, &[("a", 0)]), ["a", "b", "c"]);
        assert!(order(Vec::<()>::new(), 3, now, |_| None).is_empty());
    }
}
