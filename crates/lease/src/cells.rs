//! A lease store on any database that supports compare-and-swap of single records.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::check::{check_claim, check_failure, check_json, check_lease, check_step, check_step_name};
use super::claim::{Claim, ClaimOutcome};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome};
use super::micros::micros;
use super::recent::RecentCells;
use super::record::{Record, RecordTime};
use super::step::Step;
use super::store::{Facts, LeaseStore, StepStore};
use oncely_core::identity::Identity;

/// A database with compare-and-swap of single records, as a [`CellStore`] requires. Every other change of a record there must give it a new
/// version.
pub trait Cells: Send + Sync + 'static {
    /// Returns the database's guarantees, including the clock behind [`Cells::now`] and its error.
    fn facts(&self) -> Facts;

    /// Returns the time, in microseconds since 1970.
    fn now(&self) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Reads the current cell; never returns a state older than one returned before.
    fn read(&self, identity: &Identity) -> impl Future<Output = Result<Option<Cell>, StoreError>> + Send;

    /// Replaces the cell of the version `was`, or creates one if `was` is `None` and no cell exists. Must be atomic.
    fn replace(
        &self,
        identity: &Identity,
        was: Option<Uuid>,
        cell: &Cell,
    ) -> impl Future<Output = Result<ReplaceOutcome, StoreError>> + Send;
}

/// A record and the version of its last write.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Unique for each write.
    pub version: Uuid,
    /// The key's record.
    pub record: Record,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplaceOutcome {
    /// The cell was written.
    Done,
    /// The cell that exists instead. It may be the cell that was to be written, if a client library tried twice and the first try had
    /// succeeded.
    Other(Option<Cell>),
}

/// Enough for every real key: each failed try means that another process has succeeded.
const TRIES: usize = 32;

/// A [`LeaseStore`] on [`Cells`]. The holder of a key replaces the cell that it wrote last without reading it first: claim and completion
/// of a run without steps are two writes. Clones share their cache.
#[derive(Clone, Debug)]
pub struct CellStore<C> {
    cells: C,
    recent: RecentCells<Cell>,
}

/// Assumed state of a cell.
enum LikelyCell {
    Unknown,
    Absent,
    Present(Cell),
}

impl<C: Cells> CellStore<C> {
    /// Returns a store on these cells.
    pub fn new(cells: C) -> Self {
        Self { cells, recent: RecentCells::default() }
    }

    /// Returns the cells.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Decides by the likely cell first and writes if the decision changes the record; on a mismatch reads the cell and decides again. A
    /// likely cell leads to nothing but such a conditional write.
    async fn change<T: Send>(
        &self,
        identity: &Identity,
        likely: LikelyCell,
        decide: impl Fn(Option<&Record>, RecordTime) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let (mut known, mut is_likely) = match likely {
            LikelyCell::Unknown => (self.cells.read(identity).await?, false),
            LikelyCell::Absent => (None, true),
            LikelyCell::Present(cell) => (Some(cell), true),
        };
        for _ in 0..TRIES {
            let now =
                RecordTime { at: self.cells.now().await?, grace: micros(self.cells.facts().clock.grace()) };
            let (record, answer) = match decide(known.as_ref().map(|cell| &cell.record), now) {
                Ok((Some(record), answer)) => (record, answer),
                Ok((None, _)) | Err(_) if is_likely => {
                    (known, is_likely) = (self.cells.read(identity).await?, false);
                    continue;
                }
                Ok((None, answer)) => return Ok(answer),
                Err(error) => return Err(error),
            };
            let cell = Cell { version: Uuid::new_v4(), record };
            match self.cells.replace(identity, known.as_ref().map(|cell| cell.version), &cell).await? {
                ReplaceOutcome::Other(there)
                    if there.as_ref().map(|there| there.version) != Some(cell.version) =>
                {
                    (known, is_likely) = (there, false);
                }
                // The second pattern is also reached if the client tried twice and the first try had succeeded.
                ReplaceOutcome::Done | ReplaceOutcome::Other(_) => {
                    if cell.record.is_running() {
                        self.recent.put(identity, cell);
                    }
                    return Ok(answer);
                }
            }
        }
        Err(StoreError::unavailable(anyhow::anyhow!("the key changes faster than it can be asked for")))
    }

    /// Changes the record of a held key, like [`Self::change`]; without a record the lease is lost.
    async fn hold<T: Send>(
        &self,
        held: &LeaseId,
        decide: impl Fn(&Record, i64) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let decide = |known: Option<&Record>, now: RecordTime| decide(known.ok_or(StoreError::Lost)?, now.at);
        let likely = self.recent.take(&held.identity).map_or(LikelyCell::Unknown, LikelyCell::Present);
        self.change(&held.identity, likely, decide).await
    }
}

impl<C: Cells> StepStore for CellStore<C> {
    async fn renew(&self, held: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        check_lease(lease)?;
        let mut renewed = Vec::with_capacity(held.len());
        for held in held {
            let one = self.hold(held, |record, at| Ok(record.renew(held.token, lease, at))).await;
            renewed.push(match one {
                Err(StoreError::Lost) => RenewOutcome::Lost,
                one => one?,
            });
        }
        Ok(renewed)
    }

    async fn begin_step(
        &self,
        held: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let who = (&held.identity, held.token);
        self.hold(held, |record, at| {
            let (record, begun) = record.begin_step(who, step, call, (lease, at))?;
            Ok((Some(record), begun))
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
        check_step_name(step)?;
        check_lease(lease)?;
        check_json("result", result)?;
        self.hold(held, |record, at| Ok((record.checkpoint(held.token, step, result, (lease, at))?, ())))
            .await
    }

    async fn refuse_step(
        &self,
        held: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        self.hold(held, |record, at| record.refuse_step(held.token, step, refused, (lease, at))).await
    }
}

impl<C: Cells> LeaseStore for CellStore<C> {
    fn facts(&self) -> Facts {
        self.cells.facts()
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        check_claim(claim)?;
        // Most keys are new.
        self.change(claim.identity, LikelyCell::Absent, |known, now| Ok(Record::claim(known, claim, now)))
            .await
    }

    async fn complete(&self, held: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        response.map(|response| check_json("response", response)).transpose()?;
        self.hold(held, |record, at| Ok((record.complete(held.token, response, at)?, ()))).await
    }

    async fn fail(&self, held: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        check_failure(failure)?;
        match self.hold(held, |record, at| Ok(record.fail(held.token, failure, at))).await {
            Err(StoreError::Lost) => Ok(FailOutcome::Lost),
            failed => failed,
        }
    }

    async fn release(&self, held: &LeaseId) -> Result<bool, StoreError> {
        match self.hold(held, |record, _| Ok(record.release(held.token))).await {
            Err(StoreError::Lost) => Ok(false),
            released => released,
        }
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let now = self.cells.now().await?;
        let cell = self.cells.read(identity).await?;
        Ok(cell.filter(|cell| cell.record.expires_at() > now).map(|cell| cell.record.known()))
    }
}
