//! JSON text: a value in it, and comparison of values regardless of their formatting.
//!
//! No tree is built: a publisher chooses the content of a body, and a value of two bytes would take a hundred. Without recursion and in one
//! pass: with a pass per level 100 kB of brackets would stop a worker.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// A text that is known to be JSON. Its strings may hold escapes that are not characters (a lone surrogate), and its numbers may exceed all
/// types: both are valid JSON grammar.
#[derive(Clone, Copy, Debug)]
pub struct JsonText<'a>(&'a str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// `{` or `[`.
    Open(u8),
    /// `}` or `]`.
    Close,
    /// A string, with its quotes and escapes.
    Text(&'a str),
    /// A number, `true`, `false` or `null`, as written.
    Word(&'a str),
}

/// Iterator over the tokens of a text, each with its position.
struct JsonTokens<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Iterator for JsonTokens<'a> {
    type Item = (usize, Token<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        let is_separator = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
        let start =
            self.position + bytes.get(self.position..)?.iter().position(|byte| !is_separator(byte))?;
        let remainder = &bytes[start..];
        let (length, token) = match remainder[0] {
            open @ (b'{' | b'[') => (1, Token::Open(open)),
            b'}' | b']' => (1, Token::Close),
            b'"' => {
                let length = quoted_length(remainder);
                (length, Token::Text(self.text.get(start..start + length)?))
            }
            _ => {
                let is_end = |byte: &u8| is_separator(byte) || matches!(byte, b'}' | b']');
                let length = remainder.iter().position(is_end).unwrap_or(remainder.len());
                (length, Token::Word(self.text.get(start..start + length)?))
            }
        };
        self.position = start + length;
        Some((start, token))
    }
}

/// Returns the length of the quoted text at the beginning of `bytes`.
fn quoted_length(bytes: &[u8]) -> usize {
    let mut position = 1;
    while let Some(byte) = bytes.get(position) {
        match byte {
            b'"' => return position + 1,
            b'\\' => position += 2,
            _ => position += 1,
        }
    }
    bytes.len()
}

/// Passes on the characters of a quoted text, piece by piece; returns `false` if an escape is not a character (a lone surrogate). Pieces
/// that were passed on before are invalid then.
fn unescape(quoted: &str, mut emit: impl FnMut(&str)) -> bool {
    let mut remainder = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    while let Some(position) = remainder.find('\\') {
        emit(&remainder[..position]);
        let unit = |at: usize| {
            let escape = remainder.get(at..at + 6)?.strip_prefix("\\u")?;
            u16::from_str_radix(escape, 16).ok()
        };
        let (character, length) = match remainder.as_bytes().get(position + 1) {
            Some(b'u') => {
                let units = unit(position).into_iter().chain(unit(position + 6));
                match char::decode_utf16(units).next() {
                    Some(Ok(character)) => (character, 6 * character.len_utf16()),
                    Some(Err(_)) | None => return false,
                }
            }
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            // A quote, a slash or a backslash.
            Some(other) => (char::from(*other), 2),
            None => return false,
        };
        emit(character.encode_utf8(&mut [0; 4]));
        remainder = remainder.get(position + length..).unwrap_or_default();
    }
    emit(remainder);
    true
}

/// Name of a field as its characters, or, if an escape is not a character, in its written form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FieldName<'a> {
    Characters(Cow<'a, str>),
    Written(&'a str),
}

/// Returns the characters of a quoted text; `None` if an escape is not a character.
fn characters(quoted: &str) -> Option<Cow<'_, str>> {
    match quoted.get(1..quoted.len().saturating_sub(1)) {
        Some(inner) if !inner.contains('\\') => Some(inner.into()),
        _ => {
            let mut length = 0;
            if !unescape(quoted, |piece| length += piece.len()) {
                return None;
            }
            let mut text = String::with_capacity(length);
            unescape(quoted, |piece| text.push_str(piece));
            Some(text.into())
        }
    }
}

impl<'a> FieldName<'a> {
    fn parse(quoted: &'a str) -> Self {
        characters(quoted).map_or(Self::Written(quoted), Self::Characters)
    }

    fn hash_into(&self, hash: &mut Sha256) {
        match self {
            Self::Characters(text) => hash_tagged(hash, b's', text.as_bytes()),
            Self::Written(text) => hash_tagged(hash, b'e', text.as_bytes()),
        }
    }

    /// Returns the name's share of [`MAX_FIELDS`], which is the same in every written form.
    fn weight(&self) -> usize {
        let length = match self {
            Self::Characters(text) => text.len(),
            Self::Written(text) => text.len(),
        };
        1 + length / 128
    }
}

/// A value in hashed form. Tags and lengths separate neighbours and kinds.
#[derive(Clone, Copy, Debug)]
enum HashedValue<'a> {
    /// A string, with its quotes and escapes.
    Text(&'a str),
    /// Numbers keep their written form: as floating point, two different amounts could become equal.
    Word(&'a str),
    /// An array or object, by the hash of its items.
    Nested([u8; 32]),
}

impl HashedValue<'_> {
    fn hash_into(&self, hash: &mut Sha256) {
        match self {
            Self::Text(text) => {
                let mut length = 0_u64;
                if !unescape(text, |piece| length += piece.len() as u64) {
                    return hash_tagged(hash, b'e', text.as_bytes());
                }
                hash.update([b's']);
                hash.update(length.to_be_bytes());
                unescape(text, |piece| hash.update(piece));
            }
            Self::Word(word) => hash_tagged(hash, b'w', word.as_bytes()),
            Self::Nested(digest) => hash_tagged(hash, b'n', digest),
        }
    }
}

/// Hashes a tag, the length of `bytes` as eight big-endian bytes, and `bytes`. Stored fingerprints depend on this form.
fn hash_tagged(hash: &mut Sha256, tag: u8, bytes: &[u8]) {
    hash.update([tag]);
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

/// Number of bytes that exponents may add to any text when its numbers are written out.
const MAX_ADDED_BYTES: usize = 1 << 20;

/// Maximum number of digits of a number in jsonb, before and after the point (NUMERIC_MAX_PRECISION and NUMERIC_DSCALE_MAX in
/// PostgreSQL's numeric.c).
const MAX_DIGITS: usize = 131_072 + 16_383;

/// Maximum levels of arrays and objects.
const MAX_DEPTH: usize = 1_024;

/// Maximum number of fields that are kept at the same time, of an object and those around it; a long name counts as several. Limits the
/// memory to a few megabytes for any body.
const MAX_FIELDS: usize = 1 << 15;

/// An array or object that is being read.
struct OpenContainer<'a> {
    items: HashedItems<'a>,
    /// Share of [`MAX_FIELDS`] of its own fields, and the maximum share of its items.
    own_weight: usize,
    max_inner_weight: usize,
}

enum HashedItems<'a> {
    Array(Sha256),
    Object { fields: BTreeMap<FieldName<'a>, HashedValue<'a>>, name: Option<FieldName<'a>> },
}

impl<'a> OpenContainer<'a> {
    fn new(bracket: u8) -> Self {
        let items = match bracket {
            b'{' => HashedItems::Object { fields: BTreeMap::new(), name: None },
            _ => HashedItems::Array(Sha256::new_with_prefix(b"[")),
        };
        Self { items, own_weight: 0, max_inner_weight: 0 }
    }

    /// Adds an item of an array; of an object alternately the name of a field and its value.
    fn add_item(&mut self, item: HashedValue<'a>) {
        match &mut self.items {
            HashedItems::Array(hash) => item.hash_into(hash),
            HashedItems::Object { fields, name } => match (name.take(), item) {
                (None, HashedValue::Text(text)) => {
                    let text = FieldName::parse(text);
                    self.own_weight += text.weight();
                    *name = Some(text);
                }
                // Of several fields with one name the last one counts, as in PostgreSQL's jsonb.
                (Some(name), item) => drop(fields.insert(name, item)),
                // Not JSON.
                (None, _) => {}
            },
        }
    }

    /// Finishes the hash of the items; an object's fields are hashed in the order of their names.
    fn finish(self) -> HashedValue<'a> {
        HashedValue::Nested(match self.items {
            HashedItems::Array(hash) => hash.finalize().into(),
            HashedItems::Object { fields, .. } => {
                let mut hash = Sha256::new_with_prefix(b"{");
                for (name, item) in fields {
                    name.hash_into(&mut hash);
                    item.hash_into(&mut hash);
                }
                hash.finalize().into()
            }
        })
    }
}

impl<'a> JsonText<'a> {
    /// Parses a body.
    ///
    /// # Errors
    /// If it is not JSON. Strings are checked, too: skipping values (`IgnoredAny`) would accept bytes that are not UTF-8.
    pub fn parse(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice::<&RawValue>(body).map(|raw| Self(raw.get()))
    }

    /// Returns whether PostgreSQL's jsonb at most doubles the text's length, or adds a mebibyte, by writing its numbers out: jsonb keeps no
    /// exponents, so that `1e131071` becomes 131,072 digits, in each answer and each error text that holds it.
    pub fn is_bounded_as_jsonb(self) -> bool {
        let (bytes, max_added) = (self.0.as_bytes(), MAX_ADDED_BYTES.max(self.0.len()));
        // Of all messages: without a branch for each byte.
        let pairs = bytes.iter().zip(bytes.iter().skip(1));
        let exponents =
            pairs.filter(|(byte, next_byte)| byte.is_ascii_digit() & (**next_byte | 0x20 == b'e')).count();
        if exponents.saturating_mul(MAX_DIGITS) <= max_added {
            return true;
        }
        let added = self.tokens().map(|(_, token)| match token {
            Token::Word(word) if word.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                let Some((_, exponent)) = word.split_once(['e', 'E']) else { return 0 };
                let digits = exponent.trim_start_matches(['+', '-']).parse().unwrap_or(MAX_DIGITS);
                digits.min(MAX_DIGITS).saturating_sub(exponent.len())
            }
            _ => 0,
        });
        added.sum::<usize>() <= max_added
    }

    /// Returns the value's text, without white space around it.
    pub(crate) fn text(self) -> &'a str {
        self.0
    }

    /// Returns the characters of a string; `None` for another value, and if an escape is not a character.
    pub(crate) fn characters(self) -> Option<Cow<'a, str>> {
        if self.0.starts_with('"') { characters(self.0) } else { None }
    }

    fn tokens(self) -> JsonTokens<'a> {
        JsonTokens { text: self.0, position: 0 }
    }

    /// Hashes the value without white space, the order of fields and the escapes of strings. A value that needs too much memory for that
    /// ([`MAX_DEPTH`], [`MAX_FIELDS`]) is hashed in its written form.
    pub(crate) fn hash_into(self, hash: &mut Sha256) {
        match self.to_hashed_value() {
            Some(item) => item.hash_into(hash),
            None => hash_tagged(hash, b'v', self.0.as_bytes()),
        }
    }

    /// Converts the value to its hashed form; `None` if it needs too much memory. That depends on the value alone, not on the order of its
    /// fields: an object counts its own fields and the maximum of its items, which is never less than the number kept while it is read.
    fn to_hashed_value(self) -> Option<HashedValue<'a>> {
        let mut containers: Vec<OpenContainer<'a>> = Vec::new();
        let mut kept_weight = 0;
        for (_, token) in self.tokens() {
            let item = match token {
                Token::Open(bracket) => {
                    if containers.len() == MAX_DEPTH {
                        return None;
                    }
                    containers.push(OpenContainer::new(bracket));
                    continue;
                }
                Token::Close => {
                    let container = containers.pop()?;
                    kept_weight -= container.own_weight;
                    let weight = container.own_weight + container.max_inner_weight;
                    if weight > MAX_FIELDS {
                        return None;
                    }
                    if let Some(parent) = containers.last_mut() {
                        parent.max_inner_weight = parent.max_inner_weight.max(weight);
                    }
                    container.finish()
                }
                Token::Text(text) => HashedValue::Text(text),
                Token::Word(word) => HashedValue::Word(word),
            };
            let Some(parent) = containers.last_mut() else { return Some(item) };
            kept_weight -= parent.own_weight;
            parent.add_item(item);
            kept_weight += parent.own_weight;
            if kept_weight > MAX_FIELDS {
                return None;
            }
        }
        None
    }

    /// Returns the value at an RFC 6901 pointer; `None` if the pointer leads nowhere.
    pub(crate) fn value_at(self, pointer: &str) -> Option<Self> {
        pointer.split('/').skip(1).try_fold(self, |value, token| {
            let name = token.replace("~1", "/").replace("~0", "~");
            value.find_child(&name)
        })
    }

    /// Finds a field (of several with one name the last), or an item by its index: without a sign and leading zeros, by the RFC. `None` if
    /// the value has no such field or item.
    fn find_child(self, name: &str) -> Option<Self> {
        let mut tokens = self.tokens();
        let Some((_, Token::Open(bracket))) = tokens.next() else { return None };
        let index = name.parse::<usize>().ok().filter(|index| index.to_string() == name);
        let (mut depth, mut start, mut count, mut value) = (0_usize, 0, 0, None);
        let mut field = None;
        while let Some((position, token)) = tokens.next() {
            if depth == 0 {
                if token == Token::Close {
                    break;
                }
                if let (b'{', None, Token::Text(text)) = (bracket, &field, token) {
                    field = Some(text);
                    continue;
                }
                start = position;
            }
            match token {
                Token::Open(_) => depth += 1,
                Token::Close => depth = depth.saturating_sub(1),
                Token::Text(_) | Token::Word(_) => {}
            }
            if depth == 0 {
                let is_match = match field.take() {
                    Some(field) => {
                        let mut remainder = Some(name);
                        unescape(field, |piece| {
                            remainder = remainder.and_then(|remainder| remainder.strip_prefix(piece))
                        }) && remainder == Some("")
                    }
                    None => index == Some(count),
                };
                if is_match {
                    value = self.0.get(start..tokens.position).map(Self);
                }
                count += 1;
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(text: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        JsonText::parse(text.as_bytes()).unwrap().hash_into(&mut hash);
        hash.finalize().into()
    }

    fn is_too_large(text: &str) -> bool {
        JsonText::parse(text.as_bytes()).unwrap().to_hashed_value().is_none()
    }

    #[test]
    fn a_text_that_is_not_utf_8_makes_a_body_that_is_not_json() {
        assert!(JsonText::parse(br#"{"a": "b"}"#).is_ok());
        assert!(JsonText::parse(b"{\"a\": \"\xff\"}").is_err());
        assert!(JsonText::parse(b"not json").is_err());
    }

    #[test]
    fn what_takes_too_much_memory_is_hashed_as_it_is_written_whatever_the_order() {
        let fields = |prefix: &str, count: usize| -> String {
            (0..count).map(|n| format!("\"{prefix}{n}\":0,")).collect()
        };
        let (many, few) = (fields("a", MAX_FIELDS / 2), fields("b", MAX_FIELDS / 2 + 1));
        // The inner object is read while none, or all, of the outer fields are kept.
        let first = format!("{{\"in\":{{{few}\"x\":1}},{many}\"y\":2}}");
        let last = format!("{{{many}\"y\":2,\"in\":{{{few}\"x\":1}}}}");
        assert!(is_too_large(&first) && is_too_large(&last));
        assert_ne!(hashed(&first), hashed(&last));
        assert_eq!(hashed(&first), hashed(&format!(" {first}\n")));
        // Objects in sequence count only as much as the largest.
        assert!(!is_too_large(&format!("[{{{many}\"y\":2}},{{{many}\"y\":2}},{{{many}\"y\":2}}]")));
        assert!(is_too_large(&format!("{{\"{}\":0}}", "x".repeat(MAX_FIELDS * 128))));
        assert!(is_too_large(&format!("{}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1))));
        assert!(!is_too_large(&format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))));
        assert!(!is_too_large(&format!("[{}0]", "0,".repeat(1 << 20))));
    }

    #[test]
    fn numbers_with_large_exponents_are_counted_as_they_are_written_out() {
        let is_bounded_as_jsonb =
            |text: &str| JsonText::parse(text.as_bytes()).unwrap().is_bounded_as_jsonb();
        let many = |item: &str, count: usize| format!("[{}0]", format!("{item},").repeat(count));
        assert!(is_bounded_as_jsonb(&many("1e131071", 7)) && is_bounded_as_jsonb(&many("1E+131071", 8)));
        assert!(!is_bounded_as_jsonb(&many("1e131071", 9)) && !is_bounded_as_jsonb(&many("-1.5E-140000", 9)));
        assert!(!is_bounded_as_jsonb(&many("1e99999999999999999999", 9)));
        // Common numbers, and text that looks like them.
        assert!(
            is_bounded_as_jsonb(&many("1.5e-8", 1_000_000)) && !is_bounded_as_jsonb(&many("1e300", 10_000))
        );
        assert!(is_bounded_as_jsonb(&many("true,false,null,\"3e\"", 1_000)));
        assert!(
            is_bounded_as_jsonb(&many("\"1e131071\"", 10_000))
                && is_bounded_as_jsonb(&many("{\"1e131071\":1}", 10_000))
        );
    }

    #[test]
    fn escapes_are_the_characters_that_they_stand_for() {
        let quoted = r#""\u00e4\ud83d\ude00\"\\\/\b\f\n\r\t|""#;
        let expected: String = serde_json::from_str(quoted).unwrap();
        assert_eq!(characters(quoted), Some(expected.into()));
        for lone in [r#""\ud800""#, r#""\ud800x""#, r#""\ude00""#, r#""\ud800\u0041""#, r#""\ud83d\n""#] {
            assert_eq!(characters(lone), None, "{lone}");
            assert!(serde_json::from_str::<String>(lone).is_err());
        }
    }
}
