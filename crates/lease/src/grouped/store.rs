//! The store of one consumer's runs. Each kind of statement queues separately.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::group::{CallGroup, GroupLimits};
use super::sessions::{LeaseSessions, build_statement};
use super::trail::RunTrail;
use crate::error::StoreError;
use crate::lease_id::{BegunStep, LeaseId, RefusedCall, RenewOutcome};
use crate::step::Step;
use crate::store::StepStore;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_failpoint::step as at;
use oncely_postgres::{self as pg, LastOutage, LeaseCompletion, Session};

/// Limits of a group of renewals, which come at any time and are not urgent: each waits a little for others.
const RENEWAL_LIMITS: GroupLimits =
    GroupLimits { max_statements: 2, max_calls: 1_024, wait: Duration::from_millis(100) };

/// Computes the mirror tag of a completed key, for an epoch of the database.
pub type TagFn = dyn Fn(&str, &Identity, Option<&Fingerprint>) -> [u8; 16] + Send + Sync;

/// A finished run that writes nothing in PostgreSQL itself.
pub struct RunCompletion {
    #[doc(hidden)]
    pub lease_id: LeaseId,
    /// Fingerprint of the payload, for the mirror.
    #[doc(hidden)]
    pub fingerprint: Option<Fingerprint>,
    #[doc(hidden)]
    pub response: Option<Value>,
    #[doc(hidden)]
    pub is_refused: bool,
    #[doc(hidden)]
    pub trail: Arc<RunTrail>,
}

impl RunCompletion {
    fn as_row(&self) -> LeaseCompletion<'_> {
        LeaseCompletion {
            lease: self.lease_id.as_row(),
            response: self.response.as_ref(),
            refused: self.is_refused,
            trace: self.trail.as_trace(),
        }
    }
}

/// The lease store of one consumer.
pub struct GroupedStore {
    /// Sessions for claims, steps and ends: short statements of the protocol.
    #[doc(hidden)]
    pub own: Arc<LeaseSessions>,
    renewals: Arc<LeaseSessions>,
    /// Sessions for handlers' transactions, which may take as long as a run.
    #[doc(hidden)]
    pub writes: Arc<LeaseSessions>,
    renewal_group: CallGroup<LeaseId, RenewOutcome>,
    completion_group: CallGroup<RunCompletion, ()>,
    /// The times at which PostgreSQL could not be reached by any of them.
    #[doc(hidden)]
    pub last_outage: LastOutage,
}

impl GroupedStore {
    /// Opens the store. `groups` is the number of concurrent groups of completions, `lease` the duration of a renewed lease; `tag` is set
    /// if there is a mirror.
    #[doc(hidden)]
    pub fn open(
        [own, renewals, writes]: [Arc<LeaseSessions>; 3],
        last_outage: LastOutage,
        groups: usize,
        lease: Duration,
        tag: Option<Arc<TagFn>>,
    ) -> Self {
        let renewal_group = CallGroup::start(
            &renewals,
            RENEWAL_LIMITS,
            Arc::new(move |leases: Vec<Arc<LeaseId>>| {
                build_statement(move |connection| {
                    Box::pin(async move {
                        let rows: Vec<pg::LeaseIdRef<'_>> =
                            leases.iter().map(|lease_id| lease_id.as_row()).collect();
                        pg::renew_leases(connection, &rows, lease).await
                    })
                })
            }),
            None,
        );
        let completion_group = CallGroup::start(
            &own,
            GroupLimits::new_urgent(groups),
            Arc::new(move |completions: Vec<Arc<RunCompletion>>| {
                let tag = tag.clone();
                Box::new(move |session| Box::pin(complete(session, completions, tag)))
            }),
            None,
        );
        Self { own, renewals, writes, renewal_group, completion_group, last_outage }
    }

    /// Completes a key, in one commit with others.
    #[doc(hidden)]
    pub async fn complete(&self, completion: RunCompletion) -> Result<(), sqlx::Error> {
        self.completion_group.submit(completion).await
    }

    /// Closes the idle sessions of the store.
    #[doc(hidden)]
    pub async fn close(&self) {
        for sessions in [&self.own, &self.renewals, &self.writes] {
            sessions.close().await;
        }
    }

    /// Runs a statement of the protocol once. A fault that keeps it from being answered is reported as a stall.
    async fn run_statement<T: Send + 'static>(
        &self,
        run: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let issued_at = Instant::now();
        self.own
            .run_once(build_statement(run))
            .await
            .map_err(|error| self.own.classify_error(issued_at, error).into())
    }
}

impl StepStore for GroupedStore {
    /// The duration is ignored: all leases of a consumer last as long as given to [`GroupedStore::open`].
    async fn renew(&self, lease_ids: &[LeaseId], _: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        at("lease.renew.before");
        let issued_at = Instant::now();
        let outcomes =
            try_join_all(lease_ids.iter().map(|lease_id| self.renewal_group.submit(lease_id.clone()))).await;
        outcomes.map_err(|error| self.renewals.classify_error(issued_at, error).into())
    }

    async fn begin_step(
        &self,
        lease_id: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        let (lease_id, name, rule) = (lease_id.clone(), step.name(), step.repeat().rule());
        self.run_statement(move |connection| {
            Box::pin(async move {
                at("lease.begin.before");
                let begun_step = pg::begin_step(connection, lease_id.as_row(), name, rule, call, lease).await;
                at("lease.begin.after");
                begun_step
            })
        })
        .await
    }

    async fn checkpoint(
        &self,
        lease_id: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let (lease_id, step, result) = (lease_id.clone(), step.to_owned(), result.clone());
        self.run_statement(move |connection| {
            Box::pin(async move {
                at("lease.checkpoint.before");
                let outcome =
                    pg::checkpoint(connection, lease_id.as_row(), &step, &result, false, lease).await;
                at("lease.checkpoint.after");
                outcome
            })
        })
        .await
    }

    async fn refuse_step(
        &self,
        lease_id: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        let (lease_id, step) = (lease_id.clone(), step.to_owned());
        self.run_statement(move |connection| {
            Box::pin(async move {
                pg::refuse_step(connection, lease_id.as_row(), &step, refused, "refused", lease).await
            })
        })
        .await
    }
}

/// Completes the keys of finished runs in one statement, with their mirror tags if there is a mirror.
async fn complete(
    session: &mut Session,
    completions: Vec<Arc<RunCompletion>>,
    tag: Option<Arc<TagFn>>,
) -> Result<Vec<()>, sqlx::Error> {
    let epoch = &session.cell.epoch;
    let tags: Option<Vec<u8>> = tag.map(|tag| {
        completions
            .iter()
            .flat_map(|completion| tag(epoch, &completion.lease_id.identity, completion.fingerprint.as_ref()))
            .collect()
    });
    let rows: Vec<LeaseCompletion<'_>> = completions.iter().map(|completion| completion.as_row()).collect();
    pg::complete_leases(&mut session.connection, &rows, tags.as_deref()).await?;
    Ok(vec![(); rows.len()])
}
