//! Sets gauges of shared state, and readiness, every few seconds. All relays report the same numbers for shared state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lapin::Connection;
use tokio_util::sync::CancellationToken;

use super::activity::RelayActivity;
use super::trail_index::TrailIndex;
use oncely_amqp::{AmqpError, Topology, connect, query_depth};
use oncely_config::{Config, ConsumerSettings};
use oncely_mirror::MirrorWatch;
use oncely_postgres::{
    self as pg, Backlog, HeldCount, NoSession, PgSettings, Readiness, Session, SessionFactory, Timelines,
    WaitingLetters,
};
use oncely_process::metrics::{Server, Target};
use oncely_process::vitals::Vitals;

/// Interval at which shared state is read.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// Longest query of a gauge; a slower one is not worth its cost.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without a successful read of a target after which the relay is not ready: a lane reads every half second (`relay.poll`) if it can.
const UNREADY_AFTER: Duration = Duration::from_secs(15);
/// Length of a partition of the trail.
const PARTITION_LENGTH: chrono::TimeDelta = chrono::TimeDelta::days(7);

/// Sources of gauges and readiness.
pub(super) struct RelayObserver {
    pub(super) config: Config,
    pub(super) vitals: Arc<Vitals>,
    pub(super) activity: Arc<RelayActivity>,
    /// Timelines that the relay's tasks share.
    pub(super) timelines: Timelines,
    pub(super) mirror: Option<MirrorWatch>,
}

impl RelayObserver {
    /// Sets the gauges and the readiness until `stop`. A value that can't be read is kept, and its server counts as not connected.
    pub(super) async fn run(self, stop: CancellationToken) {
        let name = format!("oncely relay {} gauges", self.config.worker.name);
        let settings = PgSettings {
            statement_timeout: QUERY_TIMEOUT,
            lock_timeout: QUERY_TIMEOUT,
            ..self.config.postgres.clone()
        };
        let factory = SessionFactory::new(settings, self.config.cell.clone(), self.timelines.clone());
        let beat = self.vitals.liveness.watch("gauges");
        let mut session = None;
        let mut index = TrailIndex::default();
        let mut broker = None;
        while !stop.is_cancelled() {
            beat.begin_step(
                READ_INTERVAL + self.config.postgres.client_timeout() * 4 + self.config.rabbitmq.timeout * 8,
            );
            let database_result = self.read_database(&factory, &name, &mut session, &mut index).await;
            self.vitals.metrics.set_connected(Server::Postgres, database_result.is_ok());
            if let Err(error) = &database_result {
                tracing::debug!(%error, "what waits can't be read");
                session = None;
            }
            let broker_result = self.query_broker(&name, &mut broker).await;
            self.vitals.metrics.set_connected(Server::Rabbitmq, broker_result.is_ok());
            if let Err(error) = &broker_result {
                tracing::debug!(%error, "queues can't be looked at");
                broker = None;
            }
            self.update_readiness(database_result.err().map(|error| error.to_string()));
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(READ_INTERVAL) => {}
            }
        }
        self.vitals.set_readiness(Readiness::Stopping);
        if let Some(session) = session {
            session.close().await;
        }
    }

    /// Sets the readiness and the degraded operation of the relay. `database`: the error of the last read of PostgreSQL. A relay without
    /// events does not need RabbitMQ, so its absence alone keeps no relay from being ready. Nor does that of Redis, without which
    /// duplicates are only slower.
    fn update_readiness(&self, database: Option<String>) {
        let mut reasons = Vec::new();
        if let Some(error) = database {
            reasons.push(format!("PostgreSQL: {error}"));
        }
        reasons.extend(self.activity.describe_stall(Target::Rabbitmq, UNREADY_AFTER));
        let degraded = self.mirror.as_ref().and_then(|mirror| match mirror.is_answering() {
            false => Some("Redis does not answer; nothing is mirrored, and duplicates cost more".to_owned()),
            true => self.activity.describe_stall(Target::Redis, UNREADY_AFTER),
        });
        if let Some(mirror) = &self.mirror {
            self.vitals.metrics.set_connected(Server::Redis, mirror.is_answering());
        }
        self.vitals.set_degraded(degraded);
        self.vitals.set_readiness(match reasons.is_empty() {
            true => Readiness::Ready,
            false => Readiness::Unready(reasons.join("; ")),
        });
    }

    /// Reads the backlog and the tables' state, and sets their gauges.
    async fn read_database(
        &self,
        factory: &SessionFactory,
        name: &str,
        slot: &mut Option<Session>,
        index: &mut TrailIndex,
    ) -> Result<(), NoSession> {
        let session = match slot {
            // An old primary that still runs does not have the present backlog.
            Some(session) if factory.record_timeline(session) => session,
            _ => {
                // The end of the previous session may have interrupted a summary.
                *index = TrailIndex::default();
                slot.insert(factory.open(name).await?)
            }
        };
        let limit = QUERY_TIMEOUT * 2;
        let query_time = Instant::now();
        let now = pg::wait_for_answer(limit, pg::read_database_time(&mut session.connection)).await?;
        session.clock.set(now, query_time);
        let backlog = pg::wait_for_answer(limit, pg::read_backlog(&mut session.connection, now)).await;
        if let Some(backlog) = ignore_slow(backlog)? {
            self.set_backlog_gauges(&backlog, now);
        }
        let letters = pg::wait_for_answer(limit, pg::count_waiting_letters(&mut session.connection)).await;
        if let Some(letters) = ignore_slow(letters)? {
            self.set_letter_gauges(&letters, now);
        }
        let leases = pg::wait_for_answer(limit, pg::count_held_leases(&mut session.connection, now)).await;
        if let Some(leases) = ignore_slow(leases)? {
            self.set_lease_gauges(&leases, now);
        }
        Ok(index.bring_up_to_date(&mut session.connection, limit).await?)
    }

    fn set_letter_gauges(&self, letters: &[WaitingLetters], now: DateTime<Utc>) {
        let metrics = &self.activity.metrics;
        for (name, gauges) in metrics.letters.all() {
            // Consumers that are not in the configuration are reported together.
            let own = letters.iter().filter(|one| metrics.letters.label(&one.consumer) == name);
            gauges.waiting.set(to_float(own.clone().map(|one| one.waiting).sum()));
            let age = own.map(|one| one.oldest).min().map(|oldest| now - oldest);
            gauges.oldest_age.set(age.and_then(|age| age.to_std().ok()).unwrap_or_default().as_secs_f64());
        }
    }

    fn set_lease_gauges(&self, leases: &[HeldCount], now: DateTime<Utc>) {
        let metrics = &self.activity.metrics;
        for (name, gauges) in metrics.leases.all() {
            // Consumers that are not in the configuration are reported together.
            let own = leases.iter().filter(|one| metrics.leases.label(&one.consumer) == name);
            gauges.held.set(to_float(own.clone().map(|one| one.held).sum()));
            gauges.over.set(to_float(own.clone().map(|one| one.over).sum()));
            let age = own.map(|one| one.oldest).min().map(|oldest| now - oldest);
            gauges.oldest_age.set(age.and_then(|age| age.to_std().ok()).unwrap_or_default().as_secs_f64());
        }
    }

    /// Sets the gauges of waiting records and events.
    fn set_backlog_gauges(&self, backlog: &Backlog, now: DateTime<Utc>) {
        let Backlog { mirror_records, oldest_mirror_record, due_events, oldest_due_event, .. } = backlog;
        self.activity.set_backlog(Target::Redis, *mirror_records, *oldest_mirror_record, now);
        self.activity.set_backlog(Target::Rabbitmq, *due_events, *oldest_due_event, now);
        let metrics = &self.activity.metrics;
        metrics.parked_events.set(to_float(backlog.parked_events));
        metrics.over_quota.set(to_float(backlog.over_quota));
        let completed = backlog.keys - backlog.keys_in_progress - backlog.keys_failed;
        for (gauge, keys) in
            metrics.keys.iter().zip([completed.max(0), backlog.keys_in_progress, backlog.keys_failed])
        {
            gauge.set(to_float(keys));
        }
        let ahead =
            backlog.last_partition.map_or(0, |last| (last + PARTITION_LENGTH - now).num_days().max(0));
        metrics.audit_days_ahead.set(to_float(ahead));
        let oldest = backlog.oldest_transaction.map_or(0.0, |at| (now - at).as_seconds_f64().max(0.0));
        metrics.oldest_xmin_age.set(oldest);
    }

    /// Reads the counters of all queues, and sets their gauges.
    async fn query_broker(&self, name: &str, slot: &mut Option<Connection>) -> Result<(), AmqpError> {
        if slot.as_ref().is_some_and(|connection| !connection.status().connected()) {
            self.vitals.metrics.count_reconnection(Server::Rabbitmq);
            *slot = None;
        }
        let connection = match slot {
            Some(connection) => connection,
            None => slot.insert(connect(&self.config.rabbitmq, name).await?),
        };
        for consumer in &self.config.consumers {
            for queue in &consumer.queues {
                self.query_queue(connection, consumer, queue).await?;
            }
        }
        Ok(())
    }

    /// Reads the counters of one queue, and sets its gauges.
    async fn query_queue(
        &self,
        connection: &Connection,
        consumer: &ConsumerSettings,
        queue: &str,
    ) -> Result<(), AmqpError> {
        let Some(metrics) = self.activity.metrics.queues.get(queue) else { return Ok(()) };
        let mut delays = consumer.retry.delays.clone();
        delays.dedup();
        let retry = delays.iter().map(|delay| Topology::retry_queue(queue, *delay)).collect();
        let mut roles = [vec![queue.to_owned()], retry, vec![Topology::dead_letter_queue(queue)]];
        if consumer.is_observer() {
            // It has no retry and dead-letter queues.
            roles[1..].iter_mut().for_each(Vec::clear);
        }
        for (index, names) in roles.into_iter().enumerate() {
            let (mut ready, mut subscriptions) = (0, 0);
            for name in names {
                if let Some(found) = query_depth(connection, self.config.rabbitmq.timeout, &name).await? {
                    ready += found.ready;
                    subscriptions += found.subscriptions;
                }
            }
            metrics.ready[index].set(f64::from(ready));
            metrics.consumers[index].set(f64::from(subscriptions));
        }
        Ok(())
    }
}

/// Returns `None` for a read that took too long or waited for a lock, so that its gauge keeps the last value: the server has answered, with
/// that error.
fn ignore_slow<T>(read: Result<T, sqlx::Error>) -> Result<Option<T>, sqlx::Error> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if pg::is_slow(&error) => {
            tracing::debug!(error = pg::describe(&error), "what waits can't be counted in time");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[allow(clippy::cast_precision_loss)] // counts below 2^53
fn to_float(count: i64) -> f64 {
    count as f64
}
