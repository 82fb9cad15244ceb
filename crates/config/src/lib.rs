//! The configuration: one file per concern, all problems reported at once, secrets never shown.

mod cell;
mod console;
mod consumer;
mod consumer_handler;
mod consumer_source;
mod digest;
mod encryption;
mod events;
mod file;
mod gateway;
mod gateway_config;
mod given_url;
mod merged;
mod mirror;
mod origin;
mod postgres;
mod problems;
mod queue;
mod rabbitmq;
mod read;
mod reference;
mod schema;
mod tasks;
mod tls;
mod traces;
mod values;

use std::path::Path;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};

pub use console::{ConsoleSettings, Network, ProxySecret, ProxySettings};
pub use consumer::OBSERVER_SUFFIX;
pub use consumer::{ConsumerSettings, InFlightPolicy, LargeResponse, LeaseSettings, Mode, QueueType};
pub use encryption::EncryptionSettings;
pub use events::EventSettings;
pub use gateway::{GatewaySettings, GatewayTenant, UnknownOutcomePolicy};
pub use gateway_config::{GatewayConfig, load as load_gateway};
pub use mirror::{MirrorSettings, RedisCluster};
pub use origin::{EffectiveSetting, read_effective_settings};
pub use problems::{Problem, Problems};
pub use queue::{QueueArgument, QueueBinding};
pub use rabbitmq::RabbitSettings;
pub use reference::{DefaultKind, ReferenceSetting, ReferenceTable, reference, render_default_file};
pub use schema::schema;
pub use tasks::host_name;
pub use tasks::{
    AuditSettings, DeadLetterSettings, GcSettings, LogFormat, LogSettings, RelaySettings, WorkerSettings,
};
pub use traces::{SpanAttributes, SpanParent, TraceSettings};

use cell::CellSettings;
use consumer::StatementLimit;
use digest::compute_digest;
use merged::MergedValues;
use oncely_core::encryption::Cipher;
use oncely_core::signing::{SigningKeys, SigningSecrets};
pub use oncely_net::server_url::mask_logins;
pub use oncely_net::server_url::mask_url;
pub use oncely_net::tls::TlsSettings;
use oncely_postgres::PgSettings;

/// Default of `--config`.
pub const DEFAULT_FILE: &str = "oncely.toml";

/// The shipped file with commented defaults.
pub const DEFAULTS: &str = include_str!("../oncely.default.toml");

/// A valid configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Digest of the settings, without secrets and the process's own name: equal files have equal digests.
    pub digest: String,
    /// Required name of the database's cell.
    pub cell: String,
    /// Key that signs identities and marks letters; by default the cell's own secret.
    pub signing_key: Option<SecretString>,
    /// Further accepted signing keys, besides that and the cell's own secret.
    pub known_keys: Vec<SecretString>,
    /// Connection to PostgreSQL.
    pub postgres: PgSettings,
    /// Connection to RabbitMQ.
    pub rabbitmq: RabbitSettings,
    /// Whether RabbitMQ is used; false if only gateways run.
    #[doc(hidden)]
    pub has_broker: bool,
    /// Connection and use of Redis; `None` without a Redis.
    pub mirror: Option<MirrorSettings>,
    /// The worker process.
    pub worker: WorkerSettings,
    /// The relay process.
    pub relay: RelaySettings,
    /// Publishing of events by the relay.
    pub events: EventSettings,
    /// The garbage collection.
    pub gc: GcSettings,
    /// The audit trail.
    pub audit: AuditSettings,
    /// The searchable copies of dead letters.
    pub dead_letters: DeadLetterSettings,
    /// Encryption of stored bodies; `None` if they are stored unencrypted.
    pub encryption: Option<EncryptionSettings>,
    /// Logging.
    pub log: LogSettings,
    /// Export of spans; `None` without an endpoint.
    pub traces: Option<TraceSettings>,
    /// The console.
    pub console: ConsoleSettings,
    /// The gateway.
    pub gateway: GatewaySettings,
    /// The consumers.
    pub consumers: Vec<ConsumerSettings>,
}

impl Config {
    /// Reads `file` and the environment. Precedence: defaults < file < `DATABASE_URL`, `AMQP_URL`, `REDIS_URL` (each also with `_FILE`) <
    /// `ONCELY_…` (`ONCELY_MIRROR__TTL=1h` is `ttl` in `[mirror]`).
    ///
    /// # Errors
    /// If the file can't be read, or the configuration is invalid: all problems at once.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        let (config, problems) = Self::examine(file);
        match config {
            Some(config) => problems.into_result(config),
            None => Err(problems),
        }
    }

    /// Reads a configuration as [`Config::load`] does, and keeps the valid parts of an invalid one, so that the servers can be checked
    /// nevertheless. Its problems come with it. The configuration is `None` if the file can't be read or is not TOML, or `gc.schedule` is
    /// invalid.
    #[must_use]
    pub fn examine(file: &Path) -> (Option<Self>, Problems) {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::read(&text, &file.display().to_string(), true),
            Err(error) => {
                let mut problems = Problems::default();
                let advice = "write one (start from oncely.default.toml) or name it with --config";
                problems.add(file.display().to_string(), format!("cannot be read ({error}); {advice}"));
                (None, problems)
            }
        }
    }

    /// Reads a configuration as [`Config::load`] does, for commands that use no broker. Without a broker only gateways run, and the file
    /// may be missing.
    ///
    /// # Errors
    /// If the configuration is invalid: all problems at once.
    #[doc(hidden)]
    pub fn load_without_broker(file: &Path) -> Result<Self, Problems> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut problems = Problems::default();
        let mut has_broker = true;
        let config = match MergedValues::read(&text, true) {
            Ok(mut merged) => {
                let is_set = |key| find_value(&merged.values, "rabbitmq", key).is_some();
                if !is_set("url") && !is_set("url_file") {
                    // Never connected to.
                    has_broker = false;
                    merged.set("rabbitmq.url", "default", Value::from("amqp://localhost"));
                }
                Self::from_values(&merged.values, &mut problems)
            }
            Err(error) => {
                problems.add(file.display().to_string(), error);
                None
            }
        };
        match config {
            Some(config) => problems.into_result(Self { has_broker, ..config }),
            None => Err(problems),
        }
    }

    /// Reads a configuration as [`Config::load`] does, for read-only commands: without a consumer and a broker only gateways run, and the
    /// file may be missing.
    ///
    /// # Errors
    /// If the configuration is invalid, or its file is required and can't be read: all problems at once.
    #[doc(hidden)]
    pub fn load_read_only(file: &Path) -> Result<Self, Problems> {
        match Self::load_without_broker(file) {
            Ok(config) if !config.has_broker && config.consumers.is_empty() => Ok(config),
            _ => Self::load(file),
        }
    }

    /// Reads only the connection to PostgreSQL, from `file` and the environment. The file may be missing if the environment sets the URL
    /// (`DATABASE_URL`).
    ///
    /// # Errors
    /// If `[postgres]` is invalid: all its problems; or if the file is not TOML.
    pub fn load_postgres(file: &Path) -> Result<PgSettings, Problems> {
        let mut problems = Problems::default();
        let settings = read_table("postgres", file, &mut problems).postgres.into_settings(&mut problems);
        problems.into_result(settings)
    }

    /// Reads only the cipher of stored bodies, from `file` and the environment; `None` if `encryption.keys` is not set. The file may be
    /// missing.
    ///
    /// # Errors
    /// If `[encryption]` or its file of keys is invalid: all problems; or if the file is not TOML.
    #[doc(hidden)]
    pub fn load_encryption(file: &Path) -> Result<Option<Arc<dyn Cipher>>, Problems> {
        let mut problems = Problems::default();
        let settings = read_table("encryption", file, &mut problems).encryption.into_settings(&mut problems);
        problems.into_result(settings.map(|settings| settings.cipher))
    }

    /// Returns the cipher of stored bodies; `None` if they are stored unencrypted.
    #[doc(hidden)]
    pub fn cipher(&self) -> Option<&Arc<dyn Cipher>> {
        self.encryption.as_ref().map(|settings| &settings.cipher)
    }

    /// Reads a configuration from a text, without the environment.
    ///
    /// # Errors
    /// If the text is not TOML, or the configuration is invalid: all problems at once.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        match Self::read(text, "configuration", false) {
            (Some(config), problems) => problems.into_result(config),
            (None, problems) => Err(problems),
        }
    }

    /// Reads a configuration from any value that serializes in the structure of `oncely.toml`, without a file or the environment:
    ///
    /// ```
    /// # use oncely::Config;
    /// # use serde_json::json;
    /// let config = Config::from_value(json!({
    ///     "postgres": { "url": "postgres://localhost/shop" },
    ///     "rabbitmq": { "url": "amqp://localhost" },
    ///     "consumers": [{
    ///         "name": "payments",
    ///         "queue": "payments",
    ///         "tenant": { "header": "x-tenant-id" },
    ///         "key": { "property": "message_id" },
    ///     }],
    /// }))?;
    /// # Ok::<(), oncely::config::Problems>(())
    /// ```
    ///
    /// # Errors
    /// If the value does not serialize as a table, or the configuration is invalid: all problems at once.
    pub fn from_value(value: impl serde::Serialize) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        match serde_json::to_value(value) {
            Ok(Value::Object(values)) => match Self::from_values(&values, &mut problems) {
                Some(config) => problems.into_result(config),
                None => Err(problems),
            },
            Ok(_) | Err(_) => {
                problems.add("configuration", "must serialize as a table");
                Err(problems)
            }
        }
    }

    /// Returns the consumers' names, in the order of the file.
    #[doc(hidden)]
    pub fn consumer_names(&self) -> Vec<String> {
        self.consumers.iter().map(|consumer| consumer.name.as_str().to_owned()).collect()
    }

    /// Returns the names of the consumers with keys in the mirror: all but observers.
    #[doc(hidden)]
    pub fn mirrored_consumers(&self) -> Vec<String> {
        let consumers = self.consumers.iter().filter(|consumer| !consumer.is_observer());
        consumers.map(|consumer| consumer.name.as_str().to_owned()).collect()
    }

    /// Reads the unchecked values of `file` and the environment, including secrets; `None` if the file is not TOML.
    #[doc(hidden)]
    pub fn read_unchecked(file: &Path) -> Option<Value> {
        let text = std::fs::read_to_string(file).ok()?;
        MergedValues::read(&text, true).ok().map(|merged| Value::Object(merged.values))
    }

    /// Combines the configured keys that sign identities and mark letters with those of the database.
    #[doc(hidden)]
    pub fn signing_keys(&self, stored: &SigningSecrets) -> SigningKeys {
        let bytes = |key: &SecretString| key.expose_secret().as_bytes().to_vec();
        let accepted: Vec<_> = self.known_keys.iter().map(bytes).collect();
        let accepted: Vec<&[u8]> = accepted.iter().map(Vec::as_slice).collect();
        let signing = self.signing_key.as_ref().map(bytes);
        SigningKeys::new(signing.as_deref(), &accepted, stored)
    }

    /// Reads a configuration from a text, and from the environment if `has_environment`; `name`: place of an error of the syntax. The
    /// configuration is `None` if the text is not TOML, or `gc.schedule` is invalid.
    fn read(text: &str, name: &str, has_environment: bool) -> (Option<Self>, Problems) {
        let mut problems = Problems::default();
        let config = match MergedValues::read(text, has_environment) {
            Ok(merged) => Self::from_values(&merged.values, &mut problems),
            Err(error) => {
                problems.add(name, error);
                None
            }
        };
        (config, problems)
    }

    /// Checks all tables, and converts them; `None` if the schedule of the collection is invalid.
    fn from_values(values: &Map<String, Value>, problems: &mut Problems) -> Option<Self> {
        let is_set = find_value(values, "postgres", "statement_timeout").is_some();
        let file = read::read(values, problems);
        let CellSettings { name: cell, signing_key, known_keys } = file.cell.into_settings(problems);
        let postgres = file.postgres.into_settings(problems);
        let statement = StatementLimit { timeout: postgres.statement_timeout, is_set };
        let rabbitmq = file.rabbitmq.into_settings(problems);
        let mirror = mirror::into_settings(file.redis, file.mirror, &cell, problems);
        let worker = file.worker.into_settings(problems);
        let relay = file.relay.into_settings(problems);
        let events = file.events.into_settings(problems);
        let gc = file.gc.into_settings(problems);
        let audit = file.audit.into();
        let dead_letters = file.dead_letters.into();
        let encryption = file.encryption.into_settings(problems);
        let log = file.log.into_settings(problems);
        let traces = file.traces.into_settings(problems);
        let console = file.console.into_settings(problems);
        let gateway = file.gateway.into_settings(problems);
        let consumers = file.consumers.into_iter().enumerate();
        let consumers: Vec<ConsumerSettings> = consumers
            .filter_map(|(index, table)| {
                table.into_settings(&format!("consumers[{index}]"), statement, problems)
            })
            .collect();
        check_contradictions(&consumers, mirror.as_ref(), &audit, problems);
        Some(Self {
            digest: compute_digest(values),
            cell,
            signing_key,
            known_keys,
            postgres,
            rabbitmq,
            has_broker: true,
            mirror,
            worker,
            relay,
            events,
            gc: gc?,
            audit,
            dead_letters,
            encryption,
            log,
            traces,
            console,
            gateway,
            consumers,
        })
    }
}

fn find_value<'a>(values: &'a Map<String, Value>, table: &str, key: &str) -> Option<&'a Value> {
    values.get(table)?.get(key)
}

/// Reads one table of a file, which may be missing, and of the environment.
fn read_table(table: &str, file: &Path, problems: &mut Problems) -> file::File {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    match MergedValues::read(&text, true) {
        Ok(mut merged) => {
            merged.values.retain(|name, _| name == table);
            read::read(&merged.values, problems)
        }
        Err(error) => {
            problems.add(file.display().to_string(), error);
            file::File::default()
        }
    }
}

/// Checks for values that are valid on their own and conflict with each other.
fn check_contradictions(
    consumers: &[ConsumerSettings],
    mirror: Option<&MirrorSettings>,
    audit: &AuditSettings,
    problems: &mut Problems,
) {
    let format_duration = humantime::format_duration;
    let mut queues = std::collections::BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    for consumer in consumers {
        if !names.insert(consumer.name.as_str()) {
            problems.add(
                format!("consumers.{}", consumer.name),
                "two consumers have this name; the name is part of the identity, so each needs its own",
            );
        }
        for queue in &consumer.queues {
            if let Some(other) = queues.insert(queue.as_str(), consumer.name.as_str()) {
                problems.add(
                    format!("consumers.{}.queue", consumer.name),
                    format!("{queue:?} is already read by {other:?}: each would miss what the other gets"),
                );
            }
        }
        if consumer.retention < consumer.horizon() {
            problems.add(
                    format!("consumers.{}.retention", consumer.name),
                    format!(
                        "{} is shorter than the redelivery horizon {}: a copy that comes back later would run again; \
                         lengthen retention, or shorten redelivery_horizon or retry.delays if no copy can be that old",
                        format_duration(consumer.retention),
                        format_duration(consumer.horizon())
                    ),
                );
        }
        if let Some(mirror) = mirror
            && mirror.ttl > consumer.retention
        {
            problems.add(
                "mirror.ttl",
                format!(
                    "{} is longer than the retention of {} ({}): a mirror entry must not outlive its key",
                    format_duration(mirror.ttl),
                    consumer.name,
                    format_duration(consumer.retention)
                ),
            );
        }
        if audit.retention < consumer.retention {
            problems.add(
                "audit.retention",
                format!(
                    "{} is shorter than the retention of {} ({}): the trail must outlive the keys",
                    format_duration(audit.retention),
                    consumer.name,
                    format_duration(consumer.retention)
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn a_digest_tells_what_processes_do_and_not_what_each_has_of_its_own() {
        let digest = |more: &str| {
            let base =
                "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n";
            Config::parse(&format!("{base}{more}")).unwrap().digest
        };
        let plain = digest("");
        assert_eq!(digest("[worker]\nname = \"worker-1\""), plain);
        assert_ne!(digest("[worker]\nshutdown = \"20s\""), plain);
        assert_ne!(digest("[redis]\nurl = \"redis://localhost\""), plain);
    }
}
