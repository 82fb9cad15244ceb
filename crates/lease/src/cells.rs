//! A lease store on any database that supports compare-and-swap of single records.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::check::{check_claim, check_failure, check_json, check_lease, check_step, check_step_name};
use super::claim::{Claim, ClaimOutcome};
use super::error::StoreError;
use super::lease_id::{BegunStep, FailOutcome, Failure, KeySnapshot, LeaseId, RefusedCall, RenewOutcome};
use super::micros::to_micros;
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

    /// Reads the current cell; `None` if the key has none. Never returns a state older than one returned before.
    fn read(&self, identity: &Identity) -> impl Future<Output = Result<Option<Cell>, StoreError>> + Send;

    /// Replaces the cell if it has the version `expected_version`; creates it if that is `None` and no cell exists. Must be atomic.
    fn replace(
        &self,
        identity: &Identity,
        expected_version: Option<Uuid>,
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

/// Maximum number of tries of a write: each failed one means that another process has written the cell.
const MAX_TRIES: usize = 32;

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
    /// Creates a store on these cells.
    pub fn new(cells: C) -> Self {
        Self { cells, recent: RecentCells::default() }
    }

    /// Returns the cells in which the store keeps its records.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Applies `transition` to the likely cell first, and writes the record that it returns, `None` if nothing changes; on a mismatch reads
    /// the cell and applies it again, [`MAX_TRIES`] times at most. A likely cell leads to nothing but such a conditional write.
    async fn change_record<T: Send>(
        &self,
        identity: &Identity,
        likely: LikelyCell,
        transition: impl Fn(Option<&Record>, RecordTime) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let (mut current, mut is_likely) = match likely {
            LikelyCell::Unknown => (self.cells.read(identity).await?, false),
            LikelyCell::Absent => (None, true),
            LikelyCell::Present(cell) => (Some(cell), true),
        };
        for _ in 0..MAX_TRIES {
            let now = RecordTime {
                at: self.cells.now().await?,
                grace: to_micros(self.cells.facts().clock.grace()),
            };
            let (record, outcome) = match transition(current.as_ref().map(|cell| &cell.record), now) {
                Ok((Some(record), outcome)) => (record, outcome),
                Ok((None, _)) | Err(_) if is_likely => {
                    (current, is_likely) = (self.cells.read(identity).await?, false);
                    continue;
                }
                Ok((None, outcome)) => return Ok(outcome),
                Err(error) => return Err(error),
            };
            let cell = Cell { version: Uuid::new_v4(), record };
            match self.cells.replace(identity, current.as_ref().map(|cell| cell.version), &cell).await? {
                ReplaceOutcome::Other(existing)
                    if existing.as_ref().map(|existing| existing.version) != Some(cell.version) =>
                {
                    (current, is_likely) = (existing, false);
                }
                // The second pattern is also reached if the client tried twice and the first try had succeeded.
                ReplaceOutcome::Done | ReplaceOutcome::Other(_) => {
                    if cell.record.is_running() {
                        self.recent.put(identity, cell);
                    }
                    return Ok(outcome);
                }
            }
        }
        Err(StoreError::unavailable(anyhow::anyhow!("the key changes faster than it can be asked for")))
    }

    /// Changes the record of a held key, like [`Self::change_record`]; without a record the lease is lost.
    async fn change_held_record<T: Send>(
        &self,
        lease_id: &LeaseId,
        transition: impl Fn(&Record, i64) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let transition =
            |record: Option<&Record>, now: RecordTime| transition(record.ok_or(StoreError::Lost)?, now.at);
        let likely = self.recent.take(&lease_id.identity).map_or(LikelyCell::Unknown, LikelyCell::Present);
        self.change_record(&lease_id.identity, likely, transition).await
    }
}

impl<C: Cells> StepStore for CellStore<C> {
    async fn renew(&self, lease_ids: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        check_lease(lease)?;
        let mut outcomes = Vec::with_capacity(lease_ids.len());
        for lease_id in lease_ids {
            let outcome = self
                .change_held_record(lease_id, |record, at| Ok(record.renew(lease_id.token, lease, at)))
                .await;
            outcomes.push(match outcome {
                Err(StoreError::Lost) => RenewOutcome::Lost,
                outcome => outcome?,
            });
        }
        Ok(outcomes)
    }

    async fn begin_step(
        &self,
        lease_id: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let holder = (&lease_id.identity, lease_id.token);
        self.change_held_record(lease_id, |record, at| {
            let (record, begun_step) = record.begin_step(holder, step, call, (lease, at))?;
            Ok((Some(record), begun_step))
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
        check_step_name(step)?;
        check_lease(lease)?;
        check_json("result", result)?;
        self.change_held_record(lease_id, |record, at| {
            Ok((record.checkpoint(lease_id.token, step, result, (lease, at))?, ()))
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
        check_step_name(step)?;
        check_lease(lease)?;
        self.change_held_record(lease_id, |record, at| {
            record.refuse_step(lease_id.token, step, refused, (lease, at))
        })
        .await
    }
}

impl<C: Cells> LeaseStore for CellStore<C> {
    fn facts(&self) -> Facts {
        self.cells.facts()
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        check_claim(claim)?;
        // Most keys are new.
        self.change_record(claim.identity, LikelyCell::Absent, |record, now| {
            Ok(Record::claim(record, claim, now))
        })
        .await
    }

    async fn complete(&self, lease_id: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        response.map(|response| check_json("response", response)).transpose()?;
        self.change_held_record(lease_id, |record, at| {
            Ok((record.complete(lease_id.token, response, at)?, ()))
        })
        .await
    }

    async fn fail(&self, lease_id: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        check_failure(failure)?;
        match self
            .change_held_record(lease_id, |record, at| Ok(record.fail(lease_id.token, failure, at)))
            .await
        {
            Err(StoreError::Lost) => Ok(FailOutcome::Lost),
            result => result,
        }
    }

    async fn release(&self, lease_id: &LeaseId) -> Result<bool, StoreError> {
        match self.change_held_record(lease_id, |record, _| Ok(record.release(lease_id.token))).await {
            Err(StoreError::Lost) => Ok(false),
            result => result,
        }
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let now = self.cells.now().await?;
        let cell = self.cells.read(identity).await?;
        Ok(cell.filter(|cell| cell.record.expires_at() > now).map(|cell| cell.record.to_snapshot()))
    }
}
