//! What is not shown of a message: fields that are named in the configuration, and by default all values.
//!
//! JSON is shown as it was written, number by number: it never goes through a floating-point number, which would spoil large ones.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::shown;

/// Instead of what is masked.
const HIDDEN: &str = "•••";
/// Deeper than this nothing is shown.
const DEPTH: usize = 64;
/// Most bytes of a text that are shown.
const PREVIEW: usize = 64 << 10;

/// How much of a message somebody gets to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Names of fields; of each value its kind and its length.
    Outline,
    /// All but what is masked.
    Revealed,
}

/// JSON pointers, each found at whatever depth its end is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Masks(Vec<Vec<String>>);

impl Masks {
    /// From pointers; `*` stands for any name or index.
    pub(crate) fn new(pointers: &[String]) -> Self {
        let parts = |pointer: &String| {
            pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
        };
        Self(pointers.iter().map(parts).collect())
    }

    /// A body, as somebody may see it.
    pub(crate) fn body(&self, body: &[u8], sight: Sight) -> String {
        match (std::str::from_utf8(body), sight) {
            (Ok(text), _) => self.json(text, sight),
            (Err(_), Sight::Outline) => format!("{HIDDEN} {} bytes that are no text", body.len()),
            (Err(_), Sight::Revealed) => {
                let lines = body[..body.len().min(PREVIEW / 4)].chunks(32);
                let hex = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                cut(lines.map(hex).collect::<Vec<_>>().join("\n"), body.len() > PREVIEW / 4)
            }
        }
    }

    /// A text, which is JSON most often.
    pub(crate) fn json(&self, text: &str, sight: Sight) -> String {
        match (serde_json::from_str::<&RawValue>(text), sight) {
            (Ok(value), _) => {
                let mut walk = Walk { masks: self, sight, path: Vec::new(), out: String::new() };
                walk.value(value);
                let is_cut = walk.out.len() > PREVIEW;
                walk.out.truncate(walk.out.floor_char_boundary(PREVIEW));
                cut(shown::json(&walk.out).into_owned(), is_cut)
            }
            (Err(_), Sight::Outline) => format!("{HIDDEN} text of {}, no JSON", text.chars().count()),
            (Err(_), Sight::Revealed) => {
                let part = &text[..text.floor_char_boundary(PREVIEW)];
                cut(shown::lines(part).into_owned(), part.len() < text.len())
            }
        }
    }

    fn hides(&self, path: &[String]) -> bool {
        self.0.iter().any(|pointer| {
            path.len() >= pointer.len()
                && path[path.len() - pointer.len()..]
                    .iter()
                    .zip(pointer)
                    .all(|(part, masked)| masked == "*" || part == masked)
        })
    }
}

fn cut(mut text: String, is_cut: bool) -> String {
    if is_cut {
        text.push_str("\n…");
    }
    text
}

/// The fields of an object as they are written, in their order.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    fields.push((Cow::Owned(name), value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Writes a value, one field or item a line.
struct Walk<'a> {
    masks: &'a Masks,
    sight: Sight,
    path: Vec<String>,
    out: String,
}

impl Walk<'_> {
    fn value(&mut self, value: &RawValue) {
        let text = value.get();
        if self.out.len() > PREVIEW {
            return;
        }
        if (!self.path.is_empty() && self.masks.hides(&self.path)) || self.path.len() > DEPTH {
            self.hidden("");
        } else if let Ok(Fields(fields)) = serde_json::from_str(text) {
            self.within(['{', '}'], fields.into_iter().map(|(name, value)| (Some(name.into_owned()), value)));
        } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
            self.within(['[', ']'], items.into_iter().map(|value| (None, value)));
        } else if self.sight == Sight::Revealed || text == "null" {
            self.out.push_str(text);
        } else if let Ok(text) = serde_json::from_str::<String>(text) {
            self.hidden(&format!(" text of {}", text.chars().count()));
        } else if ["true", "false"].contains(&text) {
            self.hidden(" true or false");
        } else {
            self.hidden(" number");
        }
    }

    fn within<'v>(
        &mut self,
        [open, close]: [char; 2],
        values: impl Iterator<Item = (Option<String>, &'v RawValue)>,
    ) {
        self.out.push(open);
        let mut is_empty = true;
        for (index, (name, value)) in values.enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            is_empty = false;
            self.line();
            self.out.push_str("  ");
            if let Some(name) = &name {
                let _ = write!(self.out, "{}: ", serde_json::Value::from(name.as_str()));
            }
            self.path.push(name.unwrap_or_else(|| index.to_string()));
            self.value(value);
            self.path.pop();
        }
        if !is_empty {
            self.line();
        }
        self.out.push(close);
    }

    fn line(&mut self) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n("  ", self.path.len()));
    }

    fn hidden(&mut self, what: &str) {
        let _ = write!(self.out, "\"{HIDDEN}{what}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn seen(pointers: &[&str], body: &str, sight: Sight) -> Value {
        let pointers: Vec<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
        serde_json::from_str(&Masks::new(&pointers).json(body, sight)).unwrap()
    }

    #[test]
    fn a_field_is_masked_at_whatever_depth_it_is() {
        let body = json!({
            "card": { "number": 1, "holder": "x" }, "number": 2,
            "orders": [{ "card": { "number": [3, 4] } }, { "card": "none" }],
        })
        .to_string();
        let masked = |pointers: &[&str]| seen(pointers, &body, Sight::Revealed);
        let wanted = json!({
            "card": { "number": "•••", "holder": "x" }, "number": 2,
            "orders": [{ "card": { "number": "•••" } }, { "card": "none" }],
        });
        assert_eq!(masked(&["/card/number"]), wanted);
        assert_eq!(masked(&["/orders/*/card"])["orders"][1]["card"], "•••");
        assert_eq!(masked(&["/holder", "/1"])["card"]["holder"], "•••");
        assert_eq!(masked(&[]).to_string(), body);
        assert_eq!(seen(&["/a~1b~0c"], r#"{ "a/b~c": 1 }"#, Sight::Revealed), json!({ "a/b~c": "•••" }));
        assert_eq!(seen(&["/x"], "\"x\"", Sight::Revealed), json!("x"), "a whole text is no field");
    }

    #[test]
    fn an_outline_tells_no_value() {
        let body = r#"{ "name": "Ünï", "amount": 4711, "paid": true, "list": [null, "secret"] }"#;
        assert_eq!(
            seen(&[], body, Sight::Outline),
            json!({ "name": "••• text of 3", "amount": "••• number", "paid": "••• true or false", "list": [null, "••• text of 6"] })
        );
        let masks = Masks::default();
        assert_eq!(masks.body(b"secret text", Sight::Outline), "••• text of 11, no JSON");
        assert_eq!(masks.body(&[0xff, 0x00], Sight::Outline), "••• 2 bytes that are no text");
        assert_eq!(masks.body(&[0xff, 0x00], Sight::Revealed), "ff00");
    }

    #[test]
    fn json_is_shown_as_it_was_written() {
        let masks = Masks::new(&["/x".to_owned()]);
        let body = r#"{"n":123456789012345678901234567890.10,"e":1e400,"x":1,"n":[],"o":{}}"#;
        let shown = masks.json(body, Sight::Revealed);
        let flat: String = shown.split_whitespace().collect();
        assert_eq!(flat, body.replace("\"x\":1", "\"x\":\"•••\""));
        assert_eq!(masks.json("{\"k\": \"\u{202e}<\"}", Sight::Revealed), "{\n  \"k\": \"\\u202e<\"\n}");
    }

    #[test]
    fn a_hostile_body_costs_little() {
        let masks = Masks::new(&["/x".to_owned()]);
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(masks.json(&deep, Sight::Revealed).contains("•••"));
        let long = format!("[{}1]", "1,".repeat(1_000_000));
        assert!(masks.json(&long, Sight::Revealed).ends_with("\n…"));
    }
}
