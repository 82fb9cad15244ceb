//! Keys of a worker, which may be replaced while it runs: the heartbeat reads them every ten seconds. A lane reads them before it prepares
//! messages if one names a key that is not here, or if they were read long ago.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use oncely_config::Config;
use oncely_core::signing::SigningKeys;
use oncely_mirror::{TagKey, configured_tag_key};
use oncely_postgres::{self as pg, Secrets};

/// Age from which keys neither verify nor sign: the heartbeat was away, or the process was suspended.
const STALE_AFTER: Duration = Duration::from_secs(15);

/// Keys at one time.
pub(crate) struct CurrentKeys {
    pub(crate) signing: SigningKeys,
    pub(crate) tags: TagKey,
}

/// The keys that were read last.
pub(crate) struct KeyCache {
    config: Config,
    reading: RwLock<KeysReading>,
}

/// Keys, and when their reading began.
struct KeysReading {
    read_at: Instant,
    keys: Arc<CurrentKeys>,
}

impl KeyCache {
    pub(crate) fn new(config: &Config, secrets: &Secrets) -> Self {
        Self {
            config: config.clone(),
            reading: RwLock::new(KeysReading {
                read_at: secrets.read_at,
                keys: Arc::new(CurrentKeys::new(config, secrets)),
            }),
        }
    }

    /// Returns the keys that were read last.
    pub(crate) fn current(&self) -> Arc<CurrentKeys> {
        // A panic elsewhere leaves it whole.
        Arc::clone(&self.reading.read().unwrap_or_else(PoisonError::into_inner).keys)
    }

    /// Adopts keys, unless later ones were read.
    pub(crate) fn replace(&self, secrets: &Secrets) {
        let keys = Arc::new(CurrentKeys::new(&self.config, secrets));
        let mut reading = self.reading.write().unwrap_or_else(PoisonError::into_inner);
        if reading.read_at <= secrets.read_at {
            *reading = KeysReading { read_at: secrets.read_at, keys };
        }
    }

    /// Returns the time at which the last reading started.
    fn last_read_at(&self) -> Instant {
        self.reading.read().unwrap_or_else(PoisonError::into_inner).read_at
    }

    /// Returns whether the keys were read too long ago.
    pub(crate) fn are_stale(&self) -> bool {
        self.last_read_at().elapsed() > STALE_AFTER
    }

    /// Reads the keys, unless that was done after `since`. A message that arrived before is signed with a key that existed before, so a key
    /// unknown by then is invalid, regardless of stated times. Forged names cost a query a batch, less than their dead letters do.
    ///
    /// # Errors
    /// If the query fails: no message may be prepared with the present keys.
    pub(crate) async fn refresh(
        &self,
        since: Instant,
        connection: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        if self.last_read_at() < since {
            self.replace(&pg::read_secrets(connection).await?);
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
