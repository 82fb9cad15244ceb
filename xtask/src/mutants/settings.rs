//! Settings that bring a bug to light.

/// A message is taken for its process's death at once.
pub(super) const ONE_CRASH: Settings = &[
    ("consumer", "batch", "1"),
    ("consumer", "lanes", "2"),
    ("consumer", "prefetch", "40"),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 5, max_crashes = 1 }"),
];

/// Section, key, value.
pub(super) type Settings = &'static [(&'static str, &'static str, &'static str)];

pub(super) const ONE_BY_ONE: Settings =
    &[("consumer", "batch", "1"), ("consumer", "lanes", "1"), ("consumer", "prefetch", "10")];
pub(super) const TWO_LANES: Settings =
    &[("consumer", "batch", "1"), ("consumer", "lanes", "2"), ("consumer", "prefetch", "10")];
pub(super) const ONE_LANE: Settings = &[("consumer", "lanes", "1")];
/// A handler may take long.
pub(super) const PATIENT: Settings =
    &[("postgres", "statement_timeout", "\"90s\""), ("consumer", "deadline", "\"80s\"")];
/// A handler may take long, and nothing is said about statements.
pub(super) const SLOW: Settings = &[
    // Not set: then it follows from the deadline.
    ("postgres", "statement_timeout", ""),
    ("postgres", "lock_timeout", "\"10s\""),
    ("consumer", "deadline", "\"80s\""),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 1 }"),
];
/// A handler's time is up soon, and once is enough.
pub(super) const HURRIED: Settings = &[
    ("consumer", "deadline", "\"2s\""),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 1 }"),
];
/// The same with one lane: with a dozen of these it is at work for longer than the judge lets anybody wait (30 s).
pub(super) const LESS_HURRIED: Settings = &[
    ("consumer", "lanes", "1"),
    ("consumer", "deadline", "\"3s\""),
    ("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 1 }"),
];
pub(super) const TRUSTING: Settings = &[("consumer", "precheck", "\"trust\"")];
pub(super) const ONE_ATTEMPT: Settings =
    &[("consumer", "retry", "{ delays = [\"200ms\", \"1s\"], max_attempts = 1 }")];
/// No second lane takes the others while the first one looks at an event.
pub(super) const ONE_EVENT_LANE: Settings = &[("events", "lanes", "1")];
