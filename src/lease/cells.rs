//! A store on any database that can replace a record only if it is still the one that was read.

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::check::{check_claim, check_failure, check_json, check_lease, check_step, check_step_name};
use super::claim::{Claim, Claimed};
use super::error::StoreError;
use super::held::{BegunStep, Failed, Failure, Held, Known, Renewed};
use super::micros::micros;
use super::recent::Recent;
use super::record::{Now, Record};
use super::store::{Facts, LeaseStore};
use crate::handler::lease::Step;
use crate::identity::Identity;

/// A database whose single records are replaced by comparing and swapping: what a [`CellStore`] needs, and all that it needs. Whatever else
/// changes a record there gives it another version.
pub trait Cells: Send + Sync + 'static {
    /// What the database promises. Whose clock [`Cells::now`] tells, and how wrong it may be, is part of it.
    fn facts(&self) -> Facts;

    /// The time, in microseconds since 1970.
    fn now(&self) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// What stands there now: never an older state than one that was answered before.
    fn read(&self, identity: &Identity) -> impl Future<Output = Result<Option<Cell>, StoreError>> + Send;

    /// Puts a cell where the one of the version `was` stands; `None`: where none stands. In one step of the database.
    fn replace(
        &self,
        identity: &Identity,
        was: Option<Uuid>,
        cell: &Cell,
    ) -> impl Future<Output = Result<Replaced, StoreError>> + Send;
}

/// A record, and which write of it this is.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Made anew for each write.
    pub version: Uuid,
    /// The key's record.
    pub record: Record,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Replaced {
    /// It stands there.
    Done,
    /// This stands there instead. It may be the cell that was to be written: a client library has tried twice, and the first try had worked.
    Other(Option<Cell>),
}

/// Often enough for every key that people use: each time somebody else has succeeded.
const TRIES: usize = 32;

/// A [`LeaseStore`] on [`Cells`]. Whoever holds a key writes over what it has written last, without reading it first: claim and completion of
/// a run without steps are two writes. Its copies share what they know.
#[derive(Clone, Debug)]
pub struct CellStore<C> {
    cells: C,
    recent: Recent<Cell>,
}

impl<C: Cells> CellStore<C> {
    /// A store in these cells.
    pub fn new(cells: C) -> Self {
        Self { cells, recent: Recent::default() }
    }

    /// The cells.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// Decides by what most likely stands there (`likely`; nothing is a likelihood, too), and writes if it does; else decides again by what
    /// stands there instead. Nothing but such a write follows from what is only likely.
    async fn change<T: Send>(
        &self,
        identity: &Identity,
        likely: Option<Option<Cell>>,
        decide: impl Fn(Option<&Record>, Now) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let mut is_likely = likely.is_some();
        let mut known = match likely {
            Some(likely) => likely,
            None => self.cells.read(identity).await?,
        };
        for _ in 0..TRIES {
            let now = Now { at: self.cells.now().await?, grace: micros(self.cells.facts().clock.grace()) };
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
                Replaced::Other(there) if there.as_ref().map(|there| there.version) != Some(cell.version) => {
                    (known, is_likely) = (there, false);
                }
                // Also where the client has tried it twice, and the first try had worked.
                Replaced::Done | Replaced::Other(_) => {
                    if cell.record.is_running() {
                        self.recent.put(identity, cell);
                    }
                    return Ok(answer);
                }
            }
        }
        Err(StoreError::unavailable(anyhow::anyhow!("the key changes faster than it can be asked for")))
    }

    /// The same for a holder: where there is no record, there is no lease.
    async fn hold<T: Send>(
        &self,
        held: &Held,
        decide: impl Fn(&Record, i64) -> Result<(Option<Record>, T), StoreError> + Send + Sync,
    ) -> Result<T, StoreError> {
        let decide = |known: Option<&Record>, now: Now| decide(known.ok_or(StoreError::Lost)?, now.at);
        self.change(&held.identity, self.recent.take(&held.identity).map(Some), decide).await
    }
}

impl<C: Cells> LeaseStore for CellStore<C> {
    fn facts(&self) -> Facts {
        self.cells.facts()
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
        check_claim(claim)?;
        // Most likely it is new.
        self.change(claim.identity, Some(None), |known, now| Ok(Record::claim(known, claim, now))).await
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<Renewed>, StoreError> {
        check_lease(lease)?;
        let mut renewed = Vec::with_capacity(held.len());
        for held in held {
            let one = self.hold(held, |record, at| Ok(record.renew(held.token, lease, at))).await;
            renewed.push(match one {
                Err(StoreError::Lost) => Renewed::Lost,
                one => one?,
            });
        }
        Ok(renewed)
    }

    async fn begin_step(
        &self,
        held: &Held,
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
        held: &Held,
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
        held: &Held,
        step: &str,
        round: u32,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        self.hold(held, |record, at| record.refuse_step(held.token, step, round, (lease, at))).await
    }

    async fn complete(&self, held: &Held, response: Option<&Value>) -> Result<(), StoreError> {
        response.map(|response| check_json("response", response)).transpose()?;
        self.hold(held, |record, at| Ok((record.complete(held.token, response, at)?, ()))).await
    }

    async fn fail(&self, held: &Held, failure: &Failure<'_>) -> Result<Failed, StoreError> {
        check_failure(failure)?;
        match self.hold(held, |record, at| Ok(record.fail(held.token, failure, at))).await {
            Err(StoreError::Lost) => Ok(Failed::Lost),
            failed => failed,
        }
    }

    async fn release(&self, held: &Held) -> Result<bool, StoreError> {
        match self.hold(held, |record, _| Ok(record.release(held.token))).await {
            Err(StoreError::Lost) => Ok(false),
            released => released,
        }
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<Known>, StoreError> {
        let now = self.cells.now().await?;
        let cell = self.cells.read(identity).await?;
        Ok(cell.filter(|cell| cell.record.expires_at() > now).map(|cell| cell.record.known()))
    }
}
