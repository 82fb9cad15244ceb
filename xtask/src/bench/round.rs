//! Rounds: each side in turn, so that what else the machine does falls on both.

use indicatif::{ProgressBar, ProgressStyle};

use super::Arguments;
use super::job::Job;
use super::measured::Measured;
use super::outcome::Side;
use super::run::measure;
use super::stage::Stage;

/// What all cases share.
pub(crate) struct Rounds<'s> {
    pub(crate) stage: &'s Stage,
    pub(crate) rounds: u32,
    /// Messages of a run, of either side: what a message costs the broker grows with the backlog.
    pub(crate) messages: u64,
    pub(crate) bar: ProgressBar,
}

impl<'s> Rounds<'s> {
    pub(crate) fn new(stage: &'s Stage, arguments: &Arguments) -> Self {
        Self { stage, rounds: arguments.rounds, messages: arguments.messages, bar: bar() }
    }

    /// Alternates two jobs; which goes first changes from round to round.
    pub(crate) async fn alternate(
        &self,
        what: &'static str,
        ours: &Job,
        baseline: &Job,
    ) -> anyhow::Result<(Side, Side)> {
        let (mut us, mut them) = (Side::default(), Side::default());
        for round in 0..self.rounds {
            let seed = u64::from(round) * 1_000;
            self.say(what, round);
            if round.is_multiple_of(2) {
                them.0.push(self.measure(what, baseline, seed).await?);
                us.0.push(self.measure(what, ours, seed + 1).await?);
            } else {
                us.0.push(self.measure(what, ours, seed + 1).await?);
                them.0.push(self.measure(what, baseline, seed).await?);
            }
        }
        Ok((us, them))
    }

    async fn measure(&self, what: &str, job: &Job, seed: u64) -> anyhow::Result<Measured> {
        let measured = measure(self.stage, job, seed).await?;
        if self.stage.pids {
            eprintln!("{what}: {measured:?}");
        }
        Ok(measured)
    }

    /// Shows what is going on.
    pub(crate) fn say(&self, what: &'static str, round: u32) {
        self.bar.set_message(format!("{what}, round {} of {}", round + 1, self.rounds));
        self.bar.tick();
    }
}

/// Hidden by itself where stderr is no terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
