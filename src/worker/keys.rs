//! The keys of a worker, which may be replaced while it runs: the heartbeat reads them every ten seconds. A lane asks before it judges
//! where a message names one that is not here, and where nobody has read them for long.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::config::Config;
use crate::mirror::{TagKey, configured_tag_key};
use crate::pg::{self, Secrets};
use crate::signing::SigningKeys;

/// Nothing is judged and nothing signed by what was read longer ago: the heartbeat was away, or the process stood still.
const STALE: Duration = Duration::from_secs(15);

/// As they were at a moment.
pub(crate) struct KeysNow {
    pub(crate) signing: SigningKeys,
    pub(crate) tags: TagKey,
}

/// As they are.
pub(crate) struct Keys {
    config: Config,
    now: RwLock<Reading>,
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

    fn began(&self) -> Instant {
        self.now.read().unwrap_or_else(PoisonError::into_inner).began
    }

    /// Was it too long ago that they were read?
    pub(crate) fn are_stale(&self) -> bool {
        self.began().elapsed() > STALE
    }

    /// Asks the database, unless somebody has done so since. What arrived before that is signed with a key that was there before that,
    /// so a name that is not known then is nobody's, however the times are said. Whoever forges names costs a question a batch, less than
    /// their dead letters do.
    ///
    /// # Errors
    /// When it fails: nothing may be judged by the keys that are here.
    pub(crate) async fn ask(&self, since: Instant, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.began() < since {
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
