//! What a process tells the database of itself, and hears from people: its row in `oncely.processes`, what its consumers or its relaying
//! did, and who is paused.

mod spans;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::pg::{
    self, Clock, ConsumerStats, Door, NoSession, Pause, PgSettings, RelayStats, Secrets, Session, Timelines,
};
use crate::vitals::{Beat, Vitals};
use spans::Spans;

/// How often pauses are read. A pause is obeyed within twice that.
const TURN: Duration = Duration::from_millis(2_500);
/// So many turns are five seconds: how often the row is written. Whoever reads waits for [`pg::SILENT`].
const BEAT: u32 = 2;
/// So many turns are ten seconds: how often stats are written.
const STATS: u32 = 4;
/// So many turns are ten seconds: how often keys are read. A new one signs after a minute by default (`oncely secrets rotate`).
const KEYS: u32 = 4;
/// A server that takes longer than this for one small row is as good as away.
const LIMIT: Duration = Duration::from_secs(4);
/// For one statement, on the server. What somebody else's lock keeps from being read is given up for this turn; the rest of it goes on.
const STATEMENT: Duration = Duration::from_secs(1);

/// What a process has done since it started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Totals {
    Worker(Vec<ConsumerStats>),
    Relay(Vec<RelayStats>),
}

/// The process behind a heartbeat. No method waits.
pub(crate) trait Member: Send + Sync + 'static {
    /// Does it obey pauses, and sign? Only then pauses and keys are read.
    const OBEYS: bool;

    /// These pauses last.
    fn obey(&self, pauses: Vec<Pause>);
    /// These keys sign and are accepted.
    fn learn(&self, secrets: &Secrets);
    /// What it has done; `None`: it tells that elsewhere.
    fn totals(&self) -> Option<Totals>;
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
    /// Starts it. What people say is heard where the process works, and nowhere else: `timelines` are the process's.
    pub(crate) fn start(
        vitals: Arc<Vitals>,
        postgres: &PgSettings,
        cell: &str,
        clock: Clock,
        timelines: Timelines,
        member: impl Member,
    ) -> Self {
        let settings =
            PgSettings { statement_timeout: STATEMENT, lock_timeout: STATEMENT, ..postgres.clone() };
        let heart = Heart {
            application: format!("oncely {} {} heartbeat", vitals.process.kind, vitals.process.name),
            door: Door::new(settings, cell.to_owned(), timelines),
            beat: vitals.liveness.watch("heartbeat"),
            vitals,
            clock,
            session: None,
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
    door: Door,
    application: String,
    clock: Clock,
    session: Option<Session>,
    spans: Spans,
    beat: Beat,
}

impl Heart {
    async fn run(mut self, member: impl Member, stop: CancellationToken) {
        let mut failing = false;
        let mut deaf = false;
        let mut turn: u32 = 0;
        while !stop.is_cancelled() {
            self.beat.expect(TURN + LIMIT);
            // With its connection: it is taken out, and comes back only with an answer.
            let told = tokio::time::timeout(LIMIT, self.turn(&member, turn, &mut deaf)).await;
            let error = match told {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {LIMIT:?}")),
            };
            match &error {
                Some(error) if !failing => {
                    tracing::warn!(error, "the heartbeat can't be written; tried again")
                }
                Some(error) => tracing::debug!(error, "the heartbeat can't be written"),
                None => {}
            }
            failing = error.is_some();
            // Whatever comes first after an outage is whole.
            turn = if failing { 0 } else { turn.wrapping_add(1) };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(TURN) => {}
            }
        }
        if let Some(mut session) = self.session.take() {
            let last = async {
                self.write_stats(&mut session, &member).await?;
                pg::leave(&mut session.connection, self.vitals.process.id).await
            };
            if let Err(error) = pg::within(LIMIT / 2, last).await {
                tracing::debug!(
                    error = pg::describe(&error),
                    "the row of this process stays until it is collected"
                );
            }
        }
    }

    async fn turn<M: Member>(&mut self, member: &M, turn: u32, deaf: &mut bool) -> Result<(), NoSession> {
        // An old primary that lives on would go on telling what was said before.
        let mut session = match self.session.take().filter(|open| self.door.admits(open)) {
            Some(open) => open,
            None => {
                let mut session = self.door.open(&self.application).await?;
                pg::commit_casually(&mut session.connection).await?;
                session
            }
        };
        let connection = &mut session.connection;
        if M::OBEYS {
            match pg::pauses(connection).await {
                Ok(pauses) => {
                    *deaf = false;
                    member.obey(pauses);
                }
                // The server answers: that this process lives is told all the same.
                Err(error) if error.as_database_error().is_some() && !pg::is_outage(&error) => {
                    if !std::mem::replace(deaf, true) {
                        tracing::warn!(
                            error = pg::describe(&error),
                            "pauses can't be read; what was read last holds"
                        );
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        if M::OBEYS && turn.is_multiple_of(KEYS) {
            match pg::secrets(connection).await {
                Ok(secrets) => member.learn(&secrets),
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                Err(error) => tracing::warn!(
                    error = pg::describe(&error),
                    "keys can't be read; those that were read last hold"
                ),
            }
        }
        if turn.is_multiple_of(BEAT) {
            let (readiness, report) = (self.vitals.readiness(), self.vitals.report());
            pg::beat(connection, &self.vitals.process, &readiness, &report).await?;
        }
        if turn.is_multiple_of(STATS) {
            match self.write_stats(&mut session, member).await {
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                // The row and the pauses matter more.
                Err(error) => tracing::warn!(error = pg::describe(&error), "stats can't be written"),
                Ok(()) => {}
            }
        }
        self.session = Some(session);
        Ok(())
    }

    async fn write_stats(&mut self, session: &mut Session, member: &impl Member) -> Result<(), sqlx::Error> {
        let connection = &mut session.connection;
        let Some(totals) = member.totals() else { return Ok(()) };
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
