//! What two JSON texts have in common however they are written. In one pass and without recursion: whoever publishes chooses
//! how deep a body is nested, and a pass per level would let 100 kB of brackets stop a worker.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// A text that is known to be JSON. Its strings may hold escapes that are no characters (a lone surrogate), and its numbers
/// may be beyond all types: both are JSON's grammar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<'a>(&'a str);

/// A piece of JSON between commas, colons and white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// `{` or `[`.
    Open(u8),
    /// `}` or `]`.
    Close,
    /// With its quotes and escapes.
    Text(&'a str),
    /// A number, `true`, `false` or `null`, as written.
    Word(&'a str),
}

/// The pieces of a text, each with the place after it.
struct Tokens<'a> {
    text: &'a str,
    place: usize,
}

impl<'a> Iterator for Tokens<'a> {
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

/// Length of the quoted text that `bytes` begins with.
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

/// A text as its characters, or, where an escape is no character, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Text<'a> {
    Characters(Cow<'a, str>),
    Written(&'a str),
}

impl<'a> Text<'a> {
    fn of(quoted: &'a str) -> Self {
        match quoted.get(1..quoted.len().saturating_sub(1)) {
            Some(inner) if !inner.contains('\\') => Self::Characters(inner.into()),
            _ => match serde_json::from_str::<String>(quoted) {
                Ok(text) => Self::Characters(text.into()),
                Err(_) => Self::Written(quoted),
            },
        }
    }
}

/// A value as it is hashed. Tags and lengths keep neighbours and kinds apart.
#[derive(Clone, Debug)]
enum Item<'a> {
    Text(Text<'a>),
    /// Numbers stay as they were written: read as floating point, two different amounts could become one.
    Word(&'a str),
    /// An array or object, by the hash of its items.
    Nested([u8; 32]),
}

fn add(hash: &mut Sha256, tag: u8, bytes: &[u8]) {
    hash.update([tag]);
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

impl Item<'_> {
    fn add_to(&self, hash: &mut Sha256) {
        match self {
            Self::Text(Text::Characters(text)) => add(hash, b's', text.as_bytes()),
            Self::Text(Text::Written(text)) => add(hash, b'e', text.as_bytes()),
            Self::Word(word) => add(hash, b'w', word.as_bytes()),
            Self::Nested(digest) => add(hash, b'n', digest),
        }
    }
}

/// An array or object whose end has not come.
enum Open<'a> {
    Array(Sha256),
    Object { fields: BTreeMap<Text<'a>, Item<'a>>, name: Option<Text<'a>> },
}

impl<'a> Open<'a> {
    fn of(bracket: u8) -> Self {
        if bracket == b'{' {
            return Self::Object { fields: BTreeMap::new(), name: None };
        }
        Self::Array(Sha256::new_with_prefix(b"["))
    }

    fn put(&mut self, item: Item<'a>) {
        match self {
            Self::Array(hash) => item.add_to(hash),
            Self::Object { fields, name } => match (name.take(), item) {
                (None, Item::Text(text)) => *name = Some(text),
                // Of several fields of one name the last one counts, as in PostgreSQL's jsonb.
                (Some(name), item) => drop(fields.insert(name, item)),
                // Not JSON.
                (None, _) => {}
            },
        }
    }

    fn close(self) -> Item<'a> {
        Item::Nested(match self {
            Self::Array(hash) => hash.finalize().into(),
            Self::Object { fields, .. } => {
                let mut hash = Sha256::new_with_prefix(b"{");
                for (name, item) in fields {
                    Item::Text(name).add_to(&mut hash);
                    item.add_to(&mut hash);
                }
                hash.finalize().into()
            }
        })
    }
}

impl<'a> Json<'a> {
    /// A body, if it is JSON.
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        serde_json::from_slice::<&RawValue>(body).ok().map(|raw| Self(raw.get()))
    }

    fn tokens(self) -> Tokens<'a> {
        Tokens { text: self.0, place: 0 }
    }

    /// Hashes the value without regard to white space, the order of fields and the way texts are escaped.
    pub(super) fn add_to(self, hash: &mut Sha256) {
        let mut open: Vec<Open<'a>> = Vec::new();
        for (_, token) in self.tokens() {
            let item = match token {
                Token::Open(bracket) => {
                    open.push(Open::of(bracket));
                    continue;
                }
                Token::Close => match open.pop() {
                    Some(closed) => closed.close(),
                    None => return,
                },
                Token::Text(text) => Item::Text(Text::of(text)),
                Token::Word(word) => Item::Word(word),
            };
            match open.last_mut() {
                Some(round) => round.put(item),
                None => item.add_to(hash),
            }
        }
    }

    /// The value at an RFC 6901 pointer.
    pub(super) fn at(self, pointer: &str) -> Option<Self> {
        pointer.split('/').skip(1).try_fold(self, |found, token| {
            let name = token.replace("~1", "/").replace("~0", "~");
            found.child(&name)
        })
    }

    /// A field (of several of one name the last), or an item by its index: no sign and no leading zero, says the RFC.
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
                    field = Some(Text::of(text));
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
                    Some(Text::Characters(field)) => field == name,
                    Some(Text::Written(_)) => false,
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
