//! Registers a worker's consumers in the database at its start, with the settings that decide about their keys.

use oncely_config::{Config, ConsumerSettings};
use oncely_core::decide::OnConflict;
use oncely_postgres::{self as pg, RegisteredSettings, Registration, Session};

/// Registers the consumers, and logs where the database's settings prevail. Returns `false` if a statement failed.
pub(super) async fn register(config: &Config, session: &mut Session) -> bool {
    for consumer in &config.consumers {
        let fingerprint = consumer.fingerprint.name();
        let registration = Registration {
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
        let query = pg::register_consumer(&mut session.connection, registration);
        match pg::wait_for_answer(config.postgres.client_timeout(), query).await {
            Ok(settings) => log_differences(consumer, &fingerprint, &settings),
            Err(error) => {
                let server = config.postgres.redacted();
                tracing::error!(consumer = %consumer.name, error = pg::describe(&error),
                    "cannot register the consumer at {server} (role oncely_worker); retrying");
                return false;
            }
        }
    }
    true
}

/// Logs settings that differ from those with which other workers of the consumer have started.
fn log_differences(consumer: &ConsumerSettings, fingerprint: &str, registered: &RegisteredSettings) {
    if consumer.retention < registered.retention {
        tracing::warn!(
            consumer = %consumer.name,
            "configured retention {} is shorter than {}, the longest that a worker has started with; the longer one \
             is used; to shorten it: `oncely retention set {} {}`",
            humantime::format_duration(consumer.retention),
            humantime::format_duration(registered.retention),
            consumer.name,
            humantime::format_duration(consumer.retention).to_string().replace(' ', "")
        );
    }
    let horizon = consumer.horizon();
    if horizon < registered.redelivery_horizon {
        tracing::warn!(
            consumer = %consumer.name,
            "configured redelivery horizon {} (redelivery_horizon, or retry.delays and half an hour) is shorter than \
             {}, the longest that a worker has started with; the longer one is used; \
             to shorten it: `oncely retention set {} {} --redelivery-horizon {}`",
            humantime::format_duration(horizon),
            humantime::format_duration(registered.redelivery_horizon),
            consumer.name,
            humantime::format_duration(registered.retention).to_string().replace(' ', ""),
            humantime::format_duration(horizon).to_string().replace(' ', "")
        );
    }
    if let Some(former) = registered.former_fingerprint.as_deref().filter(|former| *former != fingerprint) {
        tracing::warn!(
            consumer = %consumer.name, former, fingerprint,
            "fingerprint policy changed; payloads of keys stored under the former one are not compared"
        );
    }
}
