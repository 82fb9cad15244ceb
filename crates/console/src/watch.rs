//! The state of the system, queried once for all users: pages refresh every few seconds, and many users may view them at once.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;

use super::actions::merge_steps;
use super::pool::{Pool, TASK_TIMEOUT};
use oncely_config::Config;
use oncely_core::units::Times;
use oncely_ops::status::{
    DatabaseSnapshot, ServerFailure, Servers, StatusFinding, StatusSnapshot, collect_findings,
};
use oncely_postgres::{self as pg, Abilities, ActionRow, ConsumerStats, RecentOutcome, Session};

/// Time for which a view is valid.
const VIEW_LIFETIME: Duration = Duration::from_secs(2);
/// A RabbitMQ or Redis that takes longer counts as unreachable for a page.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time range of the latest numbers.
pub(crate) const ACTIVITY_RANGE: chrono::Duration = chrono::Duration::minutes(15);
/// The width of a span of the statistics.
pub(crate) const SPAN_WIDTH: Duration = Duration::from_secs(10);
/// Time range in which dead letters are compared with all decisions.
const COMPARED_RANGE: chrono::Duration = chrono::Duration::minutes(5);
/// Maximum number of recent actions of users, and of their steps that are read.
const MAX_ACTIONS: usize = 8;
const MAX_STEPS: i64 = 400;

/// The state of the system at one time.
pub(crate) struct StatusView {
    pub(crate) snapshot: StatusSnapshot,
    pub(crate) findings: Vec<StatusFinding>,
    /// Activity of the last minutes; `None` if PostgreSQL does not answer.
    pub(crate) activity: Option<RecentActivity>,
}

/// Facts from PostgreSQL about the last minutes.
pub(crate) struct RecentActivity {
    /// The database's time.
    pub(crate) now: DateTime<Utc>,
    /// Spans of ten seconds of the last 15 minutes, in order of time and consumer.
    pub(crate) stats: Vec<ConsumerStats>,
    pub(crate) actions: Vec<ActionRow>,
    /// Waiting dead letters, counted up to 10,000.
    pub(crate) open_letters: i64,
    pub(crate) abilities: Abilities,
}

/// Queries the state, and caches it briefly.
pub(crate) struct StatusWatch {
    servers: Servers,
    cache: Mutex<Option<(Instant, Arc<StatusView>)>>,
    /// The last view, however old: for the frame, which does not wait.
    latest: std::sync::RwLock<Option<Arc<StatusView>>>,
}

impl StatusView {
    /// Creates a view without facts, for a query that failed.
    pub(crate) fn from_failed_query() -> Self {
        let snapshot = StatusSnapshot {
            postgres: Err(ServerFailure { text: "it broke off".to_owned(), is_away: false }),
            has_broker: true,
            rabbitmq: Err("it broke off".to_owned()),
            redis: None,
        };
        let findings = collect_findings(&snapshot, Times { utc: true });
        Self { snapshot, findings, activity: None }
    }
}

impl StatusWatch {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            servers: Servers::new(config, "oncely console", SERVER_TIMEOUT),
            cache: Mutex::default(),
            latest: std::sync::RwLock::default(),
        }
    }

    /// Queries the state of the system, or returns one that is at most two seconds old. Concurrent callers share one query.
    pub(crate) async fn query(&self, config: &Config, pool: &Pool) -> Arc<StatusView> {
        let mut cache = self.cache.lock().await;
        if let Some((at, view)) = &*cache
            && at.elapsed() < VIEW_LIFETIME
        {
            return Arc::clone(view);
        }
        let view = Arc::new(self.query_servers(config, pool).await);
        *cache = Some((Instant::now(), Arc::clone(&view)));
        // A panic can't leave it inconsistent: every change is one assignment.
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&view));
        view
    }

    /// Returns the last view, however old; `None` before the first query has ended.
    pub(crate) fn latest(&self) -> Option<Arc<StatusView>> {
        self.latest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the next call query again, after a change.
    pub(crate) async fn invalidate(&self) {
        *self.cache.lock().await = None;
    }

    /// Queries all servers at the same time.
    async fn query_servers(&self, config: &Config, pool: &Pool) -> StatusView {
        let (postgres, rabbitmq, redis) = tokio::join!(
            pg::wait_for_answer(TASK_TIMEOUT, query_database(config, pool)),
            self.servers.query_queues(config),
            self.servers.check_redis()
        );
        let (postgres, activity) = match postgres {
            Ok((database, activity)) => (Ok(database), Some(activity)),
            Err(error) => {
                let is_away = pg::is_outage(&error) || matches!(error, sqlx::Error::Configuration(_));
                (Err(ServerFailure { text: pg::describe(&error), is_away }), None)
            }
        };
        let snapshot = StatusSnapshot { postgres, has_broker: config.has_broker, rabbitmq, redis };
        let findings = collect_findings(&snapshot, Times { utc: true });
        StatusView { snapshot, findings, activity }
    }
}

/// Takes a session from the pool, and queries the database on it.
async fn query_database(
    config: &Config,
    pool: &Pool,
) -> Result<(DatabaseSnapshot, RecentActivity), sqlx::Error> {
    let mut pooled = pool.acquire().await?;
    let result = query_session(config, &mut pooled.session, pooled.facts.clone()).await?;
    pooled.give_back();
    Ok(result)
}

/// Queries the facts of the database and of the last minutes.
async fn query_session(
    config: &Config,
    session: &mut Session,
    abilities: Abilities,
) -> Result<(DatabaseSnapshot, RecentActivity), sqlx::Error> {
    let now = session.clock.now();
    let connection = &mut session.connection;
    let stats = pg::read_consumer_stats(connection, now - ACTIVITY_RANGE, SPAN_WIDTH).await?;
    let actions = merge_steps(pg::list_recent_actions(connection, MAX_STEPS).await?, MAX_ACTIONS);
    let open_letters = pg::count_open_letters(connection).await?;
    let database = DatabaseSnapshot::read(config, session, recent_outcomes(&stats, now)).await?;
    Ok((database, RecentActivity { now, stats, actions, open_letters, abilities }))
}

/// Returns the recent outcomes from the statistics: the trail may have millions of rows for the same time.
fn recent_outcomes(stats: &[ConsumerStats], now: DateTime<Utc>) -> Vec<RecentOutcome> {
    let mut rows: Vec<RecentOutcome> = Vec::new();
    for span in stats.iter().filter(|span| span.at >= now - COMPARED_RANGE) {
        let others = span.completed + span.refused + span.duplicates + span.retried;
        for (outcome, count) in [("completed", others), ("dead_lettered", span.dead_lettered)] {
            let row = rows.iter_mut().find(|row| row.consumer == span.consumer && row.outcome == outcome);
            match row {
                Some(row) => row.count += count,
                None => rows.push(RecentOutcome {
                    consumer: span.consumer.clone(),
                    outcome: outcome.to_owned(),
                    reason: None,
                    count,
                }),
            }
        }
    }
    rows.sort_by(|a, b| a.consumer.cmp(&b.consumer));
    rows
}
