//! Encryption of stored values with keys that the database never receives. Pure: no I/O.
//!
//! A stored value names the key that encrypted it and is bound to its place: a value moved to another row does not decrypt.

mod ring;
mod sealer;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::identity::Identity;

pub use self::ring::{KeyRing, KeyRingError};
pub use self::sealer::{Sealer, open_text};

/// The place where a value is stored. An encrypted value is bound to it.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The body of a dead letter, in `oncely.dead_letters`. Tenant and key are empty where the message had no valid one.
    LetterBody {
        /// The tenant of the message.
        tenant: &'a str,
        /// The consumer.
        consumer: &'a str,
        /// The key of the message.
        key: &'a str,
        /// The queue that the message came from, and to which it is published again.
        queue: &'a str,
        /// The letter's id.
        letter: Uuid,
    },
    /// A handler's response, in `response` of `oncely.idempotency_keys`.
    Response {
        /// The tenant of the message.
        tenant: &'a str,
        /// The consumer.
        consumer: &'a str,
        /// The key of the message.
        key: &'a str,
    },
    /// The result of a step under a lease, in `steps` of `oncely.idempotency_keys`.
    StepResult {
        /// The tenant of the message.
        tenant: &'a str,
        /// The consumer.
        consumer: &'a str,
        /// The key of the message.
        key: &'a str,
        /// The step's name.
        step: &'a str,
    },
}

impl<'a> Place<'a> {
    #[doc(hidden)]
    pub fn response(identity: &'a Identity) -> Self {
        let Identity { tenant, consumer, key } = identity;
        Self::Response { tenant: tenant.as_str(), consumer: consumer.as_str(), key: key.as_str() }
    }

    #[doc(hidden)]
    pub fn step_result(identity: &'a Identity, step: &'a str) -> Self {
        let Identity { tenant, consumer, key } = identity;
        Self::StepResult { tenant: tenant.as_str(), consumer: consumer.as_str(), key: key.as_str(), step }
    }
}

impl Place<'_> {
    /// Converts the place to bytes, for an AEAD's associated data. Different places have different bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (prefix, parts): (&[u8], Vec<&[u8]>) = match self {
            Self::LetterBody { tenant, consumer, key, queue, letter } => (
                b"oncely letter body 1\0",
                vec![
                    tenant.as_bytes(),
                    consumer.as_bytes(),
                    key.as_bytes(),
                    queue.as_bytes(),
                    letter.as_bytes(),
                ],
            ),
            Self::Response { tenant, consumer, key } => {
                (b"oncely response 1\0", vec![tenant.as_bytes(), consumer.as_bytes(), key.as_bytes()])
            }
            Self::StepResult { tenant, consumer, key, step } => (
                b"oncely step result 1\0",
                vec![tenant.as_bytes(), consumer.as_bytes(), key.as_bytes(), step.as_bytes()],
            ),
        };
        let mut bytes = prefix.to_vec();
        for part in parts {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part);
        }
        bytes
    }
}

/// A value that a [`Cipher`] has encrypted.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptedValue {
    /// The id of the key that decrypts it: up to 255 bytes, visible to every role that may read the row.
    pub key: String,
    /// All else that decryption needs: the nonce and the ciphertext.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for EncryptedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedValue").field("key", &self.key).field("bytes", &self.bytes.len()).finish()
    }
}

/// Encrypts stored values. [`KeyRing`] takes its keys from a file; an embedding program may pass its own implementation to
/// `WorkerBuilder::cipher`.
///
/// It is called in the transaction of a batch, so it must not wait: fetch keys of a remote service beforehand.
pub trait Cipher: Send + Sync + 'static {
    /// Encrypts a value for the place where it will be stored.
    ///
    /// # Errors
    /// If encryption fails: a dead letter's message is then not stored, and is only in its dead-letter queue; a step with a result that could
    /// not be stored is not called.
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<EncryptedValue, CipherError>;

    /// Decrypts a value stored at a place.
    ///
    /// # Errors
    /// [`CipherError::NoKey`] if the key is missing: another process may have it, so a run under a lease that needs the value is retried
    /// without spending an attempt. Any other variant, usually [`CipherError::DoesNotOpen`], if the value was encrypted with another key or for
    /// another place, or was changed: that is a failure of the run.
    fn open(&self, place: &Place<'_>, sealed: &EncryptedValue) -> Result<Vec<u8>, CipherError>;
}

/// An error of encryption or decryption. It names keys by their ids and reveals neither key material nor the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// This process does not have the key.
    #[error("encrypted with key {key:?}, which this process does not have ([encryption] keys)")]
    NoKey {
        /// The id of the key.
        key: String,
    },
    /// The value does not decrypt, though the key is present.
    #[error(
        "encrypted with key {key:?}, and does not open: it was changed, stands in another place, or another key has this id"
    )]
    DoesNotOpen {
        /// The id of the key.
        key: String,
    },
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

/// The prefix of each encrypted value. Its version byte distinguishes later layouts.
const ENVELOPE: &[u8] = b"oncely\0\x01";

/// A value as stored in a row: its bytes, and the id of the key if it is encrypted.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredValue {
    key: Option<String>,
    bytes: Vec<u8>,
}

impl fmt::Debug for StoredValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredValue").field("key", &self.key).field("bytes", &self.bytes.len()).finish()
    }
}

impl StoredValue {
    /// Creates a value from the columns of a row: its bytes, and the id of the key that encrypted them, `None` for a plain value.
    #[doc(hidden)]
    pub fn from_columns(bytes: Vec<u8>, key: Option<String>) -> Self {
        Self { key, bytes }
    }

    /// Prepares a value for storing; encrypts it if there is a cipher.
    ///
    /// # Errors
    /// If encryption fails.
    #[doc(hidden)]
    pub fn seal(
        cipher: Option<&Arc<dyn Cipher>>,
        place: &Place<'_>,
        plain: &[u8],
    ) -> Result<Self, CipherError> {
        let Some(cipher) = cipher else { return Ok(Self { key: None, bytes: plain.to_vec() }) };
        let sealed = cipher.seal(place, plain)?;
        Ok(Self { key: Some(sealed.key), bytes: [ENVELOPE, &sealed.bytes].concat() })
    }

    /// Returns the key's id; `None` if the value is not encrypted. Both column and prefix must indicate encryption: a program without it
    /// overwrites the body and leaves the key's id unchanged.
    #[doc(hidden)]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref().filter(|_| self.bytes.starts_with(ENVELOPE))
    }

    /// Converts the value into the columns of a row: the id of the key that encrypted it, `None` for a plain value, and its bytes.
    #[doc(hidden)]
    pub fn into_columns(self) -> (Option<String>, Vec<u8>) {
        (self.key, self.bytes)
    }

    /// Returns the plain value; decrypts it if it is encrypted.
    ///
    /// # Errors
    /// If the value is encrypted, and its key is missing or does not decrypt it at this place.
    #[doc(hidden)]
    pub fn open(
        &self,
        cipher: Option<&Arc<dyn Cipher>>,
        place: &Place<'_>,
    ) -> Result<Cow<'_, [u8]>, CipherError> {
        let Some(key) = self.key() else { return Ok(Cow::Borrowed(&self.bytes)) };
        let Some(cipher) = cipher else { return Err(CipherError::NoKey { key: key.to_owned() }) };
        let bytes = self.bytes.get(ENVELOPE.len()..).unwrap_or_default().to_vec();
        cipher.open(place, &EncryptedValue { key: key.to_owned(), bytes }).map(Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(ids: &[(&str, u8)]) -> Arc<dyn Cipher> {
        let keys: Vec<String> = ids
            .iter()
            .map(|(id, byte)| {
                format!("[[keys]]\nid = {id:?}\nkey = \"{}\"", format!("{byte:02x}").repeat(32))
            })
            .collect();
        Arc::new(KeyRing::parse(&keys.join("\n")).unwrap())
    }

    fn place<'a>(tenant: &'a str, key: &'a str) -> Place<'a> {
        Place::LetterBody { tenant, consumer: "payments", key, queue: "payments", letter: Uuid::nil() }
    }

    #[test]
    fn what_is_sealed_opens_where_it_stands_and_nowhere_else() {
        let cipher = ring(&[("a", 1)]);
        let stored = StoredValue::seal(Some(&cipher), &place("acme", "k"), b"secret").unwrap();
        assert_eq!(stored.key(), Some("a"));
        assert!(!stored.bytes.windows(6).any(|part| part == b"secret"));
        assert_eq!(stored.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), b"secret");
        let broken = Err(CipherError::DoesNotOpen { key: "a".to_owned() });
        let other_places = [
            place("globex", "k"),
            place("acme", "l"),
            place("acmek", ""),
            Place::LetterBody {
                tenant: "acme",
                consumer: "refunds",
                key: "k",
                queue: "payments",
                letter: Uuid::nil(),
            },
            Place::LetterBody {
                tenant: "acme",
                consumer: "payments",
                key: "k",
                queue: "stolen",
                letter: Uuid::nil(),
            },
            Place::LetterBody {
                tenant: "acme",
                consumer: "payments",
                key: "k",
                queue: "payments",
                letter: Uuid::max(),
            },
        ];
        for other in &other_places {
            assert_eq!(stored.open(Some(&cipher), other), broken, "{other:?}");
        }
        for bit in 0..stored.bytes.len() * 8 {
            let mut changed = stored.clone();
            changed.bytes[bit / 8] ^= 1 << (bit % 8);
            if changed.key().is_some() {
                assert_eq!(changed.open(Some(&cipher), &place("acme", "k")), broken, "bit {bit}");
            }
        }
        for length in ENVELOPE.len()..stored.bytes.len() {
            let short = StoredValue { bytes: stored.bytes[..length].to_vec(), ..stored.clone() };
            assert_eq!(short.open(Some(&cipher), &place("acme", "k")), broken, "{length} bytes");
        }
    }

    #[test]
    fn the_first_key_seals_and_each_opens_its_own() {
        let old = ring(&[("old", 1)]);
        let stored = StoredValue::seal(Some(&old), &place("acme", "k"), b"{}").unwrap();
        let both = ring(&[("new", 2), ("old", 1)]);
        assert_eq!(stored.open(Some(&both), &place("acme", "k")).unwrap().as_ref(), b"{}");
        assert_eq!(StoredValue::seal(Some(&both), &place("acme", "k"), b"{}").unwrap().key(), Some("new"));
        let missing = Err(CipherError::NoKey { key: "old".to_owned() });
        assert_eq!(stored.open(Some(&ring(&[("new", 2)])), &place("acme", "k")), missing);
        assert_eq!(stored.open(None, &place("acme", "k")), missing);
        // Another key under the same id.
        let other = stored.open(Some(&ring(&[("old", 3)])), &place("acme", "k"));
        assert_eq!(other, Err(CipherError::DoesNotOpen { key: "old".to_owned() }));
    }

    #[test]
    fn what_is_plain_stays_as_it_is_whatever_it_looks_like() {
        let cipher = ring(&[("a", 1)]);
        let looks_so = [ENVELOPE, b"junk"].concat();
        for plain in [b"{}".to_vec(), looks_so, Vec::new()] {
            let stored = StoredValue::from_columns(plain.clone(), None);
            assert_eq!(stored.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), plain);
            assert_eq!(StoredValue::seal(None, &place("acme", "k"), &plain).unwrap(), stored);
            let sealed = StoredValue::seal(Some(&cipher), &place("acme", "k"), &plain).unwrap();
            assert_eq!(sealed.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), plain);
        }
        // Written by a program without encryption, over a value that was encrypted.
        let over = StoredValue::from_columns(b"{}".to_vec(), Some("a".to_owned()));
        assert_eq!(over.open(None, &place("acme", "k")).unwrap().as_ref(), b"{}");
    }

    #[test]
    fn nothing_is_sealed_twice_alike() {
        let cipher = ring(&[("a", 1)]);
        let seal = || StoredValue::seal(Some(&cipher), &place("acme", "k"), b"{}").unwrap();
        assert_ne!(seal(), seal());
    }
}
