//! Remembers which node keeps a tenant, and asks for it again after a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::nodes::ClusterNodes;
use oncely_core::identity::IdentityPart;
use oncely_postgres::{TenantNode, describe, find_tenant_nodes, wait_for_answer};

/// Number of tenants that are remembered. Past it, all are asked for again.
const MAX_TENANTS: usize = 100_000;
/// Number of tenants in one question.
const MAX_ASKED: usize = 1_000;
/// Pause after a question that no node answered. Meanwhile messages of unknown tenants go to the configured server.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A question on its way: the connection, if it is still good, and the answer; `None` if no server answers.
type Question = JoinHandle<(Option<PgConnection>, Option<Vec<TenantNode>>)>;

/// Owners of tenants.
pub(super) struct Owners {
    nodes: Arc<ClusterNodes>,
    ttl: Duration,
    application: String,
    by_tenant: HashMap<IdentityPart, (i32, Instant)>,
    /// Tenants that were asked for too long ago.
    stale: HashSet<IdentityPart>,
    connection: Option<PgConnection>,
    question: Option<Question>,
    asked: Vec<IdentityPart>,
    /// Time before which no question is sent.
    not_before: Option<Instant>,
}

impl Owners {
    pub(super) fn new(nodes: Arc<ClusterNodes>, ttl: Duration, application: String) -> Self {
        Self {
            nodes,
            ttl,
            application,
            by_tenant: HashMap::new(),
            stale: HashSet::new(),
            connection: None,
            question: None,
            asked: Vec::new(),
            not_before: None,
        }
    }

    /// Returns the node that keeps a tenant, if that was known within twice the time for which it is remembered. In the second half the next
    /// question includes the tenant. A former node would only be slower, but a mirror entry of its epoch says nothing of the present one.
    pub(super) fn find(&mut self, tenant: &IdentityPart) -> Option<i32> {
        let (node, known_at) = self.by_tenant.get(tenant)?;
        let age = known_at.elapsed();
        if age > self.ttl {
            self.stale.insert(tenant.clone());
        }
        (age <= self.ttl * 2).then_some(*node)
    }

    /// Returns whether a question may be sent now.
    pub(super) fn may_ask(&self) -> bool {
        self.question.is_none() && self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// Returns whether no server answered the last question, a moment ago.
    pub(super) fn is_refused(&self) -> bool {
        self.question.is_none() && self.not_before.is_some_and(|at| at > Instant::now())
    }

    /// Sends a question about these tenants and stale ones, if there are any. Only if [`Owners::may_ask`].
    pub(super) fn ask(&mut self, unknown: impl Iterator<Item = IdentityPart>) {
        let unknown: HashSet<IdentityPart> = unknown.take(MAX_ASKED).collect();
        let stale: Vec<IdentityPart> = self.stale.drain().collect();
        self.asked = unknown.into_iter().chain(stale).take(MAX_ASKED).collect();
        if self.asked.is_empty() {
            return;
        }
        let tenants: Vec<String> = self.asked.iter().map(|tenant| tenant.as_str().to_owned()).collect();
        let (nodes, application) = (Arc::clone(&self.nodes), self.application.clone());
        let connection = self.connection.take();
        self.question =
            Some(tokio::spawn(async move { find(&nodes, &application, connection, &tenants).await }));
    }

    /// Waits for the answer to the question, for ever without one. Returns the tenants that were asked for. Cancel-safe.
    pub(super) async fn answered(&mut self) -> Vec<IdentityPart> {
        let Some(question) = &mut self.question else { return std::future::pending().await };
        let answer = question.await;
        self.question = None;
        let (connection, found) = answer.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => (None, None),
        });
        self.connection = connection;
        let asked = std::mem::take(&mut self.asked);
        match found {
            Some(found) => self.record(&asked, &found),
            None => self.not_before = Some(Instant::now() + RETRY_PAUSE),
        }
        asked
    }

    /// Records an answer. A tenant that it leaves out has no known node.
    fn record(&mut self, asked: &[IdentityPart], found: &[TenantNode]) {
        if self.by_tenant.len() + asked.len() > MAX_TENANTS {
            self.by_tenant.clear();
        }
        let now = Instant::now();
        let found: HashMap<&str, &TenantNode> = found.iter().map(|one| (one.tenant.as_str(), one)).collect();
        for tenant in asked {
            match found.get(tenant.as_str()) {
                Some(at) => {
                    let node = self.nodes.get_or_start(at);
                    self.by_tenant.insert(tenant.clone(), (node.number, now));
                }
                None => {
                    self.by_tenant.remove(tenant);
                }
            }
        }
    }
}

/// Asks the open connection's server, else the first server that answers. All nodes know where the tenants are.
async fn find(
    nodes: &ClusterNodes,
    application: &str,
    connection: Option<PgConnection>,
    tenants: &[String],
) -> (Option<PgConnection>, Option<Vec<TenantNode>>) {
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    let mut open = connection;
    for server in nodes.servers() {
        let mut connection = match open.take() {
            Some(connection) => connection,
            None => match server.connect(application).await {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::debug!(
                        error = describe(&error),
                        "a server did not say which node keeps a tenant"
                    );
                    continue;
                }
            },
        };
        match wait_for_answer(server.client_timeout(), find_tenant_nodes(&mut connection, &tenants)).await {
            Ok(found) => return (Some(connection), Some(found)),
            Err(error) => {
                tracing::debug!(error = describe(&error), "a server did not say which node keeps a tenant")
            }
        }
    }
    tracing::warn!("no server says which nodes keep tenants: messages go to the configured server");
    (None, None)
}
