//! The nodes of a Citus cluster, as one process works with them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use oncely_core::decide::PrecheckMode;
use oncely_mirror::EpochWatch;
use oncely_postgres::{DatabaseClock, NodeAddress, PgSettings, TenantNode, Timelines};

/// Age of the last known epoch from which a node counts as away: it is queried four times a second.
const AWAY_AFTER: Duration = Duration::from_secs(5);

/// A node. Its epoch and clock are its own; its number stays when another server takes over from it.
pub(crate) struct ClusterNode {
    pub(crate) number: i32,
    pub(crate) settings: PgSettings,
    pub(crate) clock: DatabaseClock,
    pub(crate) timelines: Timelines,
    pub(crate) watch: EpochWatch,
    address: NodeAddress,
    began: Instant,
}

impl ClusterNode {
    /// Returns whether the node has not answered for some seconds.
    pub(crate) fn is_away(&self) -> bool {
        self.began.elapsed() > AWAY_AFTER && !self.watch.is_recent(AWAY_AFTER)
    }
}

/// All nodes that keep tenants of this process's messages.
pub(crate) struct ClusterNodes {
    by_number: Mutex<BTreeMap<i32, Arc<ClusterNode>>>,
    /// The server of the configuration: any node.
    any: PgSettings,
    clock: DatabaseClock,
    worker: String,
    /// Mode of the mirror for messages at the node that keeps their tenant, unless their consumer has another one.
    pub(crate) mode: Option<PrecheckMode>,
    stop: CancellationToken,
}

impl ClusterNodes {
    /// Creates the list without any node: they become known with their tenants.
    pub(crate) fn new(
        any: PgSettings,
        clock: DatabaseClock,
        worker: String,
        mode: Option<PrecheckMode>,
        stop: CancellationToken,
    ) -> Self {
        Self { by_number: Mutex::default(), any, clock, worker, mode, stop }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<ClusterNode>>> {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node of a tenant, and begins to watch its epoch if it is new. A changed address is used by connections made from now on.
    pub(crate) fn get_or_start(&self, at: &TenantNode) -> Arc<ClusterNode> {
        let (host, port) = match &self.any.citus {
            Some(citus) => citus.reachable(&at.host, at.port),
            None => (at.host.clone(), at.port),
        };
        let mut by_number = self.lock();
        if let Some(node) = by_number.get(&at.node) {
            node.address.set(host, port);
            return Arc::clone(node);
        }
        tracing::info!(
            node = at.node,
            host,
            port,
            "a node of the cluster keeps tenants of this worker's messages"
        );
        let address = NodeAddress::new(host, port);
        let settings = self.any.at_node(address.clone());
        let clock = DatabaseClock::new(self.clock.now(), Instant::now());
        let timelines = Timelines::default();
        let watch = EpochWatch::start(
            None,
            settings.clone(),
            format!("oncely worker {} epoch", self.worker),
            clock.clone(),
            timelines.clone(),
            self.stop.clone(),
        );
        let node = ClusterNode {
            number: at.node,
            settings,
            clock,
            timelines,
            watch,
            address,
            began: Instant::now(),
        };
        let node = Arc::new(node);
        by_number.insert(at.node, Arc::clone(&node));
        node
    }

    /// Returns a known node; `None` before [`ClusterNodes::get_or_start`].
    pub(crate) fn get(&self, number: i32) -> Option<Arc<ClusterNode>> {
        self.lock().get(&number).map(Arc::clone)
    }

    /// Returns the settings of all servers that know where tenants are, the configured one first.
    pub(crate) fn servers(&self) -> Vec<PgSettings> {
        let known = self.lock();
        let nodes = known.values().filter(|node| !node.is_away()).map(|node| node.settings.clone());
        std::iter::once(self.any.clone()).chain(nodes).collect()
    }

    /// Returns the numbers of the nodes that do not answer.
    pub(crate) fn away(&self) -> Vec<i32> {
        self.lock().values().filter(|node| node.is_away()).map(|node| node.number).collect()
    }

    /// Returns the number of changes of all nodes' epochs.
    pub(crate) fn epoch_changes(&self) -> u64 {
        self.lock().values().map(|node| node.watch.changes()).sum()
    }
}
