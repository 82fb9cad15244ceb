//! Calls outside: what a provider has written in its own books.

use std::time::Duration;

use super::ledger::Key;

/// A side of the provider, and the step of a message that calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Knows each call's key for ever; its step may always be repeated.
    Pay,
    /// Knows a call's key for [`Side::WINDOW`]; its step may be repeated within it.
    Charge,
    /// Knows none; its step may always be repeated.
    Mail,
    /// Knows none, and its step must not be repeated.
    Once,
    /// Knows none, but says whether a call has happened: its step asks.
    Asked,
}

/// How long a side knows a call's key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// As long as the trial lasts.
    Ever,
    /// So long from the first call on.
    For(Duration),
    /// Not at all.
    Never,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pay, Self::Charge, Self::Mail, Self::Once, Self::Asked];
    /// How long [`Side::Charge`] knows a key again: longer than a lease, so that a takeover comes in time, mostly.
    pub const WINDOW: Duration = Duration::from_secs(10);

    /// The step's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::Charge => "charge",
            Self::Mail => "mail",
            Self::Once => "once",
            Self::Asked => "asked",
        }
    }

    /// The side that a step calls.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == name)
    }

    /// What it remembers.
    #[must_use]
    pub fn memory(self) -> Memory {
        match self {
            Self::Pay => Memory::Ever,
            Self::Charge => Memory::For(Self::WINDOW),
            Self::Mail | Self::Once | Self::Asked => Memory::Never,
        }
    }
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took effect.
    Done,
    /// It had taken effect before, and did not again.
    Known,
    /// It did certainly not take effect.
    Refused,
    /// The caller was not told.
    Torn {
        /// It took effect.
        happened: bool,
    },
}

/// A call, as the provider saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Tenant and key of the message.
    pub key: Key,
    /// Which side was called.
    pub side: Side,
    /// By what it deduplicates.
    pub call_key: String,
    /// Number of the caller's lease.
    pub token: i64,
    /// When it came, in seconds since 1970.
    pub at: f64,
    /// When its whole answer to a request was written, as `at`; `None` if it was not, or by another protocol.
    pub answered: Option<f64>,
    /// What it came to.
    pub answer: Answer,
}

impl Call {
    /// Did it take effect?
    #[must_use]
    pub fn has_effect(&self) -> bool {
        matches!(self.answer, Answer::Done | Answer::Torn { happened: true })
    }

    /// Was the caller told that it failed, or nothing at all?
    #[must_use]
    pub fn fails(&self) -> bool {
        matches!(self.answer, Answer::Refused | Answer::Torn { .. })
    }
}

/// What a message under a lease calls, and how the provider behaves.
#[derive(Clone, Debug)]
pub struct Order {
    /// Whose it is.
    pub tenant: String,
    /// Which one it is.
    pub key: String,
    /// What it calls, in this order.
    pub sides: Vec<Side>,
    /// How many calls of each side end without an answer.
    pub tears: u32,
    /// How many are refused after these.
    pub refusals: u32,
    /// How long each answer takes, in milliseconds.
    pub delay: u64,
}

impl Order {
    /// The message.
    #[must_use]
    pub fn intent(&self) -> super::Intent {
        let Self { tenant, key, tears, refusals, delay, .. } = self;
        let steps: Vec<&str> = self.sides.iter().map(|side| side.name()).collect();
        let body = serde_json::json!({
            "do": "order", "key": key, "steps": steps, "tears": tears, "refusals": refusals, "delay": delay
        });
        super::Intent {
            tenant: tenant.clone(),
            key: key.clone(),
            act: super::Act::Order,
            body: body.to_string().into_bytes(),
        }
    }
}
