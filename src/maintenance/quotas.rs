//! What is stored of each tenant's dead letters, counted once a minute.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::failpoint::step;
use crate::pg::{Door, NoSession, Session, count_stored, describe, is_outage, within};
use crate::vitals::Beat;

/// How often. Workers add what they store meanwhile; only what is gone counts until then.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts until told to stop. Several relays do no harm: whoever comes second leaves it to the first.
pub(crate) async fn run_counts(config: Config, door: Door, beat: Beat, stop: CancellationToken) {
    let application = format!("oncely relay {} counts", config.worker.name);
    let mut session = None;
    while !stop.is_cancelled() {
        beat.expect(INTERVAL + config.postgres.client_timeout() * 4);
        if let Err(error) = look(&config, &door, &application, &mut session).await {
            tracing::debug!(error = %error, "stored dead letters can't be counted");
            session = None;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    if let Some(session) = session {
        session.close().await;
    }
}

async fn look(
    config: &Config,
    door: &Door,
    application: &str,
    slot: &mut Option<Session>,
) -> Result<(), NoSession> {
    let session = match slot {
        // An old primary that lives on knows nothing of what comes.
        Some(session) if door.admits(session) => session,
        _ => slot.insert(door.open(application).await?),
    };
    Ok(count(config, session).await?)
}

/// Counts, and makes room where a tenant has used its quota up.
pub(crate) async fn count(config: &Config, session: &mut Session) -> Result<(), sqlx::Error> {
    let counted = count_stored(&mut session.connection, config.dead_letters.quota());
    step("gc.count.before");
    let counted = within(config.postgres.client_timeout(), counted).await;
    step("gc.count.after");
    match counted {
        Ok(Some(letters)) if letters > 0 => {
            tracing::info!(letters, "closed dead letters made room for others of their tenants");
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) if !is_outage(&error) => {
            tracing::warn!(error = describe(&error), "stored dead letters were not counted");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
