//! Builds a worker from a configuration and a handler for each consumer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::WorkerError;
use super::observation::build_placeholder_handler;
use oncely_config::{Config, ConsumerSettings, EncryptionSettings, OBSERVER_SUFFIX, Problems};
use oncely_core::encryption::Cipher;
#[cfg(feature = "http-handler")]
use oncely_handler::HttpHandler;
use oncely_handler::lease::LeasedHandler;
use oncely_handler::{BatchHandler, ConsumerHandler, Handler, SqlHandler};

/// Divides the number of messages that may run under leases at the same time: the quotient is fetched ahead, to replace messages that are
/// being recorded. It is small, since a message that waits here could run in another process.
const LEASED_AHEAD: u32 = 8;
/// Maximum number of messages fetched ahead: about as many as are being recorded at the same time.
const MAX_LEASED_AHEAD: u32 = 64;

/// A worker: all consumers of a configuration.
///
/// ```no_run
/// # async fn run() -> anyhow::Result<()> {
/// use oncely::handler::handler_fn;
/// use oncely::{Config, Context, Message, Worker};
///
/// let config = Config::load("oncely.toml".as_ref())?;
/// let worker = Worker::builder(config)
///     .handler("payments", handler_fn(async |mut context: Context<'_>, message: Message<'_>| {
///         sqlx::query("insert into payments (id) values ($1)")
///             .bind(message.key())
///             .execute(context.connection())
///             .await?;
///         Ok(())
///     }))
///     .build()?;
/// worker.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    pub(super) config: Config,
    pub(super) handlers: BTreeMap<String, ConsumerHandler>,
    pub(super) notifies_systemd: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("consumers", &self.handlers.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Creates the builder of a worker with this configuration.
    #[must_use]
    pub fn builder(config: Config) -> WorkerBuilder {
        WorkerBuilder::new(config)
    }

    /// Splits the worker into its configuration and its handlers.
    #[cfg(feature = "testing")]
    pub(crate) fn into_parts(self) -> (Config, BTreeMap<String, ConsumerHandler>) {
        (self.config, self.handlers)
    }
}

/// Collects a worker's handlers.
pub struct WorkerBuilder {
    config: Config,
    handlers: BTreeMap<String, ConsumerHandler>,
    notifies_systemd: bool,
}

impl std::fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerBuilder").finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    pub(super) fn new(config: Config) -> Self {
        Self { config, handlers: BTreeMap::new(), notifies_systemd: false }
    }

    /// Sets the handler of a consumer, in place of a SQL function.
    #[must_use]
    pub fn handler(mut self, consumer: &str, handler: impl Handler) -> Self {
        self.handlers.insert(consumer.to_owned(), ConsumerHandler::Rust(Arc::new(handler)));
        self
    }

    /// Sets the batch handler of a consumer, in place of a SQL function.
    #[must_use]
    pub fn batch_handler(mut self, consumer: &str, handler: impl BatchHandler) -> Self {
        self.handlers.insert(consumer.to_owned(), ConsumerHandler::RustBatch(Arc::new(handler)));
        self
    }

    /// Sets the handler of a consumer with effects outside PostgreSQL: it runs under a lease of the message's key.
    #[must_use]
    pub fn leased_handler(mut self, consumer: &str, handler: impl LeasedHandler) -> Self {
        self.handlers.insert(consumer.to_owned(), ConsumerHandler::Leased(Arc::new(handler)));
        self
    }

    /// Encrypts the bodies of dead letters with the program's own cipher, instead of the keys of `[encryption]`. `oncely` and its console
    /// can't open them: they need a key ring for that.
    #[must_use]
    pub fn cipher(mut self, cipher: impl Cipher) -> Self {
        self.config.encryption = Some(EncryptionSettings::with_cipher(Arc::new(cipher)));
        self
    }

    /// Notifies systemd, if present, that the worker is ready, of its status, and that its loops make progress (`Type=notify`,
    /// `WatchdogSec`). The program `worker` does this; an embedding program that is more than its worker notifies systemd itself. Needs the
    /// feature `cli`.
    #[must_use]
    pub fn tell_systemd(mut self) -> Self {
        self.notifies_systemd = true;
        self
    }

    /// Builds the worker.
    ///
    /// # Errors
    /// If a consumer has no handler or two, or a handler no consumer.
    pub fn build(mut self) -> Result<Worker, WorkerError> {
        let mut problems = Problems::default();
        let mut handlers = BTreeMap::new();
        if self.config.consumers.is_empty() {
            problems.add("consumers", "there is none; write [[consumers]] for each queue");
        }
        for consumer in &self.config.consumers {
            let name = consumer.name.as_str();
            let path = format!("consumers.{name}.handler");
            if consumer.is_observer() {
                // A program may bring the handler that takes over later.
                self.handlers.remove(name.strip_suffix(OBSERVER_SUFFIX).unwrap_or(name));
                handlers.insert(name.to_owned(), build_placeholder_handler(consumer));
                continue;
            }
            match (build_configured_handler(consumer, &path, &mut problems), self.handlers.remove(name)) {
                (Some(handler), None) | (None, Some(handler)) => {
                    handlers.insert(name.to_owned(), handler);
                }
                (None, None) if consumer.http.is_some() => {}
                (None, None) => problems.add(
                    path,
                    "is missing; write handler = { function = \"schema.function\" }, or { http = \"https://…\", … }",
                ),
                (Some(_), Some(_)) => {
                    problems.add(path, "is set in the configuration and in the program; use one")
                }
            }
        }
        for consumer in &mut self.config.consumers {
            if matches!(handlers.get(consumer.name.as_str()), Some(ConsumerHandler::Leased(_))) {
                if consumer.replies {
                    let path = format!("consumers.{}.replies", consumer.name);
                    problems
                        .add(path, "a handler under leases sends no replies: emit the reply in its Finish");
                }
                if consumer.fair {
                    problems.add(
                        format!("consumers.{}.fair", consumer.name),
                        "has no effect if the handler runs under leases: few messages are prefetched",
                    );
                }
                // A pause waits this long for its runs.
                consumer.deadline = consumer.lease.max_run;
                let concurrency = consumer.lease.concurrency;
                let prefetch = concurrency.saturating_add((concurrency / LEASED_AHEAD).min(MAX_LEASED_AHEAD));
                consumer.prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
            }
        }
        if self.config.encryption.is_none() {
            for consumer in self.config.consumers.iter().filter(|consumer| consumer.encrypt_responses) {
                problems.add(
                    format!("consumers.{}.encrypt_responses", consumer.name),
                    "there is nothing to encrypt with: name a file in [encryption] keys",
                );
            }
        }
        for name in self.handlers.keys() {
            problems.add(
                format!("consumers.{name}"),
                "the program brings a handler, but there is no such consumer",
            );
        }
        Ok(problems.into_result(Worker {
            config: self.config,
            handlers,
            notifies_systemd: self.notifies_systemd,
        })?)
    }
}

/// Builds the handler that the configuration names. `None` if it names none, or if an HTTP handler can't be built, which is added to the
/// problems.
fn build_configured_handler(
    consumer: &ConsumerSettings,
    path: &str,
    problems: &mut Problems,
) -> Option<ConsumerHandler> {
    if let Some(function) = &consumer.handler {
        return Some(ConsumerHandler::Sql(Arc::new(SqlHandler::new(
            function.clone(),
            consumer.largest_response(),
        ))));
    }
    #[cfg(feature = "http-handler")]
    return match HttpHandler::load(consumer.http.clone()?) {
        Ok(handler) => Some(ConsumerHandler::Leased(Arc::new(handler))),
        Err(error) => {
            problems.add(path, error.to_string());
            None
        }
    };
    #[cfg(not(feature = "http-handler"))]
    {
        let _ = (path, problems);
        None
    }
}
