//! A lane takes batches of events, one after another, through its own connections to PostgreSQL and RabbitMQ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::DateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::activity::LaneReporter;
use super::events::{EventBatch, EventError, EventReport, has_due_events};
use super::idle::{IdleBackoff, MIN_PAUSE, REPORT_INTERVAL};
use super::sessions::RelaySessions;
use super::waker::{LaneWait, LaneWaker, ReadResult};
use oncely_amqp::{AmqpError, PublishConnection};
use oncely_config::Config;
use oncely_core::backoff::Backoff;
use oncely_postgres::{self as pg, OrderingKeyCursor, SessionFactory};
use oncely_process::metrics::{RelayResult, Target};
use oncely_process::witnesses::Witnesses;
use oncely_traces::EventTraces;

/// How far a lane is in a unit.
struct UnitWalk {
    cursor: OrderingKeyCursor,
    /// Whether the next batch takes ordered events first.
    ordered_first: bool,
}

impl Default for UnitWalk {
    fn default() -> Self {
        Self { cursor: None, ordered_first: true }
    }
}

struct EventLane {
    config: Config,
    name: String,
    factory: SessionFactory,
    sessions: Option<RelaySessions>,
    connection: Option<PublishConnection>,
    /// Of each unit; empty until the sessions are open.
    walks: Vec<UnitWalk>,
    /// The unit of the next batch.
    turn: usize,
    clock_read_at: Instant,
    traces: EventTraces,
}

/// Interval at which the database's clock is read: this machine's may run at another speed.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum pause between two reads.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Shortest pause after a read that found no events.
const PROMPT_PAUSE: Duration = Duration::from_millis(1);

/// Interval at which a lane checks whether the broker takes messages again.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(200);

/// Publishes events until the relay stops: after a batch it goes on at once, after an empty read after a growing pause, up to
/// `relay.poll`, or when it is woken. Waits for a server that is away, which costs no event an attempt.
pub(super) async fn publish_events(
    config: Config,
    number: u32,
    factory: SessionFactory,
    reporter: LaneReporter,
    traces: EventTraces,
    waker: Arc<LaneWaker>,
    stop: CancellationToken,
) {
    let mut wait = waker.lane();
    let name = format!("oncely relay {} events {number}", config.worker.name);
    let mut idle = IdleBackoff::new(PROMPT_PAUSE, config.relay.poll);
    let mut backoff = Backoff::default();
    let mut total = EventReport::default();
    let mut last_report = Instant::now();
    let mut lane = EventLane {
        config,
        name,
        factory,
        sessions: None,
        connection: None,
        walks: Vec::new(),
        turn: 0,
        clock_read_at: Instant::now(),
        traces,
    };
    while !stop.is_cancelled() {
        let postgres = &lane.config.postgres;
        reporter.beat.begin_step(
            MAX_PAUSE
                + postgres.client_timeout() * 8
                + postgres.statement_timeout
                + lane.config.rabbitmq.timeout * 4,
        );
        let began = Instant::now();
        let pause = match lane.relay_batch(&reporter.activity.witnesses, &mut wait).await {
            Ok(Some((report, failure))) => {
                reporter.record_report(&report, began.elapsed());
                total.published += report.published;
                total.failed += report.failed;
                total.parked += report.parked;
                match failure {
                    Some(error) => {
                        wait.record_read(ReadResult::Failed);
                        lane.report_failure(&reporter, &error.into(), &mut backoff)
                    }
                    None => lane.report_success(&reporter, &report, &mut idle, &mut backoff),
                }
            }
            Ok(None) => {
                wait.record_read(ReadResult::Failed);
                reporter
                    .activity
                    .record_failure(Target::Rabbitmq, "RabbitMQ takes no messages (an alarm)".to_owned());
                BLOCKED_INTERVAL
            }
            Err(error) => {
                wait.record_read(ReadResult::Failed);
                lane.report_failure(&reporter, &error, &mut backoff)
            }
        };
        if last_report.elapsed() >= REPORT_INTERVAL {
            log_total(&mut total);
            last_report = Instant::now();
        }
        if !pause.is_zero() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = wait.woken() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
    log_total(&mut total);
    lane.close().await;
}

impl LaneReporter {
    /// Records the results and the duration of a batch of events.
    fn record_report(&self, report: &EventReport, duration: Duration) {
        let EventReport { taken, published, failed, parked, undecided: _, oldest } = *report;
        for (result, number) in
            [(RelayResult::Done, published), (RelayResult::Failed, failed), (RelayResult::Parked, parked)]
        {
            self.activity.count_results(Target::Rabbitmq, result, number);
        }
        if taken > 0 {
            let (oldest, at) = oldest.map_or((None, DateTime::UNIX_EPOCH), |(oldest, at)| (Some(oldest), at));
            self.activity.record_batch(Target::Rabbitmq, duration, oldest, at);
        }
    }
}

/// Logs the counts since the last log line unless all are zero, and resets them.
fn log_total(total: &mut EventReport) {
    let EventReport { published, failed, parked, .. } = std::mem::take(total);
    if published + failed + parked > 0 {
        tracing::info!(published, failed, parked, "event counts");
    }
}

impl EventLane {
    /// Publishes one batch of events of a unit, the next one in turn that has any; opens the connections that it needs. Unless the last
    /// batch was full, looks for events before it takes any, in one statement: most of these reads find none. Returns the results and the
    /// error that ended the batch early, without an error if none did; `None` while the broker takes no messages.
    async fn relay_batch(
        &mut self,
        witnesses: &Witnesses<Uuid>,
        wait: &mut LaneWait<'_>,
    ) -> Result<Option<(EventReport, Option<AmqpError>)>, EventError> {
        let client_timeout = self.config.postgres.client_timeout();
        self.sessions.take_if(|open| !open.are_admitted(&self.factory));
        let sessions = match &mut self.sessions {
            Some(sessions) => sessions,
            None => {
                let sessions = RelaySessions::open(&self.factory, &self.name).await?;
                self.walks.resize_with(sessions.units.len(), UnitWalk::default);
                self.sessions.insert(sessions)
            }
        };
        if sessions.refresh_units(client_timeout).await? {
            // A cursor belongs to the unit that it was read from.
            self.walks = std::iter::repeat_with(UnitWalk::default).take(sessions.units.len()).collect();
        }
        let session = &mut sessions.records;
        if self.clock_read_at.elapsed() >= CLOCK_INTERVAL {
            let query_time = Instant::now();
            let now =
                pg::wait_for_answer(client_timeout, pg::read_database_time(&mut session.connection)).await?;
            session.clock.set(now, query_time);
            self.clock_read_at = query_time;
        }
        self.connection.take_if(|connection| !connection.is_open());
        if self.connection.as_ref().is_some_and(PublishConnection::is_blocked) {
            // Taken events would wait in an open transaction.
            return Ok(None);
        }
        let units = &sessions.units;
        let mut found = false;
        for _ in 0..units.len() {
            self.turn = (self.turn + 1) % units.len();
            let (Some(unit), Some(walk)) = (units.get(self.turn), self.walks.get_mut(self.turn)) else {
                break;
            };
            let look = pg::has_events(&mut session.connection, unit, session.clock.now());
            found =
                units.len() == 1 && wait.knows_of_more() || pg::wait_for_answer(client_timeout, look).await?;
            if found {
                break;
            }
            // A walk over ordering keys that was to go on has nothing left.
            walk.cursor = None;
        }
        let in_turn = units.get(self.turn).zip(self.walks.get_mut(self.turn));
        let Some((unit, walk)) = in_turn.filter(|_| found) else {
            wait.record_read(ReadResult::Nothing);
            return Ok(Some(Default::default()));
        };
        let connection = match &mut self.connection {
            Some(connection) => connection,
            // Without events the broker is not needed.
            None if !has_due_events(session, unit, &self.config.events, client_timeout).await? => {
                walk.cursor = None;
                wait.record_read(ReadResult::Nothing);
                return Ok(Some(Default::default()));
            }
            None => self.connection.insert(PublishConnection::open(&self.config.rabbitmq, &self.name).await?),
        };
        let batch = EventBatch {
            session,
            unit,
            witness: sessions.standby_witness.as_mut().map(|witness| &mut witness.connection),
            connection,
            settings: &self.config.events,
            cursor: &mut walk.cursor,
            ordered_first: &mut walk.ordered_first,
            client_timeout,
            // PostgreSQL lets a transaction be idle for twice its statement timeout.
            max_publish_time: self.config.postgres.statement_timeout / 2,
            answer_timeout: self.config.rabbitmq.timeout.min(self.config.postgres.statement_timeout / 3),
            traces: &self.traces,
            witnesses,
            lane: wait,
        };
        batch.publish().await.map(Some)
    }

    /// Closes the sessions, each within two seconds, and the connection to RabbitMQ, within `rabbitmq.timeout`.
    async fn close(self) {
        if let Some(sessions) = self.sessions {
            sessions.close().await;
        }
        if let Some(connection) = self.connection {
            connection.close().await;
        }
    }

    /// Reports a batch that the servers have answered; returns the pause before the next one.
    fn report_success(
        &self,
        reporter: &LaneReporter,
        report: &EventReport,
        idle: &mut IdleBackoff,
        backoff: &mut Backoff,
    ) -> Duration {
        let batch = self.config.events.batch;
        reporter.activity.record_success(Target::Rabbitmq);
        if report.taken > 0 && report.undecided == report.taken {
            let error = "events fail (`oncely outbox list`); no attempt is spent".to_owned();
            reporter.activity.record_failure(Target::Rabbitmq, error);
            // Each of them waits by itself; behind a full batch others may arrive.
            let is_full = usize::try_from(batch).is_ok_and(|batch| report.taken >= batch);
            return if is_full { BLOCKED_INTERVAL } else { backoff.next_pause() };
        }
        backoff.reset();
        match report.taken {
            // Many keys wait, and not all of them were read.
            0 if self.walks.iter().any(|walk| walk.cursor.is_some()) => MIN_PAUSE,
            // None after a batch of any size: its events took their time, and others have come meanwhile.
            taken => idle.next_pause(taken, 1),
        }
    }

    /// Reports an error, and drops the connection that it came from; returns the pause before the next batch.
    fn report_failure(
        &mut self,
        reporter: &LaneReporter,
        error: &EventError,
        backoff: &mut Backoff,
    ) -> Duration {
        tracing::warn!(%error, "cannot publish events; retrying");
        reporter.activity.record_failure(Target::Rabbitmq, error.to_string());
        match error {
            // Messages published on a blocked connection are still on their way; another connection would publish them again.
            EventError::Amqp(_) => {
                self.connection.take_if(|connection| !connection.is_blocked());
            }
            // Dropped with its open transaction.
            EventError::Postgres(_) | EventError::NoSession(_) | EventError::Changed { .. } => {
                self.sessions = None
            }
        }
        backoff.next_pause()
    }
}
