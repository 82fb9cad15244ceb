//! Counts each tenant's stored dead letters once a minute.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_config::Config;
use oncely_failpoint::step;
use oncely_postgres::{NoSession, Session, SessionFactory, count_stored, describe, is_outage, within};
use oncely_process::vitals::LoopBeat;

/// Time between two counts. Between them workers add the letters that they store; deleted letters still count until the next one.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts until `stop`. Several relays may run it: the second leaves the count to the first.
pub(crate) async fn run_counts(
    config: Config,
    factory: SessionFactory,
    beat: LoopBeat,
    stop: CancellationToken,
) {
    let application = format!("oncely relay {} counts", config.worker.name);
    let mut session = None;
    while !stop.is_cancelled() {
        beat.expect(INTERVAL + config.postgres.client_timeout() * 4);
        if let Err(error) = measure_usage(&config, &factory, &application, &mut session).await {
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

async fn measure_usage(
    config: &Config,
    factory: &SessionFactory,
    application: &str,
    slot: &mut Option<Session>,
) -> Result<(), NoSession> {
    let session = match slot {
        // A former primary that is still running lacks newer commits.
        Some(session) if factory.admits(session) => session,
        _ => slot.insert(factory.open(application).await?),
    };
    Ok(count(config, session).await?)
}

/// Counts, and removes messages of closed letters from tenants that have used nine tenths of their quota.
pub(crate) async fn count(config: &Config, session: &mut Session) -> Result<(), sqlx::Error> {
    let counted = count_stored(&mut session.connection, config.dead_letters.quota());
    step("gc.count.before");
    let counted = within(config.postgres.client_timeout(), counted).await;
    step("gc.count.after");
    match counted {
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
