//! Dead letters: their identity, and groups of similar failures.

use std::fmt;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::identity::Identity;
use crate::reason::Reason;

/// A dead letter and its generation: a message that returns after it was requeued or discarded is the next generation of the same letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    /// The id of its row.
    pub id: Uuid,
    /// Number of the generation, from 1.
    pub generation: u32,
}

impl Letter {
    /// Parses the text of the header: `<id>/<generation>`; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, generation) = text.split_once('/')?;
        Some(Self { id: Uuid::try_parse(id).ok()?, generation: generation.parse().ok()? })
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.id, self.generation)
    }
}

/// Describes why a dead letter's body is not in its row, by the column `omitted` of `oncely.dead_letters`; in general terms for `None` or
/// an unknown code.
#[must_use]
pub fn describe_omission(omitted: Option<&str>) -> &'static str {
    match omitted {
        Some("max_body") => "it is over dead_letters.max_body, so only the dead-letter queue has it",
        Some("headers") => "its headers nest too deep, so only the dead-letter queue has it",
        Some("cipher") => "it could not be encrypted, so only the dead-letter queue has it",
        Some("quota") => {
            "its tenant has no more room (oncely tenant limit), so only the dead-letter queue has it"
        }
        Some("right") => {
            "its login has no right to that queue (oncely grant LOGIN --queue QUEUE), so only its own dead-letter queue has it"
        }
        Some("room") => "the letter was closed, and made room for others of its tenant",
        _ => "only the dead-letter queue has it",
    }
}

/// The state of a dead letter's key, before the letter is published again: no copy is made that would not be recognised as a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterKeyState {
    /// It may run: it never took effect, or has no key.
    Runnable,
    /// It took effect.
    Completed,
    /// It took effect according to the trail; its key is forgotten, so a copy would run a second time.
    TookEffect,
    /// It is older than keys and trail remember: its effect is unknown.
    Forgotten,
}

impl LetterKeyState {
    /// Parses the result of `oncely.letter_memories`.
    #[must_use]
    pub fn from_column(text: &str) -> Self {
        match text {
            "COMPLETED" => Self::Completed,
            "TOOK_EFFECT" => Self::TookEffect,
            "NONE" | "IN_PROGRESS" | "FAILED" => Self::Runnable,
            _ => Self::Forgotten,
        }
    }
}

/// Returns the id of a message with a known identity, independent of how often it is dead-lettered. Two payloads under one key are two
/// messages. Same algorithm as `oncely.letter_id`.
#[must_use]
pub fn letter_id(identity: &Identity, body: &[u8]) -> Uuid {
    let mut hasher = Sha256::new();
    for part in [&identity.tenant, &identity.consumer, &identity.key] {
        hasher.update((part.as_str().len() as u64).to_be_bytes());
        hasher.update(part.as_str().as_bytes());
    }
    hasher.update(body);
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize()[..16]);
    uuid::Builder::from_custom_bytes(id).into_uuid()
}

/// The prefix of [`KeyDecision::Reject`](crate::decide::KeyDecision) for a key that failed before.
const GIVEN_UP_PREFIX: &str = "given up before: ";

/// Returns a stable name for similar failures: reason, SQLSTATE, and a hash of the detail without the parts that differ from message to
/// message. Short enough to type.
#[must_use]
pub fn failure_group(reason: Reason, code: Option<&str>, detail: &str) -> String {
    let mut detail = detail;
    while let Some(remainder) = detail.strip_prefix(GIVEN_UP_PREFIX) {
        detail = remainder;
    }
    let hash = blake3::hash(normalise(detail).as_bytes()).to_hex();
    format!("{reason}/{}/{}", code.unwrap_or("-"), &hash[..8])
}

/// Replaces the parts of a text that differ from message to message: quoted values by `"…"`, words with digits in them (numbers, ids,
/// dates) by `#`.
fn normalise(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut remainder = text;
    let mut previous = ' ';
    while let Some(first) = remainder.chars().next() {
        if let Some(next_remainder) = skip_quoted(remainder, previous) {
            output.push_str("\"…\"");
            remainder = next_remainder;
            previous = '"';
            continue;
        }
        let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
        if is_word_char(first) {
            // Numbers, uuids, times: digits are joined by characters that don't join words in a sentence.
            let end = remainder
                .char_indices()
                .find(|(at, c)| {
                    let next = remainder[at + c.len_utf8()..].chars().next();
                    !(is_word_char(*c) || ("-.:,+".contains(*c) && next.is_some_and(is_word_char)))
                })
                .map_or(remainder.len(), |(at, _)| at);
            let (word, next_remainder) = remainder.split_at(end);
            if word.contains(|c: char| c.is_ascii_digit()) {
                output.push('#');
            } else {
                output.push_str(word);
            }
            previous = 'x';
            remainder = next_remainder;
            continue;
        }
        // Includes a number's sign.
        let is_number = remainder[first.len_utf8()..].starts_with(|c: char| c.is_ascii_digit());
        if !("-+".contains(first) && is_number && previous == ' ') {
            output.push(first);
        }
        previous = first;
        remainder = &remainder[first.len_utf8()..];
    }
    output
}

/// Skips a quoted value at the start of a text, and returns the remainder; `None` without one. An apostrophe within a word is not a quote.
fn skip_quoted(text: &str, previous: char) -> Option<&str> {
    let first = text.chars().next()?;
    let close = match first {
        '"' | '`' => first,
        '\'' if !previous.is_alphanumeric() => '\'',
        '“' => '”',
        '«' => '»',
        _ => return None,
    };
    let inside = &text[first.len_utf8()..];
    inside.find(close).map(|end| &inside[end + close.len_utf8()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityPart;

    fn group(detail: &str) -> String {
        failure_group(Reason::AttemptsExhausted, Some("23505"), detail)
    }

    #[test]
    fn messages_that_failed_alike_share_a_group() {
        for (one, other) in [
            ("account 7 is closed", "account 1234 is closed"),
            ("no row for 'a b'", "no row for 'c'"),
            (
                "order 0191e2b4-6b0c-7cc3-98d4-0123456789ab is gone",
                "order ffffffff-aaaa-7bbb-8ccc-deadbeef0001 is gone",
            ),
            ("value \"x\" of type \"money\"", "value \"20.5\" of type \"time\""),
            ("too late by -1.5 s", "too late by 300,000 s"),
            ("at 2026-09-01T10:00:00+02:00", "at 2026-10-02T11:01:01Z"),
            ("boom (SQLSTATE P0001)", "given up before: boom (SQLSTATE P0001)"),
            ("boom", "given up before: given up before: boom"),
        ] {
            assert_eq!(group(one), group(other), "{one} / {other}");
        }
    }

    #[test]
    fn what_failed_otherwise_has_another_group() {
        let all = [
            "account 7 is closed",
            "account 7 is not open",
            "the card doesn't exist, it's gone",
            "the card doesn't open, it's gone",
            "",
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(group(one), group(other), "{one} / {other}");
            }
        }
        assert_ne!(
            failure_group(Reason::Poison, None, "x"),
            failure_group(Reason::AttemptsExhausted, None, "x")
        );
        assert_ne!(
            failure_group(Reason::Poison, None, "x"),
            failure_group(Reason::Poison, Some("22012"), "x")
        );
    }

    #[test]
    fn a_group_is_frozen_and_can_be_typed() {
        assert_eq!(normalise("account 7 of 'x' isn't 1.5 \"y"), "account # of \"…\" isn't # \"y");
        let group = failure_group(Reason::HandlerRejected, Some("ONC01"), "no such account: account 7");
        assert!(group.starts_with("handler_rejected/ONC01/") && group.len() == 31, "{group}");
    }

    #[test]
    fn an_id_is_the_same_for_the_same_message_only() {
        let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
        let id = |tenant: &str, key: &str, body: &[u8]| {
            letter_id(&Identity { tenant: part(tenant), consumer: part("c"), key: part(key) }, body)
        };
        let one = id("a", "bc", b"x");
        assert_eq!(one, id("a", "bc", b"x"));
        assert_eq!(one.get_version_num(), 8);
        for other in [id("ab", "c", b"x"), id("a", "bc", b"y"), id("b", "bc", b"x")] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_letter_is_read_as_it_is_written() {
        let letter = Letter { id: Uuid::from_u128(7), generation: 3 };
        assert_eq!(Letter::parse(&letter.to_string()), Some(letter));
        for junk in [
            "",
            "/",
            "7/1",
            "00000000-0000-0000-0000-000000000007",
            "00000000-0000-0000-0000-000000000007/-1",
        ] {
            assert_eq!(Letter::parse(junk), None, "{junk}");
        }
    }
}
