//! What a worker tells the database at its start: what decides about its consumers' keys.

use super::error::WorkerError;
use crate::config::{Config, Consumer, Problems};
use crate::decide::OnConflict;
use crate::fault::FaultClass;
use crate::pg::{self, PgFault, Registered, Registration, Session, classify};

/// Tells the database, and says where it knows better. `false`: it does not answer.
///
/// # Errors
/// Where the database refuses it.
pub(super) async fn register(config: &Config, session: &mut Session) -> Result<bool, WorkerError> {
    for consumer in &config.consumers {
        let fingerprint = consumer.fingerprint.name();
        let with = Registration {
            consumer: consumer.name.as_str(),
            retention: consumer.retention,
            // A copy on a rung comes back, too.
            redelivery_horizon: consumer.horizon(),
            fingerprint: &fingerprint,
            on_conflict: match consumer.on_conflict {
                OnConflict::DeadLetter => "dead_letter",
                OnConflict::Duplicate => "duplicate",
            },
            worker: &config.worker.name,
        };
        let asked = pg::register_consumer(&mut session.connection, with);
        match pg::within(config.postgres.client_timeout(), asked).await {
            Ok(registered) => log_differences(consumer, &fingerprint, &registered),
            Err(error) => match classify(error) {
                PgFault::Outage(outage) => {
                    tracing::warn!(error = %outage, "PostgreSQL went away while the worker started");
                    return Ok(false);
                }
                // A lock, or a server that is too slow for its own limits: it is waited for.
                PgFault::Fault(fault) if fault.class == FaultClass::Transient => {
                    tracing::warn!(error = %fault, "the consumers could not be registered");
                    return Ok(false);
                }
                PgFault::Fault(fault) => {
                    let server = config.postgres.shown();
                    let mut problems = Problems::default();
                    problems.add(
                        format!("consumers.{}", consumer.name),
                        format!("{server}: it can't be registered (role oncely_worker): {fault}"),
                    );
                    return Err(problems.into());
                }
            },
        }
    }
    Ok(true)
}

fn log_differences(consumer: &Consumer, fingerprint: &str, known: &Registered) {
    if consumer.retention < known.retention {
        tracing::warn!(
            consumer = %consumer.name,
            "retention is {} here, but the database keeps keys for {}, the longest that a worker has started with: that is used; \
             to shorten it: `oncely retention set {} {}`",
            humantime::format_duration(consumer.retention),
            humantime::format_duration(known.retention),
            consumer.name,
            humantime::format_duration(consumer.retention).to_string().replace(' ', "")
        );
    }
    let horizon = consumer.horizon();
    if horizon < known.redelivery_horizon {
        tracing::warn!(
            consumer = %consumer.name,
            "a copy may come for {} here (redelivery_horizon, or retry.delays and half an hour), but the database reckons with copies for {}, the longest that a worker has started with; \
             to shorten it: `oncely retention set {} {} --redelivery-horizon {}`",
            humantime::format_duration(horizon),
            humantime::format_duration(known.redelivery_horizon),
            consumer.name,
            humantime::format_duration(known.retention).to_string().replace(' ', ""),
            humantime::format_duration(horizon).to_string().replace(' ', "")
        );
    }
    if let Some(former) = known.former_fingerprint.as_deref().filter(|former| *former != fingerprint) {
        tracing::warn!(
            consumer = %consumer.name, former, fingerprint,
            "another fingerprint policy than before: for keys that were stored by the former one the key alone decides"
        );
    }
}
