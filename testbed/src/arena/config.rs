//! How an arena is set up.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What runs in an arena, and how it is configured.
#[derive(Clone, Debug)]
pub struct ArenaConfig {
    /// Folder of the programs `worker` and `relay`; another one for builds with planted bugs.
    pub binaries: PathBuf,
    /// The program `oncely`, which migrates and declares.
    pub oncely: PathBuf,
    /// How many workers run.
    pub workers: usize,
    /// How many relays run.
    pub relays: usize,
    /// Further environment variables of workers and relays.
    pub environment: Vec<(String, String)>,
    settings: BTreeMap<(String, String), String>,
}

/// Short where a fault's end must be noticed soon; long where a wait that ends too early would spend an attempt.
const SETTINGS: [(&str, &str, &str); 22] = [
    ("postgres", "connect_timeout", "\"2s\""),
    ("postgres", "statement_timeout", "\"20s\""),
    ("postgres", "lock_timeout", "\"10s\""),
    ("rabbitmq", "heartbeat", "\"2s\""),
    ("rabbitmq", "timeout", "\"10s\""),
    ("mirror", "ttl", "\"1h\""),
    ("mirror", "buckets", "4096"),
    ("worker", "shutdown", "\"20s\""),
    ("relay", "poll", "\"100ms\""),
    // A fault is no reason to park an event.
    ("events", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 1000 }"),
    ("log", "level", "\"info\""),
    ("consumer", "name", "\"faults\""),
    ("consumer", "queue_type", "\"quorum\""),
    ("consumer", "tenant", "{ header = \"x-tenant-id\" }"),
    ("consumer", "key", "{ property = \"message_id\" }"),
    ("consumer", "handler", "{ function = \"judge.take\" }"),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 5 }"),
    ("consumer", "batch", "64"),
    ("consumer", "lanes", "2"),
    ("consumer", "prefetch", "256"),
    ("consumer", "precheck", "\"auto\""),
    ("audit", "duplicates", "false"),
];

/// The retry queues that follow from [`SETTINGS`].
pub(super) const RUNGS: [&str; 2] = ["200ms", "1s"];
/// The consumer's name.
pub(super) const CONSUMER: &str = "faults";

impl ArenaConfig {
    /// Three workers and two relays of the programs in `binaries`.
    #[must_use]
    pub fn new(binaries: PathBuf) -> Self {
        let own = |text: &str| text.to_owned();
        Self {
            oncely: binaries.join("oncely"),
            binaries,
            workers: 3,
            relays: 2,
            environment: Vec::new(),
            settings: SETTINGS
                .iter()
                .map(|(section, key, value)| ((own(section), own(key)), own(value)))
                .collect(),
        }
    }

    /// Sets a key; the section `consumer` is the only consumer's. `value` as in TOML.
    #[must_use]
    pub fn set(mut self, section: &str, key: &str, value: &str) -> Self {
        self.settings.insert((section.to_owned(), key.to_owned()), value.to_owned());
        self
    }

    /// The configuration file.
    pub(super) fn toml(&self, queue: &str) -> String {
        let mut text = String::new();
        let mut last = "";
        // The consumer comes last: a table of an array swallows what follows it.
        let (consumer, sections): (Vec<_>, Vec<_>) =
            self.settings.iter().partition(|((section, _), _)| section == "consumer");
        for ((section, key), value) in sections.into_iter().chain(consumer) {
            if section != last {
                match section.as_str() {
                    "consumer" => text.push_str(&format!("[[consumers]]\nqueue = {queue:?}\n")),
                    _ => text.push_str(&format!("[{section}]\n")),
                }
                last = section;
            }
            text.push_str(&format!("{key} = {value}\n"));
        }
        text
    }
}
