//! How an arena is set up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::hosts::Hosts;
use super::neighbour::Neighbour;
use crate::checker::Ladder;

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
    /// All hosts of the servers, where there are several: processes and the publisher go straight to them, and no proxy is in between.
    pub hosts: Option<Hosts>,
    /// Roles with few rights do what they may meanwhile.
    pub neighbours: Vec<Neighbour>,
    /// Consoles, `top`, `doctor` and `status` watch meanwhile.
    pub watched: bool,
    /// Bodies of dead letters are encrypted.
    pub encrypted: bool,
    /// Tables are divided, as by an engine that spreads them over nodes: see [`crate::DIVIDED`].
    pub divided: bool,
    /// Settings of PostgreSQL for the sessions of the programs that are struck.
    pub sessions: Vec<(&'static str, Duration)>,
    /// The consumer's name, and the beginning of its queue's.
    pub consumer: String,
    /// Nothing that only a trial needs: see [`ArenaConfig::plain`].
    pub(super) plain: bool,
    settings: BTreeMap<(String, String), String>,
}

/// What the publisher says, and what the drain looks for.
const SETTINGS: [(&str, &str, &str); 4] = [
    ("consumer", "tenant", "{ header = \"x-tenant-id\" }"),
    ("consumer", "key", "{ property = \"message_id\" }"),
    ("consumer", "handler", "{ function = \"judge.take\" }"),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 5 }"),
];

/// A trial's: short where a fault's end must be noticed soon; long where a wait that ends too early would spend an attempt.
const TRIAL: [(&str, &str, &str); 17] = [
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
    ("consumer", "queue_type", "\"quorum\""),
    ("consumer", "batch", "64"),
    ("consumer", "lanes", "2"),
    ("consumer", "prefetch", "256"),
    ("consumer", "precheck", "\"auto\""),
    ("audit", "duplicates", "false"),
];

/// The retry queues that follow from [`SETTINGS`], and from changes of it.
pub(super) const RUNGS: [&str; 3] = ["200ms", "500ms", "1s"];
/// A trial's consumer.
pub(super) const CONSUMER: &str = "faults";

impl ArenaConfig {
    /// Three workers and two relays of the programs in `binaries`.
    #[must_use]
    pub fn new(binaries: PathBuf) -> Self {
        let config = Self {
            oncely: binaries.join("oncely"),
            binaries,
            workers: 3,
            relays: 2,
            environment: Vec::new(),
            hosts: None,
            neighbours: Vec::new(),
            watched: false,
            encrypted: false,
            divided: false,
            sessions: Vec::new(),
            consumer: CONSUMER.to_owned(),
            plain: false,
            settings: BTreeMap::new(),
        };
        let all = SETTINGS.iter().chain(&TRIAL);
        all.fold(config, |config, (section, key, value)| config.set(section, key, value))
    }

    /// The product as it comes: its own defaults, and its processes straight at the servers, as whoever the servers' URLs name. So
    /// the servers may be somebody else's. Nobody cuts a connection here, no role has few rights, nobody emits events, and nothing is
    /// published but what is asked for.
    #[must_use]
    pub fn plain(binaries: PathBuf) -> Self {
        let config = Self { plain: true, settings: BTreeMap::new(), ..Self::new(binaries) };
        SETTINGS.iter().fold(config, |config, (section, key, value)| config.set(section, key, value))
    }

    /// Nothing moves for so long: time to look whether all is done. Longer than what a cut connection holds up.
    pub(super) fn quiet(&self) -> Duration {
        Duration::from_millis(if self.plain { 500 } else { 2_000 })
    }

    /// Messages that the publisher has in flight at once. Where connections are cut, few: all of them are unknown then.
    pub(super) fn window(&self) -> usize {
        if self.plain { 500 } else { 100 }
    }

    /// Sets a key; the section `consumer` is the only consumer's. `value` as in TOML; where it is empty, the key is left out.
    #[must_use]
    pub fn set(mut self, section: &str, key: &str, value: &str) -> Self {
        let name = (section.to_owned(), key.to_owned());
        match value.is_empty() {
            true => self.settings.remove(&name),
            false => self.settings.insert(name, value.to_owned()),
        };
        self
    }

    /// The ladder that is configured, as the judge reads it.
    pub(super) fn ladder(&self) -> anyhow::Result<Ladder> {
        let text = self.settings.get(&("consumer".to_owned(), "retry".to_owned()));
        let table: toml::Table = format!("retry = {}", text.map_or("{}", String::as_str)).parse()?;
        let retry = table.get("retry").and_then(toml::Value::as_table);
        let own = Ladder::default();
        let number = |name: &str| retry.and_then(|retry| retry.get(name)).and_then(toml::Value::as_integer);
        let delays = retry.and_then(|retry| retry.get("delays")).and_then(toml::Value::as_array);
        let delays = delays.map(|all| all.iter().filter_map(|delay| seconds(delay.as_str()?)).collect());
        Ok(Ladder {
            delays: delays.unwrap_or(own.delays),
            attempts: number("max_attempts").map_or(Ok(own.attempts), i32::try_from)?,
            crashes: number("max_crashes").map_or(Ok(own.crashes), usize::try_from)?,
        })
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
                    "consumer" => {
                        let name = &self.consumer;
                        text.push_str(&format!("[[consumers]]\nname = {name:?}\nqueue = {queue:?}\n"));
                    }
                    _ => text.push_str(&format!("[{section}]\n")),
                }
                last = section;
            }
            text.push_str(&format!("{key} = {value}\n"));
        }
        text
    }
}

/// `200ms` or `1s`.
fn seconds(text: &str) -> Option<f64> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.parse::<f64>().ok().map(|millis| millis / 1_000.0),
        None => text.strip_suffix('s')?.parse().ok(),
    }
}
