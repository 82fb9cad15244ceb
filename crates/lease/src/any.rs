//! A lease store behind a type-erased interface.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use super::claim::{Claim, ClaimOutcome};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome};
use super::step::Step;
use super::store::{Facts, LeaseStore, StepStore};
use oncely_core::identity::Identity;

type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// [`LeaseStore`] as an object-safe trait.
trait ErasedStore: Send + Sync {
    fn facts(&self) -> Facts;
    fn claim<'a>(&'a self, claim: &'a Claim<'a>) -> StoreFuture<'a, ClaimOutcome>;
    fn renew<'a>(&'a self, lease_ids: &'a [LeaseId], lease: Duration) -> StoreFuture<'a, Vec<RenewOutcome>>;
    fn begin_step<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a Step,
        call: Uuid,
        lease: Duration,
    ) -> StoreFuture<'a, BegunStep>;
    fn checkpoint<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a str,
        result: &'a Value,
        lease: Duration,
    ) -> StoreFuture<'a, ()>;
    fn refuse_step<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a str,
        refused: RefusedCall,
        lease: Duration,
    ) -> StoreFuture<'a, u32>;
    fn complete<'a>(&'a self, lease_id: &'a LeaseId, response: Option<&'a Value>) -> StoreFuture<'a, ()>;
    fn fail<'a>(&'a self, lease_id: &'a LeaseId, failure: &'a Failure<'a>) -> StoreFuture<'a, FailOutcome>;
    fn release<'a>(&'a self, lease_id: &'a LeaseId) -> StoreFuture<'a, bool>;
    fn look_up<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, Option<KeySnapshot>>;
}

impl<S: LeaseStore> ErasedStore for S {
    fn facts(&self) -> Facts {
        LeaseStore::facts(self)
    }

    fn claim<'a>(&'a self, claim: &'a Claim<'a>) -> StoreFuture<'a, ClaimOutcome> {
        Box::pin(LeaseStore::claim(self, claim))
    }

    fn renew<'a>(&'a self, lease_ids: &'a [LeaseId], lease: Duration) -> StoreFuture<'a, Vec<RenewOutcome>> {
        Box::pin(StepStore::renew(self, lease_ids, lease))
    }

    fn begin_step<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a Step,
        call: Uuid,
        lease: Duration,
    ) -> StoreFuture<'a, BegunStep> {
        Box::pin(StepStore::begin_step(self, lease_id, step, call, lease))
    }

    fn checkpoint<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a str,
        result: &'a Value,
        lease: Duration,
    ) -> StoreFuture<'a, ()> {
        Box::pin(StepStore::checkpoint(self, lease_id, step, result, lease))
    }

    fn refuse_step<'a>(
        &'a self,
        lease_id: &'a LeaseId,
        step: &'a str,
        refused: RefusedCall,
        lease: Duration,
    ) -> StoreFuture<'a, u32> {
        Box::pin(StepStore::refuse_step(self, lease_id, step, refused, lease))
    }

    fn complete<'a>(&'a self, lease_id: &'a LeaseId, response: Option<&'a Value>) -> StoreFuture<'a, ()> {
        Box::pin(LeaseStore::complete(self, lease_id, response))
    }

    fn fail<'a>(&'a self, lease_id: &'a LeaseId, failure: &'a Failure<'a>) -> StoreFuture<'a, FailOutcome> {
        Box::pin(LeaseStore::fail(self, lease_id, failure))
    }

    fn release<'a>(&'a self, lease_id: &'a LeaseId) -> StoreFuture<'a, bool> {
        Box::pin(LeaseStore::release(self, lease_id))
    }

    fn look_up<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, Option<KeySnapshot>> {
        Box::pin(LeaseStore::look_up(self, identity))
    }
}

/// A store of any type, for code without a type parameter. Clones share one store.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn ErasedStore>);

impl AnyStore {
    /// Wraps a store.
    pub fn new(store: impl LeaseStore) -> Self {
        Self(Arc::new(store))
    }
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyStore").field("facts", &self.0.facts()).finish_non_exhaustive()
    }
}

impl StepStore for AnyStore {
    async fn renew(&self, lease_ids: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        self.0.renew(lease_ids, lease).await
    }

    async fn begin_step(
        &self,
        lease_id: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        self.0.begin_step(lease_id, step, call, lease).await
    }

    async fn checkpoint(
        &self,
        lease_id: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.0.checkpoint(lease_id, step, result, lease).await
    }

    async fn refuse_step(
        &self,
        lease_id: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        self.0.refuse_step(lease_id, step, refused, lease).await
    }
}

impl LeaseStore for AnyStore {
    fn facts(&self) -> Facts {
        self.0.facts()
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        self.0.claim(claim).await
    }

    async fn complete(&self, lease_id: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        self.0.complete(lease_id, response).await
    }

    async fn fail(&self, lease_id: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        self.0.fail(lease_id, failure).await
    }

    async fn release(&self, lease_id: &LeaseId) -> Result<bool, StoreError> {
        self.0.release(lease_id).await
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        self.0.look_up(identity).await
    }
}
