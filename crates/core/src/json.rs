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
    place: usize,
}

impl<'a> Iterator for JsonTokens<'a> {
    type Item = (usize, Token<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        let between = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':');
        let start = self.place + bytes.get(self.place..)?.iter().position(|byte| !between(byte))?;
        let rest = &bytes[start..];
        let (length, token) = match rest[0] {
            open @ (b'{' | b'[') => (1, Token::Open(open)),
            b'}' | b']' => (1, Token::Close),
            b'"' => {
                let length = end_of_text(rest);
                (length, Token::Text(self.text.get(start..start + length)?))
            }
            _ => {
                let ends = |byte: &u8| between(byte) || matches!(byte, b'}' | b']');
                let length = rest.iter().position(ends).unwrap_or(rest.len());
                (length, Token::Word(self.text.get(start..start + length)?))
            }
        };
        self.place = start + length;
        Some((start, token))
    }
}

/// Returns the length of the quoted text at the beginning of `bytes`.
fn end_of_text(bytes: &[u8]) -> usize {
    let mut place = 1;
    while let Some(byte) = bytes.get(place) {
        match byte {
            b'"' => return place + 1,
            b'\\' => place += 2,
            _ => place += 1,
        }
    }
    bytes.len()
}

/// Passes on the characters of a quoted text, piece by piece; returns `false` if an escape is not a character (a lone surrogate). Pieces
/// that were passed on before are invalid then.
fn unescape(quoted: &str, mut put: impl FnMut(&str)) -> bool {
    let mut rest = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    while let Some(place) = rest.find('\\') {
        put(&rest[..place]);
        let unit = |at: usize| {
            let escape = rest.get(at..at + 6)?.strip_prefix("\\u")?;
            u16::from_str_radix(escape, 16).ok()
        };
        let (character, length) = match rest.as_bytes().get(place + 1) {
            Some(b'u') => {
                let units = unit(place).into_iter().chain(unit(place + 6));
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
        put(character.encode_utf8(&mut [0; 4]));
        rest = rest.get(place + length..).unwrap_or_default();
    }
    put(rest);
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

    fn add_to(&self, hash: &mut Sha256) {
        match self {
            Self::Characters(text) => hash_tagged(hash, b's', text.as_bytes()),
            Self::Written(text) => hash_tagged(hash, b'e', text.as_bytes()),
        }
    }

    /// Returns its share of [`MOST`], which is the same in every written form.
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
    fn add_to(&self, hash: &mut Sha256) {
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

/// Bytes that exponents may add to any text when its numbers are written out.
const MOST_ADDED: usize = 1 << 20;

/// Most digits of a number in jsonb, before and after the point (NUMERIC_MAX_PRECISION and NUMERIC_DSCALE_MAX in PostgreSQL's numeric.c).
const MOST_DIGITS: usize = 131_072 + 16_383;

/// Maximum levels of arrays and objects.
const DEEPEST: usize = 1_024;

/// Maximum number of fields that are kept at the same time, of an object and those around it; a long name counts as several. Limits the
/// memory to a few megabytes for any body.
const MOST: usize = 1 << 15;

/// An array or object that is being read.
struct OpenContainer<'a> {
    items: HashedItems<'a>,
    /// Share of [`MOST`]: its own fields, and the maximum of its items.
    own: usize,
    inner: usize,
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
        Self { items, own: 0, inner: 0 }
    }

    fn put(&mut self, item: HashedValue<'a>) {
        match &mut self.items {
            HashedItems::Array(hash) => item.add_to(hash),
            HashedItems::Object { fields, name } => match (name.take(), item) {
                (None, HashedValue::Text(text)) => {
                    let text = FieldName::parse(text);
                    self.own += text.weight();
                    *name = Some(text);
                }
                // Of several fields with one name the last one counts, as in PostgreSQL's jsonb.
                (Some(name), item) => drop(fields.insert(name, item)),
                // Not JSON.
                (None, _) => {}
            },
        }
    }

    fn close(self) -> HashedValue<'a> {
        HashedValue::Nested(match self.items {
            HashedItems::Array(hash) => hash.finalize().into(),
            HashedItems::Object { fields, .. } => {
                let mut hash = Sha256::new_with_prefix(b"{");
                for (name, item) in fields {
                    name.add_to(&mut hash);
                    item.add_to(&mut hash);
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

    /// Returns whether PostgreSQL's jsonb at most doubles its length, or adds a mebibyte, by writing its numbers out: jsonb keeps no
    /// exponents, so that `1e131071` becomes 131,072 digits, in each answer and each error text that holds it.
    pub fn is_written_out(self) -> bool {
        let (bytes, most) = (self.0.as_bytes(), MOST_ADDED.max(self.0.len()));
        // Of all messages: without a branch for each byte.
        let pairs = bytes.iter().zip(bytes.iter().skip(1));
        let exponents = pairs.filter(|(one, next)| one.is_ascii_digit() & (**next | 0x20 == b'e')).count();
        if exponents.saturating_mul(MOST_DIGITS) <= most {
            return true;
        }
        let added = self.tokens().map(|(_, token)| match token {
            Token::Word(word) if word.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                let Some((_, exponent)) = word.split_once(['e', 'E']) else { return 0 };
                let digits = exponent.trim_start_matches(['+', '-']).parse().unwrap_or(MOST_DIGITS);
                digits.min(MOST_DIGITS).saturating_sub(exponent.len())
            }
            _ => 0,
        });
        added.sum::<usize>() <= most
    }

    /// Returns its text, without white space around it.
    pub(crate) fn text(self) -> &'a str {
        self.0
    }

    /// Returns the characters of a string; `None` for another value, and if an escape is not a character.
    pub(crate) fn characters(self) -> Option<Cow<'a, str>> {
        if self.0.starts_with('"') { characters(self.0) } else { None }
    }

    fn tokens(self) -> JsonTokens<'a> {
        JsonTokens { text: self.0, place: 0 }
    }

    /// Hashes the value without white space, the order of fields and the escapes of strings. A value that needs too much memory for that
    /// ([`DEEPEST`], [`MOST`]) is hashed in its written form.
    pub(crate) fn add_to(self, hash: &mut Sha256) {
        match self.item() {
            Some(item) => item.add_to(hash),
            None => hash_tagged(hash, b'v', self.0.as_bytes()),
        }
    }

    /// Returns the hashed form; `None` for a value that needs too much memory. That depends on the value alone, not on the order of its
    /// fields: an object counts its own fields and the maximum of its items, which is never less than the number kept while it is read.
    fn item(self) -> Option<HashedValue<'a>> {
        let mut open: Vec<OpenContainer<'a>> = Vec::new();
        let mut kept = 0;
        for (_, token) in self.tokens() {
            let item = match token {
                Token::Open(bracket) => {
                    if open.len() == DEEPEST {
                        return None;
                    }
                    open.push(OpenContainer::new(bracket));
                    continue;
                }
                Token::Close => {
                    let closed = open.pop()?;
                    kept -= closed.own;
                    let weight = closed.own + closed.inner;
                    if weight > MOST {
                        return None;
                    }
                    if let Some(round) = open.last_mut() {
                        round.inner = round.inner.max(weight);
                    }
                    closed.close()
                }
                Token::Text(text) => HashedValue::Text(text),
                Token::Word(word) => HashedValue::Word(word),
            };
            let Some(round) = open.last_mut() else { return Some(item) };
            kept -= round.own;
            round.put(item);
            kept += round.own;
            if kept > MOST {
                return None;
            }
        }
        None
    }

    /// Returns the value at an RFC 6901 pointer.
    pub(crate) fn at(self, pointer: &str) -> Option<Self> {
        pointer.split('/').skip(1).try_fold(self, |found, token| {
            let name = token.replace("~1", "/").replace("~0", "~");
            found.child(&name)
        })
    }

    /// Returns a field (of several with one name the last), or an item by its index: without a sign and leading zeros, by the RFC.
    fn child(self, name: &str) -> Option<Self> {
        let mut tokens = self.tokens();
        let Some((_, Token::Open(bracket))) = tokens.next() else { return None };
        let index = name.parse::<usize>().ok().filter(|index| index.to_string() == name);
        let (mut depth, mut start, mut count, mut found) = (0_usize, 0, 0, None);
        let mut field = None;
        while let Some((place, token)) = tokens.next() {
            if depth == 0 {
                if token == Token::Close {
                    break;
                }
                if let (b'{', None, Token::Text(text)) = (bracket, &field, token) {
                    field = Some(text);
                    continue;
                }
                start = place;
            }
            match token {
                Token::Open(_) => depth += 1,
                Token::Close => depth = depth.saturating_sub(1),
                Token::Text(_) | Token::Word(_) => {}
            }
            if depth == 0 {
                let is_it = match field.take() {
                    Some(field) => {
                        let mut rest = Some(name);
                        unescape(field, |piece| rest = rest.and_then(|rest| rest.strip_prefix(piece)))
                            && rest == Some("")
                    }
                    None => index == Some(count),
                };
                if is_it {
                    found = self.0.get(start..tokens.place).map(Self);
                }
                count += 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(text: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        JsonText::parse(text.as_bytes()).unwrap().add_to(&mut hash);
        hash.finalize().into()
    }

    fn is_too_large(text: &str) -> bool {
        JsonText::parse(text.as_bytes()).unwrap().item().is_none()
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
        let (many, few) = (fields("a", MOST / 2), fields("b", MOST / 2 + 1));
        // The inner object is read while none, or all, of the outer fields are kept.
        let first = format!("{{\"in\":{{{few}\"x\":1}},{many}\"y\":2}}");
        let last = format!("{{{many}\"y\":2,\"in\":{{{few}\"x\":1}}}}");
        assert!(is_too_large(&first) && is_too_large(&last));
        assert_ne!(hashed(&first), hashed(&last));
        assert_eq!(hashed(&first), hashed(&format!(" {first}\n")));
        // Objects in sequence count only as much as the largest.
        assert!(!is_too_large(&format!("[{{{many}\"y\":2}},{{{many}\"y\":2}},{{{many}\"y\":2}}]")));
        assert!(is_too_large(&format!("{{\"{}\":0}}", "x".repeat(MOST * 128))));
        assert!(is_too_large(&format!("{}{}", "[".repeat(DEEPEST + 1), "]".repeat(DEEPEST + 1))));
        assert!(!is_too_large(&format!("{}{}", "[".repeat(DEEPEST), "]".repeat(DEEPEST))));
        assert!(!is_too_large(&format!("[{}0]", "0,".repeat(1 << 20))));
    }

    #[test]
    fn numbers_with_large_exponents_are_counted_as_they_are_written_out() {
        let is_written_out = |text: &str| JsonText::parse(text.as_bytes()).unwrap().is_written_out();
        let many = |item: &str, count: usize| format!("[{}0]", format!("{item},").repeat(count));
        assert!(is_written_out(&many("1e131071", 7)) && is_written_out(&many("1E+131071", 8)));
        assert!(!is_written_out(&many("1e131071", 9)) && !is_written_out(&many("-1.5E-140000", 9)));
        assert!(!is_written_out(&many("1e99999999999999999999", 9)));
        // Common numbers, and text that looks like them.
        assert!(is_written_out(&many("1.5e-8", 1_000_000)) && !is_written_out(&many("1e300", 10_000)));
        assert!(is_written_out(&many("true,false,null,\"3e\"", 1_000)));
        assert!(
            is_written_out(&many("\"1e131071\"", 10_000))
                && is_written_out(&many("{\"1e131071\":1}", 10_000))
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
