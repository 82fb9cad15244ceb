//! What a process tells the database of itself, and hears from people: its row in `oncely.processes`, what its consumers or its relaying
//! did, and who is paused.

mod spans;

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::Config;
use crate::pg::{self, Clock, ConsumerStats, Pause, PgSettings, RelayStats};
use crate::vitals::{Beat, Vitals};
use spans::Spans;

/// How often pauses are read. A pause is obeyed within twice that.
const TURN: Duration = Duration::from_millis(2_500);
/// So many turns are five seconds: how often the row is written. Whoever reads waits for [`pg::SILENT`].
const BEAT: u32 = 2;
/// So many turns are ten seconds: how often stats are written.
const STATS: u32 = 4;
/// A server that takes longer than this for one small row is as good as away.
const LIMIT: Duration = Duration::from_secs(4);

/// What a process has done since it started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Totals {
    Worker(Vec<ConsumerStats>),
    Relay(Vec<RelayStats>),
}

/// The process behind a heartbeat. No method waits.
pub(crate) trait Member: Send + Sync + 'static {
    /// These pauses last.
    fn obey(&self, pauses: Vec<Pause>);
    /// What it has done.
    fn totals(&self) -> Totals;
}

/// The heartbeat of a process. On a connection of its own, outside of every transaction that does work: it waits for nobody, and nobody
/// for it. Where something can't be written, that is logged and nothing else happens; while pauses can't be read, what was read last
/// holds. Dropped, it ends without a word, like the process.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts it.
    pub(crate) fn start(vitals: Arc<Vitals>, config: &Config, clock: Clock, member: impl Member) -> Self {
        let heart = Heart {
            application: format!("oncely {} {} heartbeat", vitals.process.kind, vitals.process.name),
            settings: config.postgres.clone(),
            cell: config.cell.clone(),
            beat: vitals.liveness.watch("heartbeat"),
            vitals,
            clock,
            connection: None,
            spans: Spans::default(),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(heart.run(member, stop.clone()));
        Self { stop: stop.drop_guard(), task }
    }

    /// The process ends in peace: its row goes. A server that does not answer is not waited for long.
    pub(crate) async fn end(self) {
        drop(self.stop);
        if tokio::time::timeout(LIMIT, self.task).await.is_err() {
            tracing::debug!("the last heartbeat was not answered");
        }
    }
}

struct Heart {
    vitals: Arc<Vitals>,
    settings: PgSettings,
    cell: String,
    application: String,
    clock: Clock,
    connection: Option<PgConnection>,
    spans: Spans,
    beat: Beat,
}

impl Heart {
    async fn run(mut self, member: impl Member, stop: CancellationToken) {
        let mut failing = false;
        let mut turn: u32 = 0;
        while !stop.is_cancelled() {
            self.beat.expect(TURN + LIMIT);
            // With its connection: it is taken out, and comes back only with an answer.
            let told = pg::within(LIMIT, self.turn(&member, turn)).await;
            match &told {
                Err(error) if !failing => {
                    tracing::warn!(
                        error = pg::describe(error),
                        "the heartbeat can't be written; tried again"
                    );
                }
                Err(error) => tracing::debug!(error = pg::describe(error), "the heartbeat can't be written"),
                Ok(()) => turn = turn.wrapping_add(1),
            }
            failing = told.is_err();
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(TURN) => {}
            }
        }
        if let Some(mut connection) = self.connection.take() {
            let last = async {
                self.write_stats(&mut connection, &member).await?;
                pg::leave(&mut connection, self.vitals.process.id).await
            };
            if let Err(error) = pg::within(LIMIT / 2, last).await {
                tracing::debug!(
                    error = pg::describe(&error),
                    "the row of this process stays until it is collected"
                );
            }
        }
    }

    async fn turn(&mut self, member: &impl Member, turn: u32) -> Result<(), sqlx::Error> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => pg::open_for_heartbeats(&self.settings, &self.application, &self.cell).await?,
        };
        member.obey(pg::pauses(&mut connection).await?);
        if turn.is_multiple_of(BEAT) {
            let (readiness, report) = (self.vitals.readiness(), self.vitals.report());
            pg::beat(&mut connection, &self.vitals.process, &readiness, &report).await?;
        }
        if turn.is_multiple_of(STATS) {
            match self.write_stats(&mut connection, member).await {
                Err(error) if pg::is_outage(&error) => return Err(error),
                // The row and the pauses matter more.
                Err(error) => tracing::warn!(error = pg::describe(&error), "stats can't be written"),
                Ok(()) => {}
            }
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn write_stats(
        &mut self,
        connection: &mut PgConnection,
        member: &impl Member,
    ) -> Result<(), sqlx::Error> {
        let totals = member.totals();
        let (at, done) = self.spans.next(self.clock.now(), &totals);
        let process = self.vitals.process.id;
        match &done {
            Totals::Worker(consumers) => pg::record_stats(connection, process, at, consumers).await?,
            Totals::Relay(targets) => pg::record_relay_stats(connection, process, at, targets).await?,
        }
        self.spans.written(totals);
        Ok(())
    }
}
