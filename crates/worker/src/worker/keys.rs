//! Keys of a worker, which may be replaced while it runs: the heartbeat reads them every ten seconds. A lane reads them before it judges
//! messages if one names a key that is not here, or if they were read long ago.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use oncely_config::Config;
use oncely_core::signing::SigningKeys;
use oncely_mirror::{TagKey, configured_tag_key};
use oncely_postgres::{self as pg, Secrets};

/// Age from which keys neither judge nor sign: the heartbeat was away, or the process was suspended.
const STALE: Duration = Duration::from_secs(15);

/// Keys at one time.
pub(crate) struct CurrentKeys {
    pub(crate) signing: SigningKeys,
    pub(crate) tags: TagKey,
}

/// Present keys.
pub(crate) struct KeyCache {
    config: Config,
    now: RwLock<KeysReading>,
}

/// Keys, and when their reading began.
struct KeysReading {
    began: Instant,
    keys: Arc<CurrentKeys>,
}

impl KeyCache {
    pub(crate) fn new(config: &Config, secrets: &Secrets) -> Self {
        Self {
            config: config.clone(),
            now: RwLock::new(KeysReading {
                began: secrets.asked,
                keys: Arc::new(CurrentKeys::new(config, secrets)),
            }),
        }
    }

    pub(crate) fn now(&self) -> Arc<CurrentKeys> {
        // A panic elsewhere leaves it whole.
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).keys)
    }

    /// Adopts keys, unless later ones were read.
    pub(crate) fn replace(&self, secrets: &Secrets) {
        let keys = Arc::new(CurrentKeys::new(&self.config, secrets));
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if now.began <= secrets.asked {
            *now = KeysReading { began: secrets.asked, keys };
        }
    }

    fn began(&self) -> Instant {
        self.now.read().unwrap_or_else(PoisonError::into_inner).began
    }

    /// Returns whether they were read too long ago.
    pub(crate) fn are_stale(&self) -> bool {
        self.began().elapsed() > STALE
    }

    /// Reads the keys, unless that was done after `since`. A message that arrived before is signed with a key that existed before, so a key
    /// unknown by then is invalid, regardless of stated times. Forged names cost a query a batch, less than their dead letters do.
    ///
    /// # Errors
    /// When the query fails: nothing may be judged by the present keys.
    pub(crate) async fn refresh(
        &self,
        since: Instant,
        connection: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        if self.began() < since {
            self.replace(&pg::secrets(connection).await?);
        }
        Ok(())
    }
}

impl CurrentKeys {
    fn new(config: &Config, secrets: &Secrets) -> Self {
        Self {
            signing: config.signing_keys(&secrets.signing),
            tags: configured_tag_key(config).unwrap_or_else(|| TagKey::derive(&secrets.mirror)),
        }
    }
}
