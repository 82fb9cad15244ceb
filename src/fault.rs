//! What went wrong with one message, and what kind of wrong that is.

use std::fmt;

/// Longest error text that is kept, in bytes.
const MAX_TEXT: usize = 1_000;

/// What a failure says about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// May pass: the message is tried again after a delay, a bounded number of times.
    Transient,
    /// Perhaps not the message's fault: a missing table, a revoked grant, a full disk. Whose it is, its neighbours tell
    /// ([`crate::blame`]): where they fail as well, consuming pauses and no attempt is spent; where they succeed, it is the message's.
    Environment,
    /// Two transactions stood in each other's way: a deadlock, a serialisation failure, a lock that somebody holds. Batching may be what
    /// brought them together.
    Contention,
    /// The connection's own state is at odds with the database: a plan or a prepared statement that is no longer valid. A new connection
    /// has neither.
    Session,
    /// PostgreSQL refuses data of this message and would refuse it again.
    Poison,
    /// The handler said that this message can never succeed.
    Rejected,
    /// The handler said no, and that is the answer.
    Refused,
    /// The handler needs JSON, and PostgreSQL cannot hold the body.
    NotJson,
    /// It was at work too often when its process died.
    Crashed,
}

impl FaultClass {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Transient,
        Self::Environment,
        Self::Contention,
        Self::Session,
        Self::Poison,
        Self::Rejected,
        Self::Refused,
        Self::NotJson,
        Self::Crashed,
    ];

    /// Tells whether the failure concerns one message and no other: the handler's own word on it, or the death of a process that ran it.
    #[must_use]
    pub fn is_of_one_message(self) -> bool {
        matches!(self, Self::Rejected | Self::Refused | Self::NotJson | Self::Crashed)
    }

    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Environment => "environment",
            Self::Contention => "contention",
            Self::Session => "session",
            Self::Poison => "poison",
            Self::Rejected => "rejected",
            Self::Refused => "refused",
            Self::NotJson => "not_json",
            Self::Crashed => "crashed",
        }
    }
}

/// A failure of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it says about another try.
    pub class: FaultClass,
    /// SQLSTATE, where PostgreSQL reported it.
    pub code: Option<String>,
    /// For people.
    pub message: String,
}

impl Fault {
    /// A failure; the text is cut to a kilobyte and freed of NUL, which PostgreSQL's text can't hold.
    pub fn new(class: FaultClass, code: Option<String>, message: impl Into<String>) -> Self {
        Self { class, code, message: clean(message.into()) }
    }
}

impl Fault {
    /// The same, as one that may strike every message: what it met is taken for the environment's until another message succeeds.
    pub(crate) fn of_nobody(self) -> Self {
        Self { class: FaultClass::Environment, ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.code {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

fn clean(mut text: String) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_postgresql_cannot_hold_is_mended_and_long_text_is_cut() {
        assert_eq!(Fault::new(FaultClass::Transient, None, "a\0b").message, "a\u{fffd}b");
        let long = Fault::new(FaultClass::Transient, None, "ä".repeat(2_000)).message;
        assert!(long.len() <= MAX_TEXT + '…'.len_utf8() && long.ends_with('…'));
    }
}
