//! A store of any type.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use super::claim::{Claim, Claimed};
use super::error::StoreError;
use super::held::{BegunStep, Failed, Failure, Held, Known, Renewed};
use super::store::{Facts, LeaseStore};
use crate::handler::lease::Step;
use crate::identity::Identity;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// [`LeaseStore`] as an object.
trait Erased: Send + Sync {
    fn facts(&self) -> Facts;
    fn claim<'a>(&'a self, claim: &'a Claim<'a>) -> Answer<'a, Claimed>;
    fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Renewed>>;
    fn begin_step<'a>(
        &'a self,
        held: &'a Held,
        step: &'a Step,
        call: Uuid,
        lease: Duration,
    ) -> Answer<'a, BegunStep>;
    fn checkpoint<'a>(
        &'a self,
        held: &'a Held,
        step: &'a str,
        result: &'a Value,
        lease: Duration,
    ) -> Answer<'a, ()>;
    fn refuse_step<'a>(
        &'a self,
        held: &'a Held,
        step: &'a str,
        round: u32,
        lease: Duration,
    ) -> Answer<'a, u32>;
    fn complete<'a>(&'a self, held: &'a Held, response: Option<&'a Value>) -> Answer<'a, ()>;
    fn fail<'a>(&'a self, held: &'a Held, failure: &'a Failure<'a>) -> Answer<'a, Failed>;
    fn release<'a>(&'a self, held: &'a Held) -> Answer<'a, bool>;
    fn look_up<'a>(&'a self, identity: &'a Identity) -> Answer<'a, Option<Known>>;
}

impl<S: LeaseStore> Erased for S {
    fn facts(&self) -> Facts {
        LeaseStore::facts(self)
    }

    fn claim<'a>(&'a self, claim: &'a Claim<'a>) -> Answer<'a, Claimed> {
        Box::pin(LeaseStore::claim(self, claim))
    }

    fn renew<'a>(&'a self, held: &'a [Held], lease: Duration) -> Answer<'a, Vec<Renewed>> {
        Box::pin(LeaseStore::renew(self, held, lease))
    }

    fn begin_step<'a>(
        &'a self,
        held: &'a Held,
        step: &'a Step,
        call: Uuid,
        lease: Duration,
    ) -> Answer<'a, BegunStep> {
        Box::pin(LeaseStore::begin_step(self, held, step, call, lease))
    }

    fn checkpoint<'a>(
        &'a self,
        held: &'a Held,
        step: &'a str,
        result: &'a Value,
        lease: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(LeaseStore::checkpoint(self, held, step, result, lease))
    }

    fn refuse_step<'a>(
        &'a self,
        held: &'a Held,
        step: &'a str,
        round: u32,
        lease: Duration,
    ) -> Answer<'a, u32> {
        Box::pin(LeaseStore::refuse_step(self, held, step, round, lease))
    }

    fn complete<'a>(&'a self, held: &'a Held, response: Option<&'a Value>) -> Answer<'a, ()> {
        Box::pin(LeaseStore::complete(self, held, response))
    }

    fn fail<'a>(&'a self, held: &'a Held, failure: &'a Failure<'a>) -> Answer<'a, Failed> {
        Box::pin(LeaseStore::fail(self, held, failure))
    }

    fn release<'a>(&'a self, held: &'a Held) -> Answer<'a, bool> {
        Box::pin(LeaseStore::release(self, held))
    }

    fn look_up<'a>(&'a self, identity: &'a Identity) -> Answer<'a, Option<Known>> {
        Box::pin(LeaseStore::look_up(self, identity))
    }
}

/// A store of any type, where a type parameter would be in the way. Its copies are one store.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

impl AnyStore {
    /// This store.
    pub fn new(store: impl LeaseStore) -> Self {
        Self(Arc::new(store))
    }
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyStore").field("facts", &self.0.facts()).finish_non_exhaustive()
    }
}

impl LeaseStore for AnyStore {
    fn facts(&self) -> Facts {
        self.0.facts()
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
        self.0.claim(claim).await
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<Renewed>, StoreError> {
        self.0.renew(held, lease).await
    }

    async fn begin_step(
        &self,
        held: &Held,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        self.0.begin_step(held, step, call, lease).await
    }

    async fn checkpoint(
        &self,
        held: &Held,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.0.checkpoint(held, step, result, lease).await
    }

    async fn refuse_step(
        &self,
        held: &Held,
        step: &str,
        round: u32,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        self.0.refuse_step(held, step, round, lease).await
    }

    async fn complete(&self, held: &Held, response: Option<&Value>) -> Result<(), StoreError> {
        self.0.complete(held, response).await
    }

    async fn fail(&self, held: &Held, failure: &Failure<'_>) -> Result<Failed, StoreError> {
        self.0.fail(held, failure).await
    }

    async fn release(&self, held: &Held) -> Result<bool, StoreError> {
        self.0.release(held).await
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<Known>, StoreError> {
        self.0.look_up(identity).await
    }
}
