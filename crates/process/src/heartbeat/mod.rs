//! The heartbeat of a process: its row in `oncely.processes`, statistics of its consumers or its relaying, and the pauses of consumers.

mod spans;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::vitals::{LoopBeat, Vitals};
use oncely_postgres::{
    self as pg, ConsumerStats, DatabaseClock, NoSession, Pause, PgSettings, RelayStats, Secrets, Session,
    SessionFactory, Timelines,
};
use spans::Spans;

/// Interval at which pauses are read. A pause is obeyed within twice that.
const PAUSE_INTERVAL: Duration = Duration::from_millis(2_500);
/// Number of turns (five seconds) between two writes of the row. Readers call a process silent after [`pg::SILENCE_TIME`].
const BEAT_TURNS: u32 = 2;
/// Number of turns (ten seconds) between two writes of statistics.
const STATS_TURNS: u32 = 4;
/// Number of turns (ten seconds) between two reads of keys. A new key signs after a minute by default (`oncely secrets rotate`).
const KEY_TURNS: u32 = 4;
/// Maximum time of a turn: a server that takes longer for one small row counts as unreachable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// The server's limit of one statement. A read that another session's lock blocks is given up for this turn; the rest of the turn
/// continues.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Work of a process since its start.
#[derive(Clone, Debug, PartialEq)]
pub enum Totals {
    Worker(Vec<ConsumerStats>),
    Relay(Vec<RelayStats>),
}

/// The process of a heartbeat. No method blocks.
pub trait Member: Send + Sync + 'static {
    /// Whether it obeys pauses and signs. Only then pauses and keys are read.
    const OBEYS_PAUSES: bool;

    /// Applies the current pauses.
    fn set_pauses(&self, pauses: Vec<Pause>);
    /// Applies the current signing keys and tag keys.
    fn set_secrets(&self, secrets: &Secrets);
    /// Returns the work of the process since its start; `None` if it reports elsewhere.
    fn totals(&self) -> Option<Totals>;
}

impl<M: Member> Member for Arc<M> {
    const OBEYS_PAUSES: bool = M::OBEYS_PAUSES;

    fn set_pauses(&self, pauses: Vec<Pause>) {
        M::set_pauses(self, pauses);
    }

    fn set_secrets(&self, secrets: &Secrets) {
        M::set_secrets(self, secrets);
    }

    fn totals(&self) -> Option<Totals> {
        M::totals(self)
    }
}

/// The heartbeat of a process. It has a connection of its own, outside every transaction that does work: neither waits for the other. A
/// failed write is only logged; while pauses can't be read, the last ones hold. Dropped, it ends without removing the row, like a crashed
/// process.
#[derive(Debug)]
pub struct Heartbeat {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Starts the heartbeat of a process, in a task of its own. Pauses are read only from a server on the process's `timelines`.
    pub fn start(
        vitals: Arc<Vitals>,
        postgres: &PgSettings,
        cell: &str,
        clock: DatabaseClock,
        timelines: Timelines,
        member: impl Member,
    ) -> Self {
        let settings = PgSettings {
            statement_timeout: STATEMENT_TIMEOUT,
            lock_timeout: STATEMENT_TIMEOUT,
            ..postgres.clone()
        };
        let heart = HeartbeatTask {
            application: format!("oncely {} {} heartbeat", vitals.process.kind, vitals.process.name),
            factory: SessionFactory::new(settings, cell.to_owned(), timelines),
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

    /// Ends the heartbeat of a process that exits normally: writes the last statistics, and removes the process's row. Waits up to
    /// `ANSWER_TIMEOUT` (four seconds) for a server that does not answer.
    pub async fn end(self) {
        drop(self.stop);
        if tokio::time::timeout(ANSWER_TIMEOUT, self.task).await.is_err() {
            tracing::debug!("no answer to the last heartbeat");
        }
    }
}

struct HeartbeatTask {
    vitals: Arc<Vitals>,
    factory: SessionFactory,
    application: String,
    clock: DatabaseClock,
    session: Option<Session>,
    spans: Spans,
    beat: LoopBeat,
}

impl HeartbeatTask {
    /// Runs turns until `stop`, then writes the last statistics and removes the process's row. Errors are logged; the next turn tries
    /// again.
    async fn run(mut self, member: impl Member, stop: CancellationToken) {
        let mut failing = false;
        let mut pauses_unreadable = false;
        let mut turn: u32 = 0;
        while !stop.is_cancelled() {
            self.beat.begin_step(PAUSE_INTERVAL + 2 * ANSWER_TIMEOUT);
            let was_open = self.session.is_some();
            // On a time-out the session is dropped with its connection: it is taken out, and put back only with an answer.
            let mut result =
                tokio::time::timeout(ANSWER_TIMEOUT, self.run_turn(&member, turn, &mut pauses_unreadable))
                    .await;
            // A session may end while it is idle (idle_session_timeout, a NAT) although the server is available.
            if was_open && matches!(result, Ok(Err(_))) {
                result = tokio::time::timeout(
                    ANSWER_TIMEOUT,
                    self.run_turn(&member, turn, &mut pauses_unreadable),
                )
                .await;
            }
            let error = match result {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {ANSWER_TIMEOUT:?}")),
            };
            match &error {
                Some(error) if !failing => {
                    tracing::warn!(error, "cannot write the heartbeat; retrying")
                }
                Some(error) => tracing::debug!(error, "cannot write the heartbeat"),
                None => {}
            }
            failing = error.is_some();
            // The first turn after an outage writes and reads everything.
            turn = if failing { 0 } else { turn.wrapping_add(1) };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE_INTERVAL) => {}
            }
        }
        if let Some(mut session) = self.session.take() {
            let last = async {
                self.write_stats(&mut session, &member).await?;
                pg::record_end(&mut session.connection, self.vitals.process.id).await
            };
            if let Err(error) = pg::wait_for_answer(ANSWER_TIMEOUT / 2, last).await {
                tracing::debug!(
                    error = pg::describe(&error),
                    "the row of this process stays until it is collected"
                );
            }
        }
    }

    /// Reads pauses and keys, and writes the process's row and statistics, each at its interval. Opens a session unless one on the
    /// newest timeline is open; an error closes it.
    async fn run_turn<M: Member>(
        &mut self,
        member: &M,
        turn: u32,
        pauses_unreadable: &mut bool,
    ) -> Result<(), NoSession> {
        // An old primary that is still running would report outdated pauses.
        let mut session = match self.session.take().filter(|open| self.factory.record_timeline(open)) {
            Some(open) => open,
            None => {
                let mut session = self.factory.open(&self.application).await?;
                pg::disable_synchronous_commit(&mut session.connection).await?;
                session
            }
        };
        let connection = &mut session.connection;
        if M::OBEYS_PAUSES {
            match pg::list_pauses(connection).await {
                Ok(pauses) => {
                    *pauses_unreadable = false;
                    member.set_pauses(pauses);
                }
                // The server answers: the process's row is written all the same.
                Err(error) if error.as_database_error().is_some() && !pg::is_outage(&error) => {
                    if !std::mem::replace(pauses_unreadable, true) {
                        tracing::warn!(
                            error = pg::describe(&error),
                            "cannot read pauses; keeping the last ones"
                        );
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        if M::OBEYS_PAUSES && turn.is_multiple_of(KEY_TURNS) {
            match pg::read_secrets(connection).await {
                Ok(secrets) => member.set_secrets(&secrets),
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                Err(error) => tracing::warn!(
                    error = pg::describe(&error),
                    "cannot read signing and mirror keys; keeping the last ones"
                ),
            }
        }
        if turn.is_multiple_of(BEAT_TURNS) {
            let (readiness, report) = (self.vitals.readiness(), self.vitals.report());
            pg::record_heartbeat(connection, &self.vitals.process, &readiness, &report).await?;
        }
        if turn.is_multiple_of(STATS_TURNS) {
            match self.write_stats(&mut session, member).await {
                Err(error) if pg::is_outage(&error) => return Err(error.into()),
                // The row and the pauses matter more.
                Err(error) => tracing::warn!(error = pg::describe(&error), "cannot write stats"),
                Ok(()) => {}
            }
        }
        self.session = Some(session);
        Ok(())
    }

    /// Writes the statistics of the open span; writes none for a process that reports elsewhere.
    async fn write_stats(&mut self, session: &mut Session, member: &impl Member) -> sqlx::Result<()> {
        let connection = &mut session.connection;
        let Some(totals) = member.totals() else { return Ok(()) };
        let (at, work) = self.spans.advance(self.clock.now(), &totals);
        let process = self.vitals.process.id;
        match &work {
            Totals::Worker(consumers) => pg::record_stats(connection, process, at, consumers).await?,
            Totals::Relay(targets) => pg::record_relay_stats(connection, process, at, targets).await?,
        }
        self.spans.confirm_write(totals);
        Ok(())
    }
}
