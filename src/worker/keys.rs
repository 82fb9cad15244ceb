//! The keys of a worker, which may be replaced while it runs: the heartbeat reads them every ten seconds, and a lane that meets the name of
//! one that is not here asks before it judges.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::Mutex;

use crate::config::Config;
use crate::mirror::{TagKey, configured_tag_key};
use crate::pg::{self, Secrets};
use crate::signing::SigningKeys;

/// What a lane that asks may be told of a moment ago: whoever forges names must not have it ask for each message. A new key signs nothing
/// before it has been there for five seconds (`oncely.rotate_secret`), so what was read later than this knows all that sign.
const ONCE: Duration = Duration::from_secs(1);

/// As they were at a moment.
pub(crate) struct KeysNow {
    pub(crate) signing: SigningKeys,
    pub(crate) tags: TagKey,
}

/// As they are.
pub(crate) struct Keys {
    config: Config,
    now: RwLock<Reading>,
    /// One lane asks at a time, and the others wait for its answer.
    asking: Mutex<()>,
}

/// What was read, and when that began.
struct Reading {
    began: Instant,
    keys: Arc<KeysNow>,
}

impl Keys {
    pub(crate) fn new(config: &Config, secrets: &Secrets) -> Self {
        Self {
            config: config.clone(),
            now: RwLock::new(Reading { began: secrets.asked, keys: Arc::new(KeysNow::of(config, secrets)) }),
            asking: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> Arc<KeysNow> {
        // A panic elsewhere leaves it whole.
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).keys)
    }

    /// These hold now, unless somebody has asked later.
    pub(crate) fn learn(&self, secrets: &Secrets) {
        let keys = Arc::new(KeysNow::of(&self.config, secrets));
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if now.began <= secrets.asked {
            *now = Reading { began: secrets.asked, keys };
        }
    }

    fn is_fresh(&self) -> bool {
        self.now.read().unwrap_or_else(PoisonError::into_inner).began.elapsed() < ONCE
    }

    /// Asks the database, unless somebody has just done so.
    ///
    /// # Errors
    /// When it fails: nothing may be judged by the keys that are here.
    pub(crate) async fn ask(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let _asking = self.asking.lock().await;
        if !self.is_fresh() {
            self.learn(&pg::secrets(connection).await?);
        }
        Ok(())
    }
}

impl KeysNow {
    fn of(config: &Config, secrets: &Secrets) -> Self {
        Self {
            signing: config.signing_keys(&secrets.signing),
            tags: configured_tag_key(config).unwrap_or_else(|| TagKey::derive(&secrets.mirror)),
        }
    }
}
