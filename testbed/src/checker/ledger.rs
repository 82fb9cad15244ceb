//! What was sent: intents, and what the broker said of them.

use std::collections::BTreeMap;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

/// Tenant and key.
pub type Key = (String, String);

/// SHA-256 of a body in hexadecimal.
#[must_use]
pub fn digest(body: &[u8]) -> String {
    Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the handler does with a message, as its payload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// Takes effect.
    Work,
    /// Takes effect, after a pause.
    Slow,
    /// Fails on its first attempt.
    FailOnce,
    /// Fails on each attempt.
    Fail,
    /// Is refused by `oncely.reject`.
    Reject,
    /// Is answered with a no by `oncely.refuse`: its key is completed, without an effect.
    Refuse,
    /// Divides by zero: poison.
    Divide,
    /// Takes effect when the lock of that number is free ([`Act::GATE`]): a handler in the middle of its work.
    Gate,
    /// The same with the next number.
    SecondGate,
    /// Takes effect, if its COMMIT is let through: it waits for whoever has written the same number.
    Late,
    /// Takes effect, but for the failpoint that ends the process which runs it. Its key begins with `kill`.
    Kill,
    /// Takes effect in its tenant's own schema, where that is there ([`FRAGILE`]).
    Branch,
    /// Fails at COMMIT, each time.
    AtCommit,
    /// Asks for a table that is not there (42P01).
    NoTable,
    /// Asks for a function of a schema that is not there (3F000).
    NoSchema,
    /// Has a text that is no search query (42601).
    NoSyntax,
    /// Has a text that is no number (22P02).
    NoNumber,
    /// Takes effect, where it can be put in an order with others (40001): most of the time.
    Serialize,
    /// Uses up its time (57014), each time.
    Endless,
    /// The same in a trigger that is put off until COMMIT.
    EndlessAtCommit,
    /// Is larger than the consumer's `max_body` ([`Intent::padded`]).
    TooLarge,
    /// Calls a provider, under a lease ([`super::Order`]).
    Order,
}

/// Tenants whose schema is missing at times: where it is, their messages fail as no others do.
pub const FRAGILE: [&str; 2] = ["branch_0", "branch_1"];

/// Tenants whose messages update few rows, and are refused in part. How long each waits is judged.
pub const SHOPS: [&str; 3] = ["shop_0", "shop_1", "shop_2"];

/// The tenant of work that is published so that others succeed beside what fails. Nobody waits for it.
pub const WITNESS: &str = "witness";

/// The tenant that is erased and comes back with its keys: each of its payloads takes effect once.
pub const RETURNING: &str = "returning";

/// The tenant that sends its keys again when they are forgotten: each of its payloads takes effect once.
pub const FORGOTTEN: &str = "forgotten";

/// Tenants that recoveries do not wait for.
pub const UNCOUNTED: [&str; 3] = [WITNESS, RETURNING, FORGOTTEN];

/// Does this tenant send each key again with another payload, when nobody remembers the one before?
#[must_use]
pub(super) fn comes_back(tenant: &str) -> bool {
    matches!(tenant, RETURNING | FORGOTTEN)
}

/// What a message does beside its effect, that its neighbours meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Counts in two rows that others want too, in this order. There are sixteen.
    Hot(u8, u8),
    /// Emits an event under an ordering key of few.
    Stream(u8),
    /// Makes a temporary table, of the same name as all others.
    Temporary,
    /// Keeps a constraint only at COMMIT.
    Deferred,
}

impl Act {
    /// Number of the advisory lock that [`Act::Gate`] waits for.
    pub const GATE: i64 = 4711;

    /// As the payload says it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Slow => "slow",
            Self::FailOnce => "fail_once",
            Self::Fail => "fail",
            Self::Reject => "reject",
            Self::Refuse => "refuse",
            Self::Divide => "divide",
            Self::Gate => "gate",
            Self::SecondGate => "second_gate",
            Self::Late => "late",
            Self::Kill => "kill",
            Self::Branch => "branch",
            Self::AtCommit => "at_commit",
            Self::NoTable => "no_table",
            Self::NoSchema => "no_schema",
            Self::NoSyntax => "no_syntax",
            Self::NoNumber => "no_number",
            Self::Serialize => "serialize",
            Self::Endless => "endless",
            Self::EndlessAtCommit => "endless_at_commit",
            Self::TooLarge => "too_large",
            Self::Order => "order",
        }
    }

    /// With which reason it must end in the dead-letter queue, if it must.
    #[must_use]
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Work
            | Self::Slow
            | Self::FailOnce
            | Self::Gate
            | Self::SecondGate
            | Self::Late
            | Self::Branch
            | Self::Serialize
            | Self::Refuse
            | Self::Order => None,
            Self::Kill => Some("crash"),
            // What strikes one message while others succeed is its own fault, whatever the SQLSTATE says.
            Self::Fail
            | Self::AtCommit
            | Self::NoTable
            | Self::NoSchema
            | Self::NoSyntax
            | Self::Endless
            | Self::EndlessAtCommit => Some("attempts_exhausted"),
            Self::Reject => Some("handler_rejected"),
            Self::Divide | Self::NoNumber => Some("poison"),
            Self::TooLarge => Some("body_too_large"),
        }
    }

    /// Must it take effect?
    #[must_use]
    pub fn takes_effect(self) -> bool {
        self.reason().is_none() && self != Self::Refuse
    }
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct Intent {
    /// Whose it is.
    pub tenant: String,
    /// Which one it is.
    pub key: String,
    /// What the handler is to do.
    pub act: Act,
    /// The payload.
    pub body: Vec<u8>,
}

impl Intent {
    /// A message; another `version` is another payload.
    #[must_use]
    pub fn new(tenant: &str, key: &str, act: Act, version: u32) -> Self {
        let body = serde_json::json!({ "do": act.word(), "key": key, "version": version }).to_string();
        Self { tenant: tenant.to_owned(), key: key.to_owned(), act, body: body.into_bytes() }
    }

    /// The same message with so many bytes more.
    #[must_use]
    pub fn padded(self, bytes: usize) -> Self {
        self.with(&format!("\"padding\":\"{}\"", "x".repeat(bytes)))
    }

    /// The same message as a payment, for `judge.capture`.
    #[must_use]
    pub fn payment(self, customer: u32, amount: u32) -> Self {
        self.with(&format!("\"customer\":{customer},\"amount\":{amount}"))
    }

    /// The same message, which does something beside its effect.
    #[must_use]
    pub fn beside(self, beside: Beside) -> Self {
        let (what, first, second) = match beside {
            Beside::Hot(first, second) => ("hot", first, second),
            Beside::Stream(number) => ("stream", number, 0),
            Beside::Temporary => ("temporary", 0, 0),
            Beside::Deferred => ("deferred", 0, 0),
        };
        let more = serde_json::json!({ "what": what, "first": first, "second": second });
        self.with(&format!("\"beside\":{more}"))
    }

    /// The body is an object: a new field goes in front of its end.
    fn with(self, field: &str) -> Self {
        let mut body = self.body;
        body.pop();
        body.extend_from_slice(format!(",{field}}}").as_bytes());
        Self { body, ..self }
    }
}

/// What is known of a message that was sent; the best of what is known of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The broker refused each copy: it must not take effect.
    Refused,
    /// No confirm came for any copy: it may take effect, or not.
    Unknown,
    /// A copy was confirmed: it must take effect, or end where it is said why not.
    Confirmed,
}

/// One payload under a key.
#[derive(Clone, Debug)]
pub struct Version {
    /// SHA-256 of the body.
    pub digest: String,
    /// What the handler does with it.
    pub act: Act,
    /// What the broker said.
    pub class: Class,
    /// When it said first that it has a copy.
    pub confirmed: Option<Instant>,
}

/// The publisher's books, by key.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    keys: BTreeMap<Key, Vec<Version>>,
    /// Publishes, copies included.
    pub messages: u64,
    /// Publishes without a confirm, each counted.
    pub unknown: u64,
    /// Publishes that the broker refused, each counted.
    pub refused: u64,
}

impl Sent {
    /// Before a publish.
    pub fn intend(&mut self, intent: &Intent) {
        self.messages += 1;
        let digest = digest(&intent.body);
        let versions = self.keys.entry((intent.tenant.clone(), intent.key.clone())).or_default();
        if !versions.iter().any(|version| version.digest == digest) {
            versions.push(Version { digest, act: intent.act, class: Class::Refused, confirmed: None });
        }
    }

    /// After it.
    pub fn learn(&mut self, intent: &Intent, class: Class) {
        match class {
            Class::Confirmed => {}
            Class::Unknown => self.unknown += 1,
            Class::Refused => self.refused += 1,
        }
        let digest = digest(&intent.body);
        let versions = self.keys.get_mut(&(intent.tenant.clone(), intent.key.clone()));
        if let Some(version) = versions.and_then(|all| all.iter_mut().find(|v| v.digest == digest)) {
            version.class = version.class.max(class);
            if class == Class::Confirmed {
                version.confirmed.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Different keys.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.keys.len()
    }

    /// Keys that must have an effect when all is done, whatever befalls [`FRAGILE`] tenants; those of [`UNCOUNTED`] do not count.
    #[must_use]
    pub fn due(&self) -> u64 {
        let due = self.due_by_tenant().into_iter();
        due.filter(|(tenant, _)| !UNCOUNTED.contains(&tenant.as_str())).map(|(_, due)| due).sum()
    }

    /// The same, by tenant.
    #[must_use]
    pub fn due_by_tenant(&self) -> BTreeMap<String, u64> {
        let is_due = |version: &Version| version.class == Class::Confirmed && version.act.takes_effect();
        let mut due: BTreeMap<String, u64> = BTreeMap::new();
        for ((tenant, _), versions) in &self.keys {
            if FRAGILE.contains(&tenant.as_str()) || !versions.iter().any(is_due) {
                continue;
            }
            match due.get_mut(tenant) {
                Some(count) => *count += 1,
                None => drop(due.insert(tenant.clone(), 1)),
            }
        }
        due
    }

    /// Keys of a tenant, of which the broker has a copy, and since when.
    pub fn confirmed_of(&self, tenant: &str) -> impl Iterator<Item = (&Key, Instant)> {
        let from = (tenant.to_owned(), String::new());
        let keys = self.keys.range(from..).take_while(move |((of, _), _)| of == tenant);
        keys.filter_map(|(key, versions)| {
            Some((key, versions.iter().filter_map(|version| version.confirmed).min()?))
        })
    }

    /// All keys with their payloads.
    pub fn keys(&self) -> impl Iterator<Item = (&Key, &[Version])> {
        self.keys.iter().map(|(key, versions)| (key, versions.as_slice()))
    }

    /// The payloads of a key.
    #[must_use]
    pub fn versions(&self, key: &Key) -> &[Version] {
        self.keys.get(key).map_or(&[], Vec::as_slice)
    }
}
