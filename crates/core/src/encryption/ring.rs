//! Keys in a file: the first encrypts; each decrypts the values that it encrypted.

use std::fmt;

use chacha20poly1305::aead::{Aead as _, Generate as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use serde::Deserialize;

use super::{Cipher, CipherError, EncryptedValue, Place};

/// Keys by id, for XChaCha20-Poly1305 with random nonces of 192 bits.
pub struct KeyRing {
    keys: Vec<(String, XChaCha20Poly1305)>,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyRing").field(&self.ids()).finish()
    }
}

/// All errors of a key file. They never contain key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct KeyRingError(pub Vec<String>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    keys: Vec<KeyFileEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileEntry {
    id: String,
    key: String,
}

const KEY_DIGITS: usize = 64;
const NONCE_BYTES: usize = 24;

impl KeyRing {
    /// Parses a list of keys in TOML:
    ///
    /// ```toml
    /// [[keys]]          # the first encrypts
    /// id = "2026-11"
    /// key = "…"         # 32 random bytes: openssl rand -hex 32
    /// ```
    ///
    /// # Errors
    /// If the text is invalid: all its errors at once.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        // The parser's error quotes the line, which may hold a key.
        let Ok(file) = toml::from_str::<KeyFile>(text) else {
            let error =
                "is not TOML with a list [[keys]], each with a text `id` and a text `key` and nothing else";
            return Err(KeyRingError(vec![error.to_owned()]));
        };
        let mut errors = Vec::new();
        let mut keys: Vec<(String, XChaCha20Poly1305)> = Vec::new();
        for (index, KeyFileEntry { id, key }) in file.keys.into_iter().enumerate() {
            let name = format!("keys[{index}]");
            if !is_id(&id) {
                errors.push(format!("{name}.id must be 1 to 64 letters, digits, '-', '_' and '.'"));
                continue;
            }
            if keys.iter().any(|(known, _)| *known == id) {
                errors.push(format!("{name}.id {id} is there twice"));
            }
            match parse_key(&key) {
                Some(bytes) => keys.push((id, XChaCha20Poly1305::new(&Key::from(bytes)))),
                None => errors.push(format!(
                    "{name}.key ({id}) must be {KEY_DIGITS} hexadecimal digits: openssl rand -hex 32"
                )),
            }
        }
        if keys.is_empty() && errors.is_empty() {
            errors.push("holds no key".to_owned());
        }
        if errors.is_empty() { Ok(Self { keys }) } else { Err(KeyRingError(errors)) }
    }

    /// Returns the ids of the keys; the first one encrypts.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        self.keys.iter().map(|(id, _)| id.as_str()).collect()
    }
}

fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Parses a key in hexadecimal; `None` if it is not one.
fn parse_key(digits: &str) -> Option<[u8; KEY_DIGITS / 2]> {
    if digits.len() != KEY_DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; KEY_DIGITS / 2];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Builds the associated data of a value: its place, followed by the key's id, so that a row with a changed id does not decrypt either.
fn build_associated_data(place: &Place<'_>, key: &str) -> Vec<u8> {
    [place.to_bytes().as_slice(), key.as_bytes()].concat()
}

impl Cipher for KeyRing {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<EncryptedValue, CipherError> {
        let to_error = |text: &str| CipherError::Other(text.to_owned());
        let (id, cipher) = self.keys.first().ok_or_else(|| to_error("no key"))?;
        let nonce = XNonce::try_generate().map_err(|_| to_error("the system gives no random bytes"))?;
        let aad = build_associated_data(place, id);
        let sealed = cipher
            .encrypt(&nonce, Payload { msg: plain, aad: &aad })
            .map_err(|_| to_error("too long to be encrypted"))?;
        Ok(EncryptedValue { key: id.clone(), bytes: [nonce.as_slice(), &sealed].concat() })
    }

    fn open(&self, place: &Place<'_>, sealed: &EncryptedValue) -> Result<Vec<u8>, CipherError> {
        let Some((id, cipher)) = self.keys.iter().find(|(id, _)| *id == sealed.key) else {
            return Err(CipherError::NoKey { key: sealed.key.clone() });
        };
        let broken = || CipherError::DoesNotOpen { key: id.clone() };
        let (nonce, ciphertext) = sealed.bytes.split_at_checked(NONCE_BYTES).ok_or_else(broken)?;
        let nonce = <[u8; NONCE_BYTES]>::try_from(nonce).map_err(|_| broken())?;
        let aad = build_associated_data(place, id);
        cipher.decrypt(&XNonce::from(nonce), Payload { msg: ciphertext, aad: &aad }).map_err(|_| broken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_with_a_file_of_keys_is_told_at_once_and_no_key_is() {
        let secret = "5ec4e7".repeat(10);
        let errors = |text: &str| {
            let error = KeyRing::parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("5ec4e7"), "{error}");
            error.0
        };
        let good = "ab".repeat(32);
        let text = format!(
            "[[keys]]\nid = \"a\"\nkey = \"{secret}\"\n[[keys]]\nid = \"b b\"\nkey = \"{good}\"\n[[keys]]\nid = \"c\"\nkey = \"{good}\"\n\
             [[keys]]\nid = \"c\"\nkey = \"{good}\""
        );
        assert_eq!(
            errors(&text),
            [
                "keys[0].key (a) must be 64 hexadecimal digits: openssl rand -hex 32",
                "keys[1].id must be 1 to 64 letters, digits, '-', '_' and '.'",
                "keys[3].id c is there twice",
            ]
        );
        assert_eq!(errors(""), ["holds no key"]);
        for text in
            [&format!("key = \"{secret}\""), &secret, &format!("[[keys]]\nid = 1\nkey = \"{secret}\"")]
        {
            assert!(errors(text)[0].starts_with("is not TOML with a list [[keys]]"));
        }
        let ring = KeyRing::parse(&format!("[[keys]]\nid = \"a\"\nkey = \"{good}\"")).unwrap();
        assert_eq!(format!("{ring:?}"), "KeyRing([\"a\"])");
    }
}
