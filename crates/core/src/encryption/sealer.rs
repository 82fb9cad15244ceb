//! Stored JSON that is encrypted: an object that holds the ciphertext takes its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Cipher, CipherError, EncryptedValue, Place};

/// The only member of an object that holds a ciphertext: `{"oncely_encrypted": {"key": "2026-11", "value": "…"}}`, the value in base64.
const ENCRYPTED: &str = "oncely_encrypted";
/// The only member of an object that holds a handler's value that looks like one of these two: `{"oncely_plain": …}`. The SQL functions
/// `oncely.is_encrypted` and `oncely.plain_json` know both.
const PLAIN: &str = "oncely_plain";

/// A stored text that is not simply the handler's value.
#[derive(Debug)]
enum WrappedText {
    Encrypted { key: String, value: String },
    Plain(String),
}

impl WrappedText {
    /// Parses a stored text that is a wrapper; `None` for any other text. A handler's own JSON is not parsed: it may hold numbers that Rust
    /// can't represent.
    fn parse(json: &str) -> Option<Self> {
        // The beginning of such an object, as Rust and PostgreSQL write it.
        if !json.starts_with("{\"oncely_") {
            return None;
        }
        // Maps rather than structs, which serde would also read from arrays.
        let mut object: BTreeMap<String, Box<RawValue>> = serde_json::from_str(json).ok()?;
        let (name, inner) = object.pop_first().filter(|_| object.is_empty())?;
        match name.as_str() {
            PLAIN => Some(Self::Plain(inner.get().to_owned())),
            ENCRYPTED => {
                let mut contents: BTreeMap<String, String> = serde_json::from_str(inner.get()).ok()?;
                let (key, value) = (contents.remove("key")?, contents.remove("value")?);
                contents.is_empty().then_some(Self::Encrypted { key, value })
            }
            _ => None,
        }
    }
}

/// Returns whether the value may be a wrapper; all others are not examined further.
fn may_be_wrapper(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        object.len() == 1 && (object.contains_key(ENCRYPTED) || object.contains_key(PLAIN))
    })
}

/// Encrypts the responses of a consumer's handler if its configuration requires it, and decrypts values encrypted before.
#[derive(Clone, Default)]
pub struct Sealer {
    cipher: Option<Arc<dyn Cipher>>,
    is_encrypting: bool,
}

impl Sealer {
    /// Creates a sealer. `is_encrypting`: new values are encrypted; encrypted values are decrypted in either case.
    #[doc(hidden)]
    pub fn new(cipher: Option<Arc<dyn Cipher>>, is_encrypting: bool) -> Self {
        Self { cipher, is_encrypting }
    }

    /// Converts a handler's value to the value to store: encrypted, wrapped if it looks like a wrapper, otherwise unchanged.
    #[doc(hidden)]
    pub fn seal(&self, place: &Place<'_>, value: Value) -> Result<Value, CipherError> {
        match self.is_encrypting {
            true => self.encrypt(place, &value.to_string()),
            false if may_be_wrapper(&value) && WrappedText::parse(&value.to_string()).is_some() => {
                Ok(json!({ PLAIN: value }))
            }
            false => Ok(value),
        }
    }

    /// Checks that encryption would succeed, before work that might have a result that can't be stored.
    #[doc(hidden)]
    pub fn check_available(&self, place: &Place<'_>) -> Result<(), CipherError> {
        match self.is_encrypting {
            true => self.encrypt(place, "null").map(drop),
            false => Ok(()),
        }
    }

    /// Converts a handler's JSON text to the text to store; `None` if it is stored unchanged.
    #[doc(hidden)]
    pub fn seal_text(&self, place: &Place<'_>, json: &str) -> Result<Option<String>, CipherError> {
        match self.is_encrypting {
            true => self.encrypt(place, json).map(|envelope| Some(envelope.to_string())),
            false => Ok(WrappedText::parse(json).map(|_| format!("{{\"{PLAIN}\": {json}}}"))),
        }
    }

    /// Encrypts a JSON text, and wraps the ciphertext.
    fn encrypt(&self, place: &Place<'_>, json: &str) -> Result<Value, CipherError> {
        let Some(cipher) = &self.cipher else {
            return Err(CipherError::Other(
                "there is nothing to encrypt with ([encryption] keys)".to_owned(),
            ));
        };
        let EncryptedValue { key, bytes } = cipher.seal(place, json.as_bytes())?;
        Ok(json!({ ENCRYPTED: { "key": key, "value": BASE64.encode(bytes) } }))
    }

    /// Converts a stored value to the handler's value: decrypts and unwraps it.
    #[doc(hidden)]
    pub fn open(&self, place: &Place<'_>, stored: Value) -> Result<Value, CipherError> {
        if !may_be_wrapper(&stored) {
            return Ok(stored);
        }
        match open_text(self.cipher.as_ref(), place, &stored.to_string())? {
            Some(text) => serde_json::from_str(&text).map_err(|error| CipherError::Other(error.to_string())),
            None => Ok(stored),
        }
    }
}

/// Decrypts and unwraps a stored text; `None` if `stored` is the handler's text itself.
pub fn open_text(
    cipher: Option<&Arc<dyn Cipher>>,
    place: &Place<'_>,
    stored: &str,
) -> Result<Option<String>, CipherError> {
    let (key, value) = match WrappedText::parse(stored) {
        None => return Ok(None),
        Some(WrappedText::Plain(json)) => return Ok(Some(json)),
        Some(WrappedText::Encrypted { key, value }) => (key, value),
    };
    let Some(cipher) = cipher else { return Err(CipherError::NoKey { key }) };
    let Ok(bytes) = BASE64.decode(value) else { return Err(CipherError::DoesNotOpen { key }) };
    let plain = cipher.open(place, &EncryptedValue { key: key.clone(), bytes })?;
    String::from_utf8(plain).map(Some).map_err(|_| CipherError::DoesNotOpen { key })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::KeyRing;

    fn cipher(id: &str) -> Option<Arc<dyn Cipher>> {
        let ring = format!("[[keys]]\nid = {id:?}\nkey = \"{}\"", "5e".repeat(32));
        Some(Arc::new(KeyRing::parse(&ring).unwrap()))
    }

    fn response<'a>(tenant: &'a str, key: &'a str) -> Place<'a> {
        Place::Response { tenant, consumer: "payments", key }
    }

    #[test]
    fn a_value_comes_back_from_its_own_place_and_is_seen_nowhere() {
        let sealer = Sealer::new(cipher("a"), true);
        let place = response("acme", "k");
        let value = json!({ "card": "4242", "amount": 1.5 });
        let stored = sealer.seal(&place, value.clone()).unwrap();
        assert_eq!(stored["oncely_encrypted"]["key"], "a");
        assert!(!stored.to_string().contains("4242"));
        assert_eq!(sealer.open(&place, stored.clone()).unwrap(), value);
        // A value encrypted before the setting was turned off decrypts as well.
        assert_eq!(Sealer::new(cipher("a"), false).open(&place, stored.clone()).unwrap(), value);
        let broken = Err(CipherError::DoesNotOpen { key: "a".to_owned() });
        let step = Place::StepResult { tenant: "acme", consumer: "payments", key: "k", step: "" };
        for other in [response("acme", "l"), response("globex", "k"), response("acmek", ""), step] {
            assert_eq!(sealer.open(&other, stored.clone()), broken, "{other:?}");
        }
        let no_key = Err(CipherError::NoKey { key: "a".to_owned() });
        assert_eq!(Sealer::new(cipher("b"), true).open(&place, stored.clone()), no_key);
        assert_eq!(Sealer::default().open(&place, stored), no_key);
    }

    #[test]
    fn what_looks_encrypted_comes_back_as_it_was_returned_whether_or_not_it_is_encrypted() {
        let place = response("acme", "k");
        let ours = json!({ "oncely_encrypted": { "key": "a", "value": "aaaa" } });
        for value in [ours.clone(), json!({ "oncely_plain": 1.5 }), json!({ "oncely_plain": ours })] {
            for is_encrypting in [false, true] {
                let sealer = Sealer::new(cipher("a"), is_encrypting);
                let stored = sealer.seal(&place, value.clone()).unwrap();
                assert_ne!(stored, value);
                assert_eq!(sealer.open(&place, stored.clone()).unwrap(), value);
                let text = sealer.seal_text(&place, &value.to_string()).unwrap().unwrap();
                for text in [text, stored.to_string()] {
                    let opened = open_text(cipher("a").as_ref(), &place, &text).unwrap().unwrap();
                    assert_eq!(serde_json::from_str::<Value>(&opened).unwrap(), value);
                }
            }
        }
        // An array that a struct could be read from.
        for value in [json!([["a", "aaaa"]]), json!({ "oncely_encrypted": ["a", "aaaa"] })] {
            assert_eq!(open_text(None, &place, &value.to_string()).unwrap(), None, "{value}");
        }
    }

    #[test]
    fn what_is_not_encrypted_is_left_as_it_is() {
        let place = response("acme", "k");
        let plain = Sealer::new(cipher("a"), false);
        for value in
            [json!(null), json!(1), json!({ "oncely_encrypted": 1 }), json!({ "key": "a", "value": "" })]
        {
            assert_eq!(plain.seal(&place, value.clone()).unwrap(), value);
            assert_eq!(plain.open(&place, value.clone()).unwrap(), value);
        }
        assert_eq!(plain.seal_text(&place, "1e999").unwrap(), None);
        assert_eq!(open_text(None, &place, "1e999").unwrap(), None);
        assert!(Sealer::new(None, true).seal(&place, json!(1)).is_err());
    }
}
