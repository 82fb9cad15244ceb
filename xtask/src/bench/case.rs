//! The cases, and what each is to reach.

/// What a ratio is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Only told.
    None,
}

impl Target {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::None => true,
        }
    }

    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Self::AtLeast(value) | Self::AtMost(value) => Some(value),
            Self::None => None,
        }
    }
}

/// One line of the results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What the ratio says.
    pub(crate) what: &'static str,
    pub(crate) target: Target,
}

use Target::{AtLeast, AtMost};

const fn case(name: &'static str, target: Target, what: &'static str) -> Case {
    Case { name, what, target }
}

/// In the order in which they are reported.
pub(crate) const CASES: [Case; 10] = [
    case(
        "e2e_classic_full",
        AtLeast(12.0),
        "rate with batch SQL function, relay, pre-check, audit / naive; classic queue",
    ),
    case("e2e_quorum_full", AtLeast(18.0), "the same / naive, both on a quorum queue"),
    case(
        "e2e_per_message_sql",
        AtLeast(9.0),
        "the same with a SQL function per message / naive; classic queue",
    ),
    case("e2e_rust_handler", AtLeast(4.0), "the same with a handler in Rust, one INSERT per message / naive"),
    case("poison_1pct", AtLeast(0.75), "rate with 1 % of the messages rejected by the handler / with none"),
    case(
        "cpu_per_message",
        AtLeast(12.0),
        "CPU time of all processes a message, naive / ours; of e2e_classic_full",
    ),
    case("wal_per_message", AtMost(0.60), "WAL a message, ours / naive; of e2e_classic_full"),
    case(
        "mirror_drain",
        Target::None,
        "seconds from the last effect to an empty outbox; of e2e_classic_full",
    ),
    case("workers_2", Target::None, "rate with 2 workers / with 1; e2e_classic_full"),
    case("workers_4", Target::None, "rate with 4 workers / with 1; e2e_classic_full"),
];

/// The case of a name.
pub(crate) fn find(name: &str) -> Option<Case> {
    CASES.iter().copied().find(|case| case.name == name)
}
