//! The state of the system, queried once for all users: pages refresh every few seconds, and many users may view them at once.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;

use super::actions::merge_steps;
use super::pool::{DEAD, Pool};
use oncely_config::Config;
use oncely_core::units::Times;
use oncely_ops::status::{DatabaseSnapshot, ServerFailure, Servers, StatusFinding, StatusSnapshot, judge};
use oncely_postgres::{self as pg, Abilities, ActionRow, ConsumerStats, RecentOutcome, Session};

/// How long an answer is valid.
const GOOD: Duration = Duration::from_secs(2);
/// A RabbitMQ or Redis that takes longer counts as unreachable for a page.
const LIMIT: Duration = Duration::from_millis(1_500);
/// Time range of the latest numbers.
pub(crate) const LATELY: chrono::Duration = chrono::Duration::minutes(15);
/// The width of a span of the statistics.
pub(crate) const SPAN: Duration = Duration::from_secs(10);
/// Time range in which dead letters are compared with all decisions.
const RECENT: chrono::Duration = chrono::Duration::minutes(5);
/// Maximum number of recent actions of users, and of their steps that are read.
const ACTIONS: usize = 8;
const STEPS: i64 = 400;

/// The state of the system at one time.
pub(crate) struct StatusView {
    pub(crate) picture: StatusSnapshot,
    pub(crate) findings: Vec<StatusFinding>,
    /// Further facts, if PostgreSQL answers.
    pub(crate) lately: Option<RecentActivity>,
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
    kept: Mutex<Option<(Instant, Arc<StatusView>)>>,
    /// The last answer, however old: for the frame, which does not wait.
    latest: std::sync::RwLock<Option<Arc<StatusView>>>,
}

impl StatusView {
    /// Returns a replacement for a view after a failed query.
    pub(crate) fn broken_off() -> Self {
        let picture = StatusSnapshot {
            postgres: Err(ServerFailure { text: "it broke off".to_owned(), is_away: false }),
            has_broker: true,
            rabbitmq: Err("it broke off".to_owned()),
            redis: None,
        };
        let findings = judge(&picture, Times { utc: true });
        Self { picture, findings, lately: None }
    }
}

impl StatusWatch {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            servers: Servers::new(config, "oncely console", LIMIT),
            kept: Mutex::default(),
            latest: std::sync::RwLock::default(),
        }
    }

    /// Returns the state of the system, at most two seconds old. Concurrent callers share one query.
    pub(crate) async fn view(&self, config: &Config, pool: &Pool) -> Arc<StatusView> {
        let mut kept = self.kept.lock().await;
        if let Some((at, view)) = &*kept
            && at.elapsed() < GOOD
        {
            return Arc::clone(view);
        }
        let view = Arc::new(self.ask(config, pool).await);
        *kept = Some((Instant::now(), Arc::clone(&view)));
        // Every change is one assignment.
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&view));
        view
    }

    /// Returns the last answer, if there was one.
    pub(crate) fn latest(&self) -> Option<Arc<StatusView>> {
        self.latest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the next call query again, after a change.
    pub(crate) async fn forget(&self) {
        *self.kept.lock().await = None;
    }

    async fn ask(&self, config: &Config, pool: &Pool) -> StatusView {
        let (postgres, rabbitmq, redis) = tokio::join!(
            pg::within(DEAD, database(config, pool)),
            self.servers.queues(config),
            self.servers.redis()
        );
        let (postgres, lately) = match postgres {
            Ok((database, lately)) => (Ok(database), Some(lately)),
            Err(error) => {
                let is_away = pg::is_outage(&error) || matches!(error, sqlx::Error::Configuration(_));
                (Err(ServerFailure { text: pg::describe(&error), is_away }), None)
            }
        };
        let picture = StatusSnapshot { postgres, has_broker: config.has_broker, rabbitmq, redis };
        let findings = judge(&picture, Times { utc: true });
        StatusView { picture, findings, lately }
    }
}

async fn database(config: &Config, pool: &Pool) -> Result<(DatabaseSnapshot, RecentActivity), sqlx::Error> {
    let mut pooled = pool.acquire().await?;
    let answer = ask_database(config, &mut pooled.session, pooled.facts.clone()).await?;
    pooled.give_back();
    Ok(answer)
}

async fn ask_database(
    config: &Config,
    session: &mut Session,
    abilities: Abilities,
) -> Result<(DatabaseSnapshot, RecentActivity), sqlx::Error> {
    let now = session.clock.now();
    let connection = &mut session.connection;
    let stats = pg::consumer_stats(connection, now - LATELY, SPAN).await?;
    let actions = merge_steps(pg::recent_actions(connection, STEPS).await?, ACTIONS);
    let open_letters = pg::open_letters(connection).await?;
    let database = DatabaseSnapshot::read(config, session, recent(&stats, now)).await?;
    Ok((database, RecentActivity { now, stats, actions, open_letters, abilities }))
}

/// Returns the recent outcomes from the statistics: the trail may have millions of rows for the same time.
fn recent(stats: &[ConsumerStats], now: DateTime<Utc>) -> Vec<RecentOutcome> {
    let mut found: Vec<RecentOutcome> = Vec::new();
    for span in stats.iter().filter(|span| span.at >= now - RECENT) {
        let others = span.completed + span.refused + span.duplicates + span.retried;
        for (outcome, count) in [("completed", others), ("dead_lettered", span.dead_lettered)] {
            let known =
                found.iter_mut().find(|known| known.consumer == span.consumer && known.outcome == outcome);
            match known {
                Some(known) => known.count += count,
                None => found.push(RecentOutcome {
                    consumer: span.consumer.clone(),
                    outcome: outcome.to_owned(),
                    reason: None,
                    count,
                }),
            }
        }
    }
    found.sort_by(|a, b| a.consumer.cmp(&b.consumer));
    found
}
