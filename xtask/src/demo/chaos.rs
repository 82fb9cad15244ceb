//! What is killed, and when.

use indicatif::MultiProgress;

use super::stage::Stage;

/// Kills by progress, so that each strikes in the middle of the work however fast it goes.
#[derive(Debug)]
pub(crate) struct Chaos {
    strikes: Vec<(u64, Strike)>,
    /// For the report.
    pub(crate) done: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Strike {
    Worker(usize),
    Redis,
}

impl Chaos {
    pub(crate) fn new(distinct: usize) -> Self {
        let at = |percent: u64| (distinct as u64 * percent / 100).max(1);
        Self {
            // Popped from the end.
            strikes: vec![(at(65), Strike::Worker(1)), (at(40), Strike::Redis), (at(20), Strike::Worker(0))],
            done: Vec::new(),
        }
    }

    /// Strikes if it is time.
    pub(crate) async fn strike(
        &mut self,
        effects: u64,
        stage: &mut Stage,
        bars: &MultiProgress,
    ) -> anyhow::Result<()> {
        let Some((at, strike)) = self.strikes.last().copied() else {
            return Ok(());
        };
        if effects < at {
            return Ok(());
        }
        self.strikes.pop();
        let what = match strike {
            Strike::Worker(number) => {
                stage.workers[number].kill_and_restart()?;
                format!("worker {} killed with -9 after {effects} effects, started again", number + 1)
            }
            Strike::Redis => match &mut stage.servers.redis {
                Some(redis) => {
                    redis.restart().await?;
                    format!("Redis killed with -9 after {effects} effects, started again empty")
                }
                None => "Redis is not ours: not killed".to_owned(),
            },
        };
        bars.println(&what)?;
        self.done.push(what);
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.strikes.is_empty()
    }
}
