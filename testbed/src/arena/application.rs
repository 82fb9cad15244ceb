//! Applications that emit events with nothing but a connection to PostgreSQL: short transactions, several at a time on few
//! ordering keys; some roll back, some in part, and some lose their connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;

/// At the same time, each with a connection of its own.
const AT_ONCE: u64 = 4;
/// Ordering keys; a transaction uses one, so that no two wait for each other.
const KEYS: u8 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Application {
    stop: Arc<AtomicBool>,
    rolled_back: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Application {
    /// `url`: of the database, as a user who may emit.
    pub(super) fn start(url: &str, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rolled_back = Arc::new(AtomicU64::new(0));
        let tasks = (0..AT_ONCE)
            .map(|number| {
                let one = One {
                    url: url.to_owned(),
                    random: Rng::with_seed(seed ^ (number << 32)),
                    rolled_back: Arc::clone(&rolled_back),
                };
                tokio::spawn(one.run(Arc::clone(&stop)))
            })
            .collect();
        Self { stop, rolled_back, tasks }
    }

    /// Lets transactions end. Returns how many events were rolled back on purpose.
    pub(super) async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            // A panic in a task is the harness's own fault, and shows as missing events.
            let _ = task.await;
        }
        self.rolled_back.load(Ordering::SeqCst)
    }
}

struct One {
    url: String,
    random: Rng,
    rolled_back: Arc<AtomicU64>,
}

impl One {
    async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::SeqCst) {
            if let Ok(mut connection) = PgConnection::connect(&self.url).await {
                while !stop.load(Ordering::SeqCst) && self.transaction(&mut connection).await.is_ok() {
                    self.pause(100).await;
                }
            }
            // Its server is away, or its session was ended: as an application does, it comes again.
            self.pause(200).await;
        }
    }

    /// Up to three events, told of one thing or of nothing in particular.
    async fn transaction(&mut self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let key = (self.random.u8(0..4) > 0).then(|| format!("order-{}", self.random.u8(0..KEYS)));
        let mut transaction = connection.begin().await?;
        let mut events = 0;
        for _ in 0..self.random.u8(1..=3) {
            tell(&mut transaction, key.as_deref()).await?;
            events += 1;
        }
        if self.random.u8(0..8) == 0 {
            let mut part = transaction.begin().await?;
            tell(&mut part, key.as_deref()).await?;
            part.rollback().await?;
            self.rolled_back.fetch_add(1, Ordering::SeqCst);
        }
        // Others come to the same key meanwhile.
        self.pause(10).await;
        if self.random.u8(0..4) == 0 {
            transaction.rollback().await?;
            self.rolled_back.fetch_add(events, Ordering::SeqCst);
        } else {
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn pause(&mut self, most: u64) {
        tokio::time::sleep(Duration::from_millis(self.random.u64(0..most))).await;
    }
}

async fn tell(connection: &mut PgConnection, key: Option<&str>) -> Result<(), sqlx::Error> {
    sqlx::query("select judge.tell('application', $1)").bind(key).execute(connection).await.map(drop)
}
