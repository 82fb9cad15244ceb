//! Processes of one kind that a trial strikes while their work goes on: nobody waits for what follows.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::member::{Member, Server};
use crate::Signal;

/// For an end in order.
const ENDS: Duration = Duration::from_secs(40);

/// What strikes one of the processes, counted round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// SIGKILL; it is started again.
    Kill(usize),
    /// It stands still for so long; meanwhile all else goes on.
    Freeze(usize, Duration),
    /// SIGTERM; it is started again.
    Stop(usize),
    /// Its connections to PostgreSQL are reset.
    Cut(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Crew {
    members: Vec<Member>,
    /// Whoever stands still: since when by the wall clock, and until when.
    frozen: Vec<(usize, f64, Instant)>,
}

/// Seconds since 1970. No days go by there.
pub(super) fn clock() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

impl Crew {
    pub(super) fn new(members: Vec<Member>) -> Self {
        Self { members, frozen: Vec::new() }
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Does any of them stand still?
    pub(super) fn stands_still(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// Strikes. `None`: whoever it would strike stands still, and is left alone, since its signal is on its way. Else what it said, if it
    /// did not end in order.
    pub(super) async fn strike(&mut self, strike: Strike) -> anyhow::Result<Option<Vec<String>>> {
        let (Strike::Kill(number) | Strike::Freeze(number, _) | Strike::Stop(number) | Strike::Cut(number)) =
            strike;
        let number = number % self.members.len().max(1);
        let is_frozen = self.frozen.iter().any(|(one, ..)| *one == number);
        if is_frozen && !matches!(strike, Strike::Cut(_)) {
            return Ok(None);
        }
        let member = self.members.get_mut(number).context("no such process")?;
        let mut exits = Vec::new();
        match strike {
            Strike::Kill(_) => member.process.kill_and_restart()?,
            Strike::Freeze(_, hold) => {
                member.process.signal(Signal::STOP)?;
                self.frozen.push((number, clock(), Instant::now() + hold));
            }
            Strike::Stop(_) => {
                exits.extend(end_member(member, "after SIGTERM").await);
                member.process.start_again()?;
            }
            Strike::Cut(_) => {
                if let Some(link) = member.link(Server::Postgres) {
                    link.cut();
                }
            }
        }
        Ok(Some(exits))
    }

    /// Lets those go on whose time is over. Returns from when to when they stood still.
    pub(super) fn thaw(&mut self) -> anyhow::Result<Vec<(f64, f64)>> {
        let (over, frozen) = std::mem::take(&mut self.frozen)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, _, until)| *until <= Instant::now());
        self.frozen = frozen;
        let mut stood = Vec::new();
        for (number, since, _) in over {
            let member = self.members.get(number).context("no such process")?;
            member.process.signal(Signal::CONT)?;
            stood.push((since, clock()));
        }
        Ok(stood)
    }

    /// Starts again whatever has ended by itself; returns who, and how.
    pub(super) fn supervise(&mut self) -> anyhow::Result<Vec<String>> {
        let mut exits = Vec::new();
        for member in &mut self.members {
            if let Some(status) = member.process.status() {
                exits.push(format!("{}: {status}", member.name));
                member.process.start_again()?;
            }
        }
        Ok(exits)
    }

    /// Ends them all in order, whoever stands still, too: from when to when those stood still, and who did not end in order.
    pub(super) async fn end(&mut self) -> anyhow::Result<(Vec<(f64, f64)>, Vec<String>)> {
        for (_, _, until) in &mut self.frozen {
            *until = Instant::now();
        }
        let stood = self.thaw()?;
        let mut exits = Vec::new();
        for member in &mut self.members {
            exits.extend(end_member(member, "at the end").await);
        }
        Ok((stood, exits))
    }
}

/// Ends it in order; says how it ended where it did not.
async fn end_member(member: &mut Member, when: &str) -> Option<String> {
    match member.process.terminate(ENDS).await {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{} {when}: {status}", member.name)),
        Err(error) => Some(format!("{} {when}: {error:#}", member.name)),
    }
}
