//! Identity of a message: (tenant, consumer, key).

use std::fmt;
use std::sync::Arc;

/// Maximum length of a tenant, consumer or key in bytes. 255 is the limit of an AMQP short string (`message_id`), and of implementations of
/// the IETF Idempotency-Key draft; it also keeps an index entry far below PostgreSQL's limit.
pub const MAX_BYTES: usize = 255;

/// Identity under which a message takes effect once. The primary key everywhere: PostgreSQL, Redis, API and audit.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Owner of the message.
    pub tenant: IdentityPart,
    /// Consumer: two consumers of one fan-out both receive a message.
    pub consumer: IdentityPart,
    /// Key of the message.
    pub key: IdentityPart,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tenant, self.consumer, self.key)
    }
}

/// A tenant, a consumer or a key: 1 to 255 bytes of UTF-8 without NUL. All other characters are part of the value, compared byte for byte:
/// case, blanks, control characters and Unicode form all count.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityPart(Arc<str>);

impl IdentityPart {
    /// Creates a part of an identity from valid bytes.
    ///
    /// # Errors
    /// If the bytes are empty, more than [`MAX_BYTES`], not UTF-8, or hold NUL.
    pub fn new(bytes: &[u8]) -> Result<Self, IdentityError> {
        if bytes.is_empty() {
            return Err(IdentityError::Empty);
        }
        if bytes.len() > MAX_BYTES {
            return Err(IdentityError::TooLong(bytes.len()));
        }
        if bytes.contains(&0) {
            return Err(IdentityError::Nul);
        }
        std::str::from_utf8(bytes).map(|text| Self(text.into())).map_err(|_| IdentityError::NotUtf8)
    }

    /// Returns the exact text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Escapes the text, so that control characters and direction marks can't disguise one key as another in a log.
impl fmt::Display for IdentityPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_alphanumeric() || character == ' ' || character.is_ascii_punctuation() {
                write!(f, "{character}")?;
            } else {
                write!(f, "{}", character.escape_unicode())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for IdentityPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Error of bytes that can't be part of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The source is missing.
    #[error("is missing")]
    Missing,
    /// Zero bytes.
    #[error("is empty")]
    Empty,
    /// Over [`MAX_BYTES`].
    #[error("has {0} bytes; the limit is {MAX_BYTES}")]
    TooLong(usize),
    /// A zero byte, which PostgreSQL's text can't hold.
    #[error("contains a NUL byte")]
    Nul,
    /// Not UTF-8.
    #[error("is not valid UTF-8")]
    NotUtf8,
    /// Neither text nor an integer.
    #[error("is {0}; text or an integer is needed")]
    WrongType(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(text: &str) -> IdentityPart {
        IdentityPart::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_limits_are_1_to_255_bytes_without_nul() {
        assert_eq!(IdentityPart::new(b"").unwrap_err(), IdentityError::Empty);
        assert_eq!(IdentityPart::new(&[b'a'; 255]).unwrap().as_str().len(), 255);
        assert_eq!(IdentityPart::new(&[b'a'; 256]).unwrap_err(), IdentityError::TooLong(256));
        assert_eq!(IdentityPart::new("ä".repeat(128).as_bytes()).unwrap_err(), IdentityError::TooLong(256));
        assert_eq!(IdentityPart::new(b"a\0b").unwrap_err(), IdentityError::Nul);
        assert_eq!(IdentityPart::new(&[0xff, 0xfe]).unwrap_err(), IdentityError::NotUtf8);
    }

    #[test]
    fn case_blanks_and_unicode_form_stay_distinct() {
        let all = ["a", "A", "a ", " a", "\u{e9}", "e\u{301}", "a\t", "a\u{200f}"];
        for (i, left) in all.iter().enumerate() {
            for right in &all[i + 1..] {
                assert_ne!(part(left), part(right));
            }
        }
    }

    #[test]
    fn a_key_is_shown_escaped() {
        assert_eq!(part("a\u{202e}b\n").to_string(), "a\\u{202e}b\\u{a}");
        assert_eq!(part("order 7/\u{e9}").to_string(), "order 7/\u{e9}");
    }

    proptest! {
        /// A part is exactly its bytes: nothing is trimmed, folded or normalised, so different bytes are different parts.
        #[test]
        fn bytes_are_a_part_as_they_are_or_none(
            bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..300), ".{0,200}".prop_map(String::into_bytes)],
        ) {
            let valid = (1..=255).contains(&bytes.len()) && !bytes.contains(&0) && std::str::from_utf8(&bytes).is_ok();
            match IdentityPart::new(&bytes) {
                Ok(part) => prop_assert!(valid && part.as_str().as_bytes() == bytes),
                Err(_) => prop_assert!(!valid),
            }
        }
    }
}
