//! Looks at the effects from outside: how long there is no new one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

const LOOK: Duration = Duration::from_millis(100);
/// What is not answered by then counts as nothing new.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

struct Seen {
    effects: i64,
    since: Instant,
    longest: Duration,
}

impl Watch {
    /// Looks at the database at `url`, as long as this process lives.
    pub(crate) fn start(url: String) -> Self {
        let watch =
            Self(Arc::new(Mutex::new(Seen { effects: 0, since: Instant::now(), longest: Duration::ZERO })));
        let seen = watch.clone();
        tokio::spawn(async move {
            loop {
                if let Ok(Ok(mut connection)) = tokio::time::timeout(LIMIT, PgConnection::connect(&url)).await
                {
                    while let Ok(Ok(effects)) = tokio::time::timeout(LIMIT, count(&mut connection)).await {
                        seen.note(effects);
                        tokio::time::sleep(LOOK).await;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        watch
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, effects: i64) {
        let mut seen = self.seen();
        if effects != seen.effects {
            seen.effects = effects;
            seen.longest = seen.longest.max(seen.since.elapsed());
            seen.since = Instant::now();
        }
    }

    /// From now on.
    pub(crate) fn begin(&self) {
        let mut seen = self.seen();
        (seen.since, seen.longest) = (Instant::now(), Duration::ZERO);
    }

    /// The longest time without a new effect since then.
    pub(crate) fn longest(&self) -> Duration {
        let seen = self.seen();
        seen.longest.max(seen.since.elapsed())
    }
}

async fn count(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select count(*) from judge.log").fetch_one(connection).await
}
