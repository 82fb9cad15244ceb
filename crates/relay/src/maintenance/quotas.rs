//! Counts each tenant's stored dead letters once a minute.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_config::Config;
use oncely_failpoint::step;
use oncely_postgres::{
    NoSession, Session, SessionFactory, count_stored, describe, is_outage, wait_for_answer,
};
use oncely_process::vitals::LoopBeat;

/// Time between two counts. Between them workers add the letters that they store; deleted letters still count until the next one.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Counts the stored dead letters at intervals until `stop`; errors are logged. Several relays may run it: the second leaves the count to
/// the first.
pub(crate) async fn run_counts(
    config: Config,
    factory: SessionFactory,
    beat: LoopBeat,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {} counts", config.worker.name);
    let mut session = None;
    while !stop.is_cancelled() {
        beat.begin_step(COUNT_INTERVAL + config.postgres.client_timeout() * 4);
        if let Err(error) = open_and_count(&config, &factory, &application, &mut session).await {
            tracing::debug!(error = %error, "stored dead letters can't be counted");
            session = None;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
    }
    if let Some(session) = session {
        session.close().await;
    }
}

/// Counts on the session in `slot`; opens a new one unless that is on the newest timeline.
async fn open_and_count(
    config: &Config,
    factory: &SessionFactory,
    application: &str,
    slot: &mut Option<Session>,
) -> Result<(), NoSession> {
    let session = match slot {
        // A former primary that is still running lacks newer commits.
        Some(session) if factory.record_timeline(session) => session,
        _ => slot.insert(factory.open(application).await?),
    };
    Ok(count_letters(config, session).await?)
}

/// Counts each tenant's stored dead letters, and removes messages of closed ones from tenants that have used nine tenths of their quota.
/// Only an outage is returned as an error; other errors are logged.
pub(crate) async fn count_letters(config: &Config, session: &mut Session) -> Result<(), sqlx::Error> {
    let count = count_stored(&mut session.connection, config.dead_letters.quota());
    step("gc.count.before");
    let result = wait_for_answer(config.postgres.client_timeout(), count).await;
    step("gc.count.after");
    match result {
        Ok(Some(letters)) if letters > 0 => {
            tracing::info!(letters, "removed messages of closed dead letters of tenants near their quota");
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) if !is_outage(&error) => {
            tracing::warn!(error = describe(&error), "cannot count stored dead letters");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
