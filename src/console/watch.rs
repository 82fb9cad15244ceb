//! How everything stands, asked once for all who look: pages ask again every few seconds, and many people may look at once.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;

use super::actions::together;
use super::broker::Broker;
use super::pool::{DEAD, Pool};
use crate::config::Config;
use crate::mirror::Mirror;
use crate::pg::{self, Abilities, ActionRow, ConsumerStats, RecentOutcome, Session};
use crate::status::{Database, Finding, Missing, Picture, judge};
use crate::units::Times;

/// An answer is good for so long.
const GOOD: Duration = Duration::from_secs(2);
/// For Redis, which is worth no more.
const REDIS: Duration = Duration::from_secs(1);
/// The span over which the latest numbers are.
pub(crate) const LATELY: chrono::Duration = chrono::Duration::minutes(15);
/// The width of a span of the statistics.
pub(crate) const SPAN: Duration = Duration::from_secs(10);
/// How far back dead letters are compared with all decisions.
const RECENT: chrono::Duration = chrono::Duration::minutes(5);
/// What people did lately: so much of it, and so many steps of it are read.
const ACTIONS: usize = 8;
const STEPS: i64 = 400;

/// How everything stands at one time.
pub(crate) struct View {
    pub(crate) picture: Picture,
    pub(crate) findings: Vec<Finding>,
    /// What is known besides, where PostgreSQL answers.
    pub(crate) lately: Option<Lately>,
}

/// What PostgreSQL knows of the last minutes.
pub(crate) struct Lately {
    /// The database's time.
    pub(crate) now: DateTime<Utc>,
    /// Spans of ten seconds of the last 15 minutes, in order of time and consumer.
    pub(crate) stats: Vec<ConsumerStats>,
    pub(crate) actions: Vec<ActionRow>,
    /// Dead letters that wait, counted up to 10,000.
    pub(crate) open_letters: i64,
    pub(crate) abilities: Abilities,
}

/// Asks, and keeps the answer for a moment.
pub(crate) struct Watch {
    broker: Broker,
    mirror: Option<Mirror>,
    kept: Mutex<Option<(Instant, Arc<View>)>>,
    /// The last answer, however old: for the frame, which waits for nothing.
    latest: std::sync::RwLock<Option<Arc<View>>>,
}

impl View {
    /// Instead of one whose asking failed.
    pub(crate) fn broken_off() -> Self {
        let picture = Picture {
            postgres: Err(Missing { text: "it broke off".to_owned(), is_away: false }),
            has_broker: true,
            rabbitmq: Err("it broke off".to_owned()),
            redis: None,
        };
        let findings = judge(&picture, Times { utc: true });
        Self { picture, findings, lately: None }
    }
}

impl Watch {
    pub(crate) fn new(config: &Config) -> Self {
        let mirror = config.mirror.as_ref().and_then(|settings| Mirror::new(settings).ok());
        Self {
            broker: Broker::default(),
            mirror,
            kept: Mutex::default(),
            latest: std::sync::RwLock::default(),
        }
    }

    /// How everything stands, as of the last two seconds. Whoever comes while somebody asks waits for that answer.
    pub(crate) async fn view(&self, config: &Config, pool: &Pool) -> Arc<View> {
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

    /// The last answer, if there was one.
    pub(crate) fn latest(&self) -> Option<Arc<View>> {
        self.latest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The next one asks anew: something was changed.
    pub(crate) async fn forget(&self) {
        *self.kept.lock().await = None;
    }

    async fn ask(&self, config: &Config, pool: &Pool) -> View {
        let redis = async {
            let mirror = self.mirror.as_ref()?;
            Some(match tokio::time::timeout(REDIS, mirror.ping()).await {
                Ok(answer) => answer.map_err(|error| Missing { text: error.to_string(), is_away: true }),
                Err(_) => Err(Missing { text: format!("no answer within {REDIS:?}"), is_away: true }),
            })
        };
        let (postgres, rabbitmq, redis) =
            tokio::join!(pg::within(DEAD, database(config, pool)), self.broker.queues(config), redis);
        let (postgres, lately) = match postgres {
            Ok((database, lately)) => (Ok(database), Some(lately)),
            Err(error) => {
                let is_away = pg::is_outage(&error) || matches!(error, sqlx::Error::Configuration(_));
                (Err(Missing { text: pg::describe(&error), is_away }), None)
            }
        };
        let picture = Picture { postgres, has_broker: config.has_broker, rabbitmq, redis };
        let findings = judge(&picture, Times { utc: true });
        View { picture, findings, lately }
    }
}

async fn database(config: &Config, pool: &Pool) -> Result<(Database, Lately), sqlx::Error> {
    let mut lease = pool.lease().await?;
    let answer = ask_database(config, &mut lease.session, lease.abilities.clone()).await?;
    lease.give_back();
    Ok(answer)
}

async fn ask_database(
    config: &Config,
    session: &mut Session,
    abilities: Abilities,
) -> Result<(Database, Lately), sqlx::Error> {
    let now = session.clock.now();
    let connection = &mut session.connection;
    let stats = pg::consumer_stats(connection, now - LATELY, SPAN).await?;
    let actions = together(pg::recent_actions(connection, STEPS).await?, ACTIONS);
    let open_letters = pg::open_letters(connection).await?;
    let database = Database::ask(config, session, recent(&stats, now)).await?;
    Ok((database, Lately { now, stats, actions, open_letters, abilities }))
}

/// What was decided lately, by the statistics: the trail may hold millions of rows of it.
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
