//! Failure of one message, and its class.

use std::fmt;

/// Longest error text that is kept, in bytes.
const MAX_TEXT_BYTES: usize = 1_000;

crate::words! {
    slice;
    /// Meaning of a failure for another try.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FaultClass {
        /// Temporary: the message is tried again after a delay, a bounded number of times.
        Transient = "transient",
        /// Perhaps not caused by the message: a missing table, a revoked grant, a full disk. Other messages decide ([`crate::blame`]): if they
        /// fail as well, consuming pauses and no attempt is used; if they succeed, the failure is the message's.
        Environment = "environment",
        /// A conflict of two transactions: a deadlock, a serialisation failure, a lock held by another. Batching may have brought them together.
        Contention = "contention",
        /// The session's cached state is out of date: a plan or a prepared statement that is no longer valid. A new connection has neither.
        Session = "session",
        /// PostgreSQL refuses data of this message and would refuse it again.
        Poison = "poison",
        /// The handler reported that this message can never succeed.
        Rejected = "rejected",
        /// The handler refused the message, which is final.
        Refused = "refused",
        /// The handler needs JSON, and PostgreSQL can't hold the body.
        NotJson = "not_json",
        /// It was at work in too many crashes of its process.
        Crashed = "crashed",
    }
}

impl FaultClass {
    /// Returns whether the failure concerns this message only: the handler's own decision, or a crash of its process.
    #[must_use]
    pub fn is_of_one_message(self) -> bool {
        matches!(self, Self::Rejected | Self::Refused | Self::NotJson | Self::Crashed)
    }
}

/// Failure of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Meaning for another try.
    pub class: FaultClass,
    /// SQLSTATE, if PostgreSQL reported it.
    pub code: Option<String>,
    /// Description for users.
    pub message: String,
}

impl Fault {
    /// Creates a failure; the text is cut to a kilobyte, and NUL is replaced, as PostgreSQL's text can't hold it.
    pub fn new(class: FaultClass, code: Option<String>, message: impl Into<String>) -> Self {
        Self { class, code, message: clean_text(message.into()) }
    }
}

impl Fault {
    /// Converts the failure to one that may affect every message: it counts as the environment's until another message succeeds.
    pub fn into_environment_fault(self) -> Self {
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

/// Cuts a text to [`MAX_TEXT_BYTES`] bytes, and replaces NUL.
fn clean_text(mut text: String) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    if text.len() > MAX_TEXT_BYTES {
        let end = (0..=MAX_TEXT_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
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
        assert!(long.len() <= MAX_TEXT_BYTES + '…'.len_utf8() && long.ends_with('…'));
    }
}
