//! JSON that is stored encrypted: an object that holds the ciphertext in its place.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cipher, CipherError, Place, Sealed};

/// As it is stored: `{"oncely_encrypted": {"key": "2026-11", "value": "…"}}`, the value in base64.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    oncely_encrypted: Contents,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    key: String,
    value: String,
}

/// Encrypts what a consumer's handler returns, where its configuration says so, and decrypts what was encrypted before.
#[derive(Clone, Default)]
pub(crate) struct Sealer {
    cipher: Option<Arc<dyn Cipher>>,
    seals: bool,
}

impl Sealer {
    /// `seals`: does it encrypt? What is encrypted already is decrypted all the same.
    pub(crate) fn new(cipher: Option<Arc<dyn Cipher>>, seals: bool) -> Self {
        Self { cipher, seals }
    }

    /// What is stored instead of this value: itself where nothing is to be encrypted.
    pub(crate) fn seal(&self, place: &Place<'_>, value: Value) -> Result<Value, CipherError> {
        match self.seals {
            true => self.envelope(place, &value.to_string()).and_then(|envelope| {
                serde_json::to_value(envelope).map_err(|error| CipherError::Other(error.to_string()))
            }),
            false => Ok(value),
        }
    }

    /// The same for a text that is JSON; `None`: it is stored as it is.
    pub(crate) fn seal_text(&self, place: &Place<'_>, json: &str) -> Result<Option<String>, CipherError> {
        self.seals
            .then(|| {
                let envelope = self.envelope(place, json)?;
                serde_json::to_string(&envelope).map_err(|error| CipherError::Other(error.to_string()))
            })
            .transpose()
    }

    fn envelope(&self, place: &Place<'_>, json: &str) -> Result<Envelope, CipherError> {
        let Some(cipher) = &self.cipher else {
            return Err(CipherError::Other(
                "there is nothing to encrypt with ([encryption] keys)".to_owned(),
            ));
        };
        let Sealed { key, bytes } = cipher.seal(place, json.as_bytes())?;
        Ok(Envelope { oncely_encrypted: Contents { key, value: BASE64.encode(bytes) } })
    }

    /// The value that was stored so.
    pub(crate) fn open(&self, place: &Place<'_>, stored: Value) -> Result<Value, CipherError> {
        match open_text(self.cipher.as_ref(), place, &stored.to_string())? {
            Some(text) => serde_json::from_str(&text).map_err(|error| CipherError::Other(error.to_string())),
            None => Ok(stored),
        }
    }
}

/// The text that was stored so; `None`: it is not encrypted.
pub(crate) fn open_text(
    cipher: Option<&Arc<dyn Cipher>>,
    place: &Place<'_>,
    stored: &str,
) -> Result<Option<String>, CipherError> {
    // Handlers' own JSON is not parsed for it: it may hold numbers that Rust's does not.
    let Ok(Envelope { oncely_encrypted: Contents { key, value } }) = serde_json::from_str(stored) else {
        return Ok(None);
    };
    let Some(cipher) = cipher else { return Err(CipherError::NoKey { key }) };
    let Ok(bytes) = BASE64.decode(value) else { return Err(CipherError::DoesNotOpen { key }) };
    let opened = cipher.open(place, &Sealed { key: key.clone(), bytes })?;
    String::from_utf8(opened).map(Some).map_err(|_| CipherError::DoesNotOpen { key })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        // What was encrypted before the setting was turned off opens as well.
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
