//! The store of one consumer's runs. Each kind of statement queues separately.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::group::{CallGroup, GroupLimits};
use super::sessions::{LeaseSessions, statement};
use super::trail::RunTrail;
use crate::error::StoreError;
use crate::lease_id::{BegunStep, LeaseId, RefusedCall, RenewOutcome};
use crate::step::Step;
use crate::store::StepStore;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_failpoint::step as at;
use oncely_postgres::{self as pg, LastOutage, LeaseCompletion, Session};

/// Renewals come at any time and are not urgent: each waits a little for others.
const RENEWING: GroupLimits = GroupLimits { loops: 2, most: 1_024, linger: Duration::from_millis(100) };

/// Computes the mirror tag of a completed key, for an epoch of the database.
pub type TagFn = dyn Fn(&str, &Identity, Option<&Fingerprint>) -> [u8; 16] + Send + Sync;

/// A finished run that writes nothing in PostgreSQL itself.
pub struct RunCompletion {
    #[doc(hidden)]
    pub held: LeaseId,
    /// Fingerprint of the payload, for the mirror.
    #[doc(hidden)]
    pub fingerprint: Option<Fingerprint>,
    #[doc(hidden)]
    pub response: Option<Value>,
    #[doc(hidden)]
    pub refused: bool,
    #[doc(hidden)]
    pub trail: Arc<RunTrail>,
}

impl RunCompletion {
    fn as_row(&self) -> LeaseCompletion<'_> {
        LeaseCompletion {
            held: self.held.as_row(),
            response: self.response.as_ref(),
            refused: self.refused,
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
    renewing: CallGroup<LeaseId, RenewOutcome>,
    finishing: CallGroup<RunCompletion, ()>,
    /// The times at which PostgreSQL could not be reached by any of them.
    #[doc(hidden)]
    pub away: LastOutage,
}

impl GroupedStore {
    /// Opens the store. `groups` is the number of concurrent groups of completions, `lease` the duration of a renewed lease; `tag` is set
    /// if there is a mirror.
    #[doc(hidden)]
    pub fn open(
        [own, renewals, writes]: [Arc<LeaseSessions>; 3],
        away: LastOutage,
        groups: usize,
        lease: Duration,
        tag: Option<Arc<TagFn>>,
    ) -> Self {
        let renewing = CallGroup::start(
            &renewals,
            RENEWING,
            Arc::new(move |leases: Vec<Arc<LeaseId>>| {
                statement(move |connection| {
                    Box::pin(async move {
                        let held: Vec<pg::LeaseIdRef<'_>> = leases.iter().map(|held| held.as_row()).collect();
                        pg::renew_leases(connection, &held, lease).await
                    })
                })
            }),
            None,
        );
        let finishing = CallGroup::start(
            &own,
            GroupLimits::at_once(groups),
            Arc::new(move |ends: Vec<Arc<RunCompletion>>| {
                let tag = tag.clone();
                Box::new(move |session| Box::pin(complete(session, ends, tag)))
            }),
            None,
        );
        Self { own, renewals, writes, renewing, finishing, away }
    }

    /// Completes a key, in one commit with others.
    #[doc(hidden)]
    pub async fn complete(&self, end: RunCompletion) -> Result<(), sqlx::Error> {
        self.finishing.submit(end).await
    }

    #[doc(hidden)]
    pub async fn close(&self) {
        for sessions in [&self.own, &self.renewals, &self.writes] {
            sessions.close().await;
        }
    }

    /// Runs a statement of the protocol once.
    async fn run_statement<T: Send + 'static>(
        &self,
        said: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        self.own.run_once(statement(said)).await.map_err(|error| self.own.judge(asked, error).into())
    }
}

impl StepStore for GroupedStore {
    /// The duration is ignored: all leases of a consumer last as long as given to [`GroupedStore::open`].
    async fn renew(&self, held: &[LeaseId], _: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        at("lease.renew.before");
        let asked = Instant::now();
        let renewed = try_join_all(held.iter().map(|held| self.renewing.submit(held.clone()))).await;
        renewed.map_err(|error| self.renewals.judge(asked, error).into())
    }

    async fn begin_step(
        &self,
        held: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        let (held, name, rule) = (held.clone(), step.name(), step.repeat().rule());
        self.run_statement(move |connection| {
            Box::pin(async move {
                at("lease.begin.before");
                let begun = pg::begin_step(connection, held.as_row(), name, rule, call, lease).await;
                at("lease.begin.after");
                begun
            })
        })
        .await
    }

    async fn checkpoint(
        &self,
        held: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let (held, step, result) = (held.clone(), step.to_owned(), result.clone());
        self.run_statement(move |connection| {
            Box::pin(async move {
                at("lease.checkpoint.before");
                let stored = pg::checkpoint(connection, held.as_row(), &step, &result, false, lease).await;
                at("lease.checkpoint.after");
                stored
            })
        })
        .await
    }

    async fn refuse_step(
        &self,
        held: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        let (held, step) = (held.clone(), step.to_owned());
        self.run_statement(move |connection| {
            Box::pin(async move {
                pg::refuse_step(connection, held.as_row(), &step, refused, "refused", lease).await
            })
        })
        .await
    }
}

async fn complete(
    session: &mut Session,
    ends: Vec<Arc<RunCompletion>>,
    tag: Option<Arc<TagFn>>,
) -> Result<Vec<()>, sqlx::Error> {
    let epoch = &session.cell.epoch;
    let tags: Option<Vec<u8>> = tag.map(|tag| {
        ends.iter().flat_map(|end| tag(epoch, &end.held.identity, end.fingerprint.as_ref())).collect()
    });
    let finished: Vec<LeaseCompletion<'_>> = ends.iter().map(|end| end.as_row()).collect();
    pg::complete_leases(&mut session.connection, &finished, tags.as_deref()).await?;
    Ok(vec![(); finished.len()])
}
