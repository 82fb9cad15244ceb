//! The configuration: one file per concern, everything wrong reported at once, secrets never shown.

mod console;
mod consumer;
mod consumer_handler;
mod consumer_source;
mod encryption;
mod events;
#[cfg_attr(not(feature = "gateway"), allow(dead_code))]
mod gateway;
mod given_url;
mod mirror;
mod origin;
mod postgres;
mod problems;
mod queue;
mod rabbitmq;
mod reference;
mod section;
mod tasks;
mod tls;
mod traces;

use std::path::Path;
use std::sync::Arc;

use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Value};
use secrecy::{ExposeSecret as _, SecretString};

pub use console::{ConsoleSettings, Network, ProxySecret, ProxySettings};
pub(crate) use consumer::OBSERVER;
pub use consumer::{Consumer, InFlight, LargeResponse, LeaseSettings, Mode, QueueType};
pub use encryption::EncryptionSettings;
pub use events::EventSettings;
#[cfg(feature = "gateway")]
pub(crate) use gateway::{GatewayConfig, load as load_gateway};
pub use gateway::{GatewaySettings, GatewayTenant, Unknown};
pub use mirror::MirrorSettings;
pub(crate) use origin::{Held, held};
pub use problems::{Problem, Problems};
pub use queue::{QueueArgument, QueueBinding};
pub use rabbitmq::RabbitSettings;
pub(crate) use reference::{Part, Setting, Worth, reference};
pub(crate) use section::Section;
pub(crate) use tasks::host;
pub use tasks::{
    AuditSettings, DeadLetterSettings, GcSettings, LogFormat, LogSettings, RelaySettings, WorkerSettings,
};
pub use traces::{SpanParent, Told, TraceSettings};

use crate::encryption::Cipher;
use crate::pg::PgSettings;
pub use crate::server_url::masked;
pub(crate) use crate::server_url::without_logins;
use crate::signing::{SigningKeys, SigningSecrets};
pub use crate::tls::TlsSettings;

/// The file that is read where `--config` names none.
pub const DEFAULT_FILE: &str = "oncely.toml";

/// The commented defaults, as shipped.
pub const DEFAULTS: &str = include_str!("../../oncely.default.toml");

/// A valid configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Names what was configured, without its secrets and the process's own name: equal files have equal digests.
    pub digest: String,
    /// Name of the cell that the database must be.
    pub cell: String,
    /// What signs identities and marks letters; by default the cell's own secret.
    pub signing_key: Option<SecretString>,
    /// Keys whose signatures count, too, beside that and the cell's own secret.
    pub known_keys: Vec<SecretString>,
    /// How to reach PostgreSQL.
    pub postgres: PgSettings,
    /// How to reach RabbitMQ.
    pub rabbitmq: RabbitSettings,
    /// Is there a RabbitMQ? Not where there are gateways alone.
    pub(crate) has_broker: bool,
    /// How to reach Redis and how to use it; `None` without a Redis.
    pub mirror: Option<MirrorSettings>,
    /// The worker process.
    pub worker: WorkerSettings,
    /// The relay process.
    pub relay: RelaySettings,
    /// How the relay publishes events.
    pub events: EventSettings,
    /// The garbage collection.
    pub gc: GcSettings,
    /// The audit trail.
    pub audit: AuditSettings,
    /// The searchable copies of dead letters.
    pub dead_letters: DeadLetterSettings,
    /// With what stored bodies are encrypted; `None` where they are stored as they come.
    pub encryption: Option<EncryptionSettings>,
    /// Logging.
    pub log: LogSettings,
    /// Where spans go; `None` without an endpoint.
    pub traces: Option<TraceSettings>,
    /// The console.
    pub console: ConsoleSettings,
    /// The gateway.
    pub gateway: GatewaySettings,
    /// The consumers.
    pub consumers: Vec<Consumer>,
}

impl Config {
    /// Reads `file` and the environment: defaults < file < `DATABASE_URL`, `AMQP_URL`, `REDIS_URL` (each also with `_FILE`) < `ONCELY_…`
    /// (`ONCELY_MIRROR__TTL=1h` is `ttl` in `[mirror]`).
    ///
    /// # Errors
    /// All that is wrong with it, at once.
    pub fn load(file: &Path) -> Result<Self, Problems> {
        let (config, problems) = Self::examine(file);
        match config {
            Some(config) => problems.or(config),
            None => Err(problems),
        }
    }

    /// Reads as [`Config::load`] does, and keeps what can be used of a configuration that has problems: for a look at the
    /// servers all the same.
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

    /// Reads as [`Config::load`] does, for what asks no broker: where there are gateways alone there is none, and the file may be missing.
    ///
    /// # Errors
    /// All that is wrong with it, at once.
    pub(crate) fn load_without_broker(file: &Path) -> Result<Self, Problems> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut problems = Problems::default();
        let mut has_broker = true;
        let config = match values(&text, true) {
            Ok(mut values) => {
                let broker = values.entry("rabbitmq".to_owned()).or_insert_with(|| Value::from(Dict::new()));
                if let Value::Dict(_, broker) = broker
                    && !["url", "url_file"].iter().any(|key| broker.contains_key(*key))
                {
                    // Nobody connects to it.
                    has_broker = false;
                    broker.insert("url".to_owned(), Value::from("amqp://localhost"));
                }
                Self::of(values, &mut problems)
            }
            Err(error) => {
                problems.add(file.display().to_string(), error);
                None
            }
        };
        match config {
            Some(config) => problems.or(Self { has_broker, ..config }),
            None => Err(problems),
        }
    }

    /// Reads as [`Config::load`] does, for a look at everything: where no consumer is configured and no broker is named, gateways are all
    /// there is, and the file may be missing.
    ///
    /// # Errors
    /// All that is wrong with it, at once.
    pub(crate) fn load_to_look(file: &Path) -> Result<Self, Problems> {
        match Self::load_without_broker(file) {
            Ok(config) if !config.has_broker && config.consumers.is_empty() => Ok(config),
            _ => Self::load(file),
        }
    }

    /// Reads only where PostgreSQL is, for what needs nothing else. The file may be missing where `DATABASE_URL` is set.
    ///
    /// # Errors
    /// All that is wrong with `[postgres]`.
    pub fn load_postgres(file: &Path) -> Result<PgSettings, Problems> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut problems = Problems::default();
        match values(&text, true) {
            Ok(values) => {
                let mut root = Section::new("", values);
                let settings = postgres::postgres(root.table("postgres", &mut problems), &mut problems);
                problems.or(settings)
            }
            Err(error) => {
                problems.add(file.display().to_string(), error);
                Err(problems)
            }
        }
    }

    /// Reads only with what stored bodies are encrypted, for what needs nothing else of it. The file may be missing.
    ///
    /// # Errors
    /// All that is wrong with `[encryption]`.
    pub(crate) fn load_encryption(file: &Path) -> Result<Option<Arc<dyn Cipher>>, Problems> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut problems = Problems::default();
        match values(&text, true) {
            Ok(values) => {
                let mut root = Section::new("", values);
                let settings = encryption::encryption(root.table("encryption", &mut problems), &mut problems);
                problems.or(settings.map(|settings| settings.cipher))
            }
            Err(error) => {
                problems.add(file.display().to_string(), error);
                Err(problems)
            }
        }
    }

    /// What encrypts stored bodies, where something does.
    pub(crate) fn cipher(&self) -> Option<&Arc<dyn Cipher>> {
        self.encryption.as_ref().map(|settings| &settings.cipher)
    }

    /// Reads a configuration from a text, without regard to the environment.
    ///
    /// # Errors
    /// All that is wrong with it, at once.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        match Self::read(text, "configuration", false) {
            (Some(config), problems) => problems.or(config),
            (None, problems) => Err(problems),
        }
    }

    /// Takes a configuration from any value that serializes as `oncely.toml` reads, without a file or the environment:
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
    /// All that is wrong with it, at once.
    pub fn from_value(value: impl serde::Serialize) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        match Figment::from(Serialized::defaults(value)).extract() {
            Ok(values) => match Self::of(values, &mut problems) {
                Some(config) => problems.or(config),
                None => Err(problems),
            },
            Err(error) => {
                problems.add("configuration", without_source(&error.to_string()));
                Err(problems)
            }
        }
    }

    /// The consumers' names, in the order of the file.
    pub(crate) fn consumer_names(&self) -> Vec<String> {
        self.consumers.iter().map(|consumer| consumer.name.as_str().to_owned()).collect()
    }

    /// The names of those whose keys come to the mirror: nothing that is only observed does.
    pub(crate) fn mirrored_consumers(&self) -> Vec<String> {
        let working = self.consumers.iter().filter(|consumer| !consumer.observes());
        working.map(|consumer| consumer.name.as_str().to_owned()).collect()
    }

    /// What `file` and the environment say, unread and unjudged, secrets among it; `None` where that is no TOML.
    pub(crate) fn written(file: &Path) -> Option<serde_json::Value> {
        let text = std::fs::read_to_string(file).ok()?;
        serde_json::to_value(values(&text, true).ok()?).ok()
    }

    /// What signs identities and marks letters, beside what the database has.
    pub(crate) fn signing_keys(&self, stored: &SigningSecrets) -> SigningKeys {
        let bytes = |key: &SecretString| key.expose_secret().as_bytes().to_vec();
        let known: Vec<_> = self.known_keys.iter().map(bytes).collect();
        let known: Vec<&[u8]> = known.iter().map(Vec::as_slice).collect();
        let signing = self.signing_key.as_ref().map(bytes);
        SigningKeys::new(signing.as_deref(), &known, stored)
    }

    fn read(text: &str, name: &str, environment: bool) -> (Option<Self>, Problems) {
        let mut problems = Problems::default();
        let config = match values(text, environment) {
            Ok(values) => Self::of(values, &mut problems),
            Err(error) => {
                problems.add(name, error);
                None
            }
        };
        (config, problems)
    }

    fn of(values: Dict, problems: &mut Problems) -> Option<Self> {
        let digest = digest(&values);
        let mut root = Section::new("", values);
        let (cell, signing_key, known_keys) = {
            let mut section = root.table("cell", problems);
            let name = section.text("name", problems).unwrap_or_else(|| "main".to_owned());
            let signing = section.text("signing_key", problems);
            let known = section.texts("known_keys", problems).unwrap_or_default();
            for (name, keys) in [("signing_key", signing.as_slice()), ("known_keys", known.as_slice())] {
                if keys.iter().any(|key| key.len() < 16) {
                    problems.add(section.place(name), "must have at least 16 bytes, or be left out");
                }
            }
            section.finish(problems);
            (name, signing.map(SecretString::from), known.into_iter().map(SecretString::from).collect())
        };
        let section = root.table("postgres", problems);
        let is_set = section.has("statement_timeout");
        let postgres = postgres::postgres(section, problems);
        let statement = consumer::StatementLimit { timeout: postgres.statement_timeout, is_set };
        let rabbitmq = rabbitmq::rabbitmq(root.table("rabbitmq", problems), problems);
        let redis = root.table("redis", problems);
        let mirror = mirror::mirror(redis, root.table("mirror", problems), problems);
        let worker = tasks::worker(root.table("worker", problems), problems);
        let relay = tasks::relay(root.table("relay", problems), problems);
        let events = events::events(root.table("events", problems), problems);
        let gc = tasks::gc(root.table("gc", problems), problems);
        let audit = tasks::audit(root.table("audit", problems), problems);
        let dead_letters = tasks::dead_letters(root.table("dead_letters", problems), problems);
        let encryption = encryption::encryption(root.table("encryption", problems), problems);
        let log = tasks::log(root.table("log", problems), problems);
        let traces = traces::traces(root.table("traces", problems), problems);
        let console = console::console(root.table("console", problems), problems);
        let gateway = gateway::gateway(root.table("gateway", problems), problems);
        let consumers: Vec<Consumer> = root
            .tables("consumers", problems)
            .into_iter()
            .filter_map(|section| consumer::consumer(section, statement, problems))
            .collect();
        root.finish(problems);
        contradictions(&consumers, mirror.as_ref(), &audit, problems);
        gc.map(|gc| Self {
            digest,
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
            gc,
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

/// Settings that are secret, hold a secret, or are meant to differ between processes.
const NOT_DIGESTED: [(&str, &[&str]); 9] = [
    ("cell", &["signing_key", "known_keys"]),
    ("postgres", &["url", "url_file"]),
    ("rabbitmq", &["url", "url_file", "management"]),
    ("redis", &["url", "url_file", "sentinels", "sentinels_file"]),
    ("mirror", &["key"]),
    ("encryption", &["keys"]),
    ("traces", &["headers"]),
    ("worker", &["name"]),
    ("console", &["key"]),
];

/// Names the values, as far as they may be told apart by anybody.
fn digest(values: &Dict) -> String {
    let mut values = serde_json::to_value(values).unwrap_or_default();
    for (name, keys) in NOT_DIGESTED {
        if let Some(table) = values.get_mut(name).and_then(serde_json::Value::as_object_mut) {
            table.retain(|key, _| !keys.contains(&key.as_str()));
            // One that held nothing else is as good as none; but for [redis], which says that there is a mirror.
            if table.is_empty()
                && name != "redis"
                && let Some(all) = values.as_object_mut()
            {
                all.remove(name);
            }
        }
    }
    blake3::hash(values.to_string().as_bytes()).to_hex()[..12].to_owned()
}

/// The merged values of the file and the environment.
fn values(text: &str, environment: bool) -> Result<Dict, String> {
    let figment = origin::merged(text, environment);
    figment.extract().map_err(|error| format!("is not TOML: {}", without_source(&error.to_string())))
}

/// What is right on its own and wrong together.
fn contradictions(
    consumers: &[Consumer],
    mirror: Option<&MirrorSettings>,
    audit: &AuditSettings,
    problems: &mut Problems,
) {
    let show = humantime::format_duration;
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
                        show(consumer.retention),
                        show(consumer.horizon())
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
                    show(mirror.ttl),
                    consumer.name,
                    show(consumer.retention)
                ),
            );
        }
        if audit.retention < consumer.retention {
            problems.add(
                "audit.retention",
                format!(
                    "{} is shorter than the retention of {} ({}): the trail must outlive the keys",
                    show(audit.retention),
                    consumer.name,
                    show(consumer.retention)
                ),
            );
        }
    }
}

/// figment's text of a TOML error shows the offending line, which may hold a password: keep the first line's place only.
fn without_source(text: &str) -> String {
    let place = text.lines().next().unwrap_or_default().to_owned();
    match text.lines().last() {
        Some(last) if last != place && !last.contains('|') => format!("{place}: {last}"),
        _ => place,
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
