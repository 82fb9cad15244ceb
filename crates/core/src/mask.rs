//! Masks messages: fields that are named in the configuration, and by default all values.
//!
//! JSON is shown as it was written, number by number: it never goes through a floating-point number, which would spoil large ones. If
//! anything is masked, content that can't be searched is hidden: a publisher chooses every byte of a message.

use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::shown;

/// The replacement of masked content.
const MASKED: &str = "•••";
/// Maximum depth that is shown.
const MAX_DEPTH: usize = 64;
/// Maximum bytes of a text that are shown.
const PREVIEW_BYTES: usize = 64 << 10;

/// The parts of a message that a user can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Names of fields, and the kind and length of each value.
    Outline,
    /// Everything that is not masked.
    Revealed,
}

/// JSON pointers, each matched at any depth.
#[derive(Clone, Debug)]
pub struct Masks {
    /// In lower case: many readers accept `Password` for the field `/password`.
    pointers: Vec<Vec<String>>,
    /// Whether content that is not JSON is shown even if fields are masked.
    is_other_shown: bool,
    /// Maximum bytes of a text that are shown.
    max_bytes: usize,
}

impl Default for Masks {
    fn default() -> Self {
        Self { pointers: Vec::new(), is_other_shown: false, max_bytes: PREVIEW_BYTES }
    }
}

impl Masks {
    /// Parses pointers; `*` stands for any name or index.
    pub fn new(pointers: &[String], is_other_shown: bool) -> Self {
        let part = |part: &str| part.replace("~1", "/").replace("~0", "~").to_lowercase();
        let parts = |pointer: &String| pointer.split('/').skip(1).map(part).collect();
        Self { pointers: pointers.iter().map(parts).collect(), is_other_shown, max_bytes: PREVIEW_BYTES }
    }

    /// Returns the masks for texts of any length.
    pub fn with_whole_texts(self) -> Self {
        Self { max_bytes: usize::MAX, ..self }
    }

    /// Returns whether nothing is masked.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// Returns the visible form of a body: JSON and other text with masks, other bytes in hexadecimal where all may be seen.
    pub fn mask_body(&self, body: &[u8], visibility: Visibility) -> String {
        match (std::str::from_utf8(body), visibility) {
            (Ok(text), _) => self.mask_text(text, visibility),
            (Err(_), Visibility::Outline) => format!("{MASKED} {} bytes that are no text", body.len()),
            (Err(_), Visibility::Revealed) if self.hides_other(body) => {
                format!("{MASKED} {} bytes that are no text: they may hold what is masked", body.len())
            }
            (Err(_), Visibility::Revealed) => {
                let lines = body[..body.len().min(self.max_bytes / 4)].chunks(32);
                let hex = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                mark_if_cut(lines.map(hex).collect::<Vec<_>>().join("\n"), body.len() > self.max_bytes / 4)
            }
        }
    }

    /// Returns the visible form of a text: JSON with masks, with one field or item per line; other text hidden or escaped as a whole.
    pub fn mask_text(&self, text: &str, visibility: Visibility) -> String {
        match (serde_json::from_str::<&RawValue>(text), visibility) {
            (Ok(value), _) => {
                let mut writer =
                    MaskingWriter { masks: self, visibility, path: Vec::new(), output: String::new() };
                writer.write_value(value);
                let is_cut = writer.output.len() > self.max_bytes;
                writer.output.truncate(writer.output.floor_char_boundary(self.max_bytes));
                mark_if_cut(shown::escape_json(&writer.output).into_owned(), is_cut)
            }
            (Err(_), Visibility::Outline) => format!("{MASKED} text of {}, no JSON", text.chars().count()),
            (Err(_), Visibility::Revealed) if self.hides_other(text.as_bytes()) => {
                let length = text.chars().count();
                format!("{MASKED} text of {length}, no JSON: it may hold what is masked")
            }
            (Err(_), Visibility::Revealed) => {
                let part = &text[..text.floor_char_boundary(self.max_bytes)];
                mark_if_cut(shown::escape_lines(part).into_owned(), part.len() < text.len())
            }
        }
    }

    /// Returns whether non-JSON text is hidden. If fields are masked, text that begins like JSON always is.
    fn hides_other(&self, text: &[u8]) -> bool {
        !self.pointers.is_empty() && (!self.is_other_shown || looks_like_json(text))
    }

    /// Returns whether a pointer matches the end of a path.
    fn hides(&self, path: &[String]) -> bool {
        self.pointers.iter().any(|pointer| {
            path.len() >= pointer.len()
                && path[path.len() - pointer.len()..]
                    .iter()
                    .zip(pointer)
                    .all(|(part, masked)| masked == "*" || part == masked)
        })
    }
}

/// Adds an ellipsis on a line of its own to a text that was cut.
fn mark_if_cut(mut text: String, is_cut: bool) -> String {
    if is_cut {
        text.push_str("\n…");
    }
    text
}

/// Returns whether the text begins like an object, an array, or a string, which may contain JSON in escapes.
fn looks_like_json(text: &[u8]) -> bool {
    // White space, NULs and byte order marks of any encoding.
    let is_wrapping = |byte: &u8| *byte <= b' ' || [0xef, 0xbb, 0xbf, 0xfe, 0xff, b'\\'].contains(byte);
    text.iter().find(|byte| !is_wrapping(byte)).is_some_and(|first| b"{[\"".contains(first))
}

/// The fields of an object as written, including names, in their order.
struct ObjectFields<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectFieldsVisitor;
        impl<'de> Visitor<'de> for ObjectFieldsVisitor {
            type Value = ObjectFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(ObjectFields(fields))
            }
        }
        deserializer.deserialize_map(ObjectFieldsVisitor)
    }
}

/// Writes a value, one field or item per line.
struct MaskingWriter<'a> {
    masks: &'a Masks,
    visibility: Visibility,
    path: Vec<String>,
    output: String,
}

impl MaskingWriter<'_> {
    /// Writes a value, masked where its path is hidden.
    fn write_value(&mut self, value: &RawValue) {
        let text = value.get();
        if self.output.len() > self.masks.max_bytes {
            return;
        }
        if (!self.path.is_empty() && self.masks.hides(&self.path)) || self.path.len() > MAX_DEPTH {
            self.write_mask("");
        } else if let Ok(ObjectFields(fields)) = serde_json::from_str(text) {
            self.write_container(['{', '}'], fields.into_iter().map(|(name, value)| (Some(name), value)));
        } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
            self.write_container(['[', ']'], items.into_iter().map(|value| (None, value)));
        } else if text.starts_with('"') {
            self.write_string(text);
        } else if text == "null" {
            self.output.push_str(text);
        } else if looks_like_json(text.as_bytes()) {
            self.write_mask(" unreadable");
        } else if self.visibility == Visibility::Revealed {
            self.output.push_str(text);
        } else if ["true", "false"].contains(&text) {
            self.write_mask(" true or false");
        } else {
            self.write_mask(" number");
        }
    }

    /// Writes a string. It may contain JSON, and a body that is a string has no fields.
    fn write_string(&mut self, text: &str) {
        let plain = serde_json::from_str::<String>(text);
        let is_shown = self.masks.pointers.is_empty()
            || plain.as_ref().is_ok_and(|plain| !looks_like_json(plain.as_bytes()))
                && (!self.path.is_empty() || self.masks.is_other_shown);
        if self.visibility == Visibility::Revealed && is_shown {
            self.output.push_str(text);
        } else {
            match plain {
                Ok(plain) => self.write_mask(&format!(" text of {}", plain.chars().count())),
                Err(_) => self.write_mask(" text"),
            }
        }
    }

    /// Writes an object or an array, each of its values on a line of its own.
    fn write_container<'v>(
        &mut self,
        [open, close]: [char; 2],
        values: impl Iterator<Item = (Option<&'v RawValue>, &'v RawValue)>,
    ) {
        self.output.push(open);
        let mut is_empty = true;
        for (index, (name, value)) in values.enumerate() {
            if index > 0 {
                self.output.push(',');
            }
            is_empty = false;
            self.start_line();
            self.output.push_str("  ");
            let plain = match name {
                None => Ok(index.to_string()),
                Some(name) => {
                    let plain = serde_json::from_str::<String>(name.get());
                    // One spelling for each name, if it has one: half of a surrogate pair stays unchanged.
                    let shown = plain.as_ref().map_or_else(
                        |_| name.get().to_owned(),
                        |plain| serde_json::Value::from(plain.as_str()).to_string(),
                    );
                    let _ = write!(self.output, "{shown}: ");
                    plain
                }
            };
            match plain {
                Ok(plain) => {
                    self.path.push(plain.to_lowercase());
                    self.write_value(value);
                    self.path.pop();
                }
                // No pointer can name it, and readers may interpret it differently.
                Err(_) if !self.masks.pointers.is_empty() => self.write_mask(""),
                Err(_) => {
                    self.path.push(String::new());
                    self.write_value(value);
                    self.path.pop();
                }
            }
        }
        if !is_empty {
            self.start_line();
        }
        self.output.push(close);
    }

    /// Begins a line with the indentation of the current depth.
    fn start_line(&mut self) {
        self.output.push('\n');
        self.output.extend(std::iter::repeat_n("  ", self.path.len()));
    }

    /// Writes the replacement of a masked value, followed by its description.
    fn write_mask(&mut self, description: &str) {
        let _ = write!(self.output, "\"{MASKED}{description}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn masks(pointers: &[&str], is_other_shown: bool) -> Masks {
        let pointers: Vec<String> = pointers.iter().map(|pointer| (*pointer).to_owned()).collect();
        Masks::new(&pointers, is_other_shown)
    }

    fn mask_json(pointers: &[&str], body: &str, visibility: Visibility) -> Value {
        serde_json::from_str(&masks(pointers, false).mask_text(body, visibility)).unwrap()
    }

    #[test]
    fn a_field_is_masked_at_whatever_depth_it_is() {
        let body = json!({
            "card": { "number": 1, "holder": "x" }, "number": 2,
            "orders": [{ "card": { "number": [3, 4] } }, { "card": "none" }],
        })
        .to_string();
        let masked = |pointers: &[&str]| mask_json(pointers, &body, Visibility::Revealed);
        let expected = json!({
            "card": { "number": "•••", "holder": "x" }, "number": 2,
            "orders": [{ "card": { "number": "•••" } }, { "card": "none" }],
        });
        assert_eq!(masked(&["/card/number"]), expected);
        assert_eq!(masked(&["/orders/*/card"])["orders"][1]["card"], "•••");
        assert_eq!(masked(&["/holder", "/1"])["card"]["holder"], "•••");
        assert_eq!(masked(&[]).to_string(), body);
        assert_eq!(
            mask_json(&["/a~1b~0c"], r#"{ "a/b~c": 1 }"#, Visibility::Revealed),
            json!({ "a/b~c": "•••" })
        );
        assert_eq!(
            mask_json(&["/X"], r#"{ "x": 1 }"#, Visibility::Revealed),
            json!({ "x": "•••" }),
            "in whatever case"
        );
        assert_eq!(
            masks(&["/x"], false).mask_text(r#"{"\ud800":1,"x":2,"y":3}"#, Visibility::Revealed),
            "{\n  \"\\ud800\": \"•••\",\n  \"x\": \"•••\",\n  \"y\": 3\n}"
        );
    }

    #[test]
    fn what_has_no_fields_is_hidden_where_fields_are_masked() {
        let bodies: [&[u8]; 3] = [b"password=SECRET", b"\xfcSECRET", b"\"SECRET\""];
        for body in bodies {
            let hidden = masks(&["/x"], false).mask_body(body, Visibility::Revealed);
            assert!(
                hidden.contains(MASKED) && !hidden.contains("SECRET") && !hidden.contains("534543"),
                "{hidden}"
            );
            let (open, none) = (masks(&["/x"], true), Masks::default());
            assert_eq!(
                open.mask_body(body, Visibility::Revealed),
                none.mask_body(body, Visibility::Revealed)
            );
            assert!(!none.mask_body(body, Visibility::Revealed).contains(MASKED));
        }
        // A string within a string, not JSON because of the comma, with its byte order mark as an escape.
        let wrapped = br#""\ufeff {\"x\":\"SECRET\"}","#;
        let hidden = masks(&["/x"], true).mask_body(wrapped, Visibility::Revealed);
        assert!(hidden.contains(MASKED) && !hidden.contains("SECRET"), "{hidden}");
    }

    #[test]
    fn an_outline_tells_no_value() {
        let body = r#"{ "name": "Ünï", "amount": 4711, "paid": true, "list": [null, "secret"] }"#;
        assert_eq!(
            mask_json(&[], body, Visibility::Outline),
            json!({ "name": "••• text of 3", "amount": "••• number", "paid": "••• true or false", "list": [null, "••• text of 6"] })
        );
        let masks = Masks::default();
        assert_eq!(masks.mask_body(b"secret text", Visibility::Outline), "••• text of 11, no JSON");
        assert_eq!(masks.mask_body(&[0xff, 0x00], Visibility::Outline), "••• 2 bytes that are no text");
        assert_eq!(masks.mask_body(&[0xff, 0x00], Visibility::Revealed), "ff00");
    }

    #[test]
    fn json_is_shown_as_it_was_written() {
        let masks = masks(&["/x"], false);
        let body = r#"{"n":123456789012345678901234567890.10,"e":1e400,"x":1,"n":[],"o":{}}"#;
        let shown = masks.mask_text(body, Visibility::Revealed);
        let flat: String = shown.split_whitespace().collect();
        assert_eq!(flat, body.replace("\"x\":1", "\"x\":\"•••\""));
        assert_eq!(
            masks.mask_text("{\"k\": \"\u{202e}<\"}", Visibility::Revealed),
            "{\n  \"k\": \"\\u202e<\"\n}"
        );
    }

    #[test]
    fn a_hostile_body_costs_little() {
        let masks = masks(&["/x"], false);
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(masks.mask_text(&deep, Visibility::Revealed).contains("•••"));
        let long = format!("[{}1]", "1,".repeat(1_000_000));
        assert!(masks.mask_text(&long, Visibility::Revealed).ends_with("\n…"));
    }

    /// Names that the masks below hide, in any spelling.
    fn masked_name() -> impl proptest::strategy::Strategy<Value = String> {
        use proptest::prelude::*;
        prop_oneof![
            Just("\"password\"".to_owned()),
            Just("\"PassWord\"".to_owned()),
            Just("\"p\\u0061ssword\"".to_owned()),
        ]
    }

    /// JSON with `SECRET` below masked names only.
    fn document() -> impl proptest::strategy::Strategy<Value = String> {
        use proptest::prelude::*;
        let leaf = prop_oneof![
            Just("1e400".to_owned()),
            Just("null".to_owned()),
            Just("\"x\"".to_owned()),
            Just("\"\\udc00\"".to_owned()),
            Just("{\"password\":\"SECRET\"}".to_owned()),
            Just("\"\\ufeff {\\\"password\\\":\\\"SECRET\\\"}\"".to_owned()),
        ];
        leaf.prop_recursive(5, 40, 4, |inner| {
            let name = prop_oneof![
                Just("\"\\ud800\"".to_owned()),
                Just("\"a\"".to_owned()),
                Just("\"\"".to_owned())
            ];
            let plain = (name, inner.clone()).prop_map(|(name, value)| format!("{name}:{value}"));
            let secret = (masked_name(), inner.clone())
                .prop_map(|(name, value)| format!("{name}:[\"SECRET\",{{\"x\":[\"SECRET\",{value}]}}]"));
            let fields = proptest::collection::vec(prop_oneof![plain, secret], 0..4);
            let items = proptest::collection::vec(inner, 0..3);
            prop_oneof![
                fields.prop_map(|fields| format!("{{{}}}", fields.join(" ,"))),
                items.prop_map(|items| format!("[{}]", items.join(","))),
            ]
        })
    }

    proptest::proptest! {
        #[test]
        fn no_value_below_a_masked_name_is_ever_shown(
            document in document(),
            before in proptest::sample::select(vec!["", "\u{feff}", " \n", "{} ", "[1]", "\u{feff}\u{feff}", "1 ", "\"", "x", "{\"a\":1,}", "\0"]),
            after in proptest::sample::select(vec![&b""[..], b" ", b",", b"}", b"]", b"{}", b" 2", b"\xff", b"\0", b"\"", b"//"]),
            cut in proptest::option::of(0..400_usize),
            is_other_shown in proptest::bool::ANY,
        ) {
            let mut body = [before.as_bytes(), document.as_bytes(), after].concat();
            if let Some(cut) = cut {
                body.truncate(cut);
            }
            let masks = masks(&["/password"], is_other_shown && !["1 ", "\"", "x"].contains(&before));
            for visibility in [Visibility::Outline, Visibility::Revealed] {
                let shown = masks.mask_body(&body, visibility);
                proptest::prop_assert!(!shown.contains("SECRET") && !shown.contains("534543524554"), "{shown}");
            }
        }
    }
}
