//! What is stored encrypted, with a key that the database never sees. Pure: no I/O.
//!
//! A stored value names the key that encrypted it, and is bound to the place where it stands: what was moved to another row does not open.

mod ring;
mod sealer;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::identity::Identity;

pub use self::ring::{KeyRing, KeyRingError};
pub(crate) use self::sealer::{Sealer, open_text};

/// Where a value is stored: bound to what is stored there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Place<'a> {
    /// The body of a dead letter, in `oncely.dead_letters`. Tenant and key are empty where the message had no valid one.
    #[non_exhaustive]
    LetterBody {
        /// Whose message.
        tenant: &'a str,
        /// For which consumer.
        consumer: &'a str,
        /// Which message.
        key: &'a str,
        /// The queue it came from, and where it is published again.
        queue: &'a str,
        /// The letter's id.
        letter: Uuid,
    },
    /// What a handler returned, in `response` of `oncely.idempotency_keys`.
    #[non_exhaustive]
    Response {
        /// Whose message.
        tenant: &'a str,
        /// For which consumer.
        consumer: &'a str,
        /// Which message.
        key: &'a str,
    },
    /// What a step under a lease brought, in `steps` of `oncely.idempotency_keys`.
    #[non_exhaustive]
    StepResult {
        /// Whose message.
        tenant: &'a str,
        /// For which consumer.
        consumer: &'a str,
        /// Which message.
        key: &'a str,
        /// The step's name.
        step: &'a str,
    },
}

impl<'a> Place<'a> {
    pub(crate) fn response(identity: &'a Identity) -> Self {
        let Identity { tenant, consumer, key } = identity;
        Self::Response { tenant: tenant.as_str(), consumer: consumer.as_str(), key: key.as_str() }
    }

    pub(crate) fn step_result(identity: &'a Identity, step: &'a str) -> Self {
        let Identity { tenant, consumer, key } = identity;
        Self::StepResult { tenant: tenant.as_str(), consumer: consumer.as_str(), key: key.as_str(), step }
    }
}

impl Place<'_> {
    /// The place as bytes, the same for no two places: what an AEAD takes as associated data.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (what, parts): (&[u8], Vec<&[u8]>) = match self {
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
        let mut bytes = what.to_vec();
        for part in parts {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part);
        }
        bytes
    }
}

/// What a [`Cipher`] made of a value.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the key that opens it: up to 255 bytes, seen by whoever may read the row.
    pub key: String,
    /// What opens it needs besides that key: the nonce, the ciphertext.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("key", &self.key).field("bytes", &self.bytes.len()).finish()
    }
}

/// Encrypts what is stored. [`KeyRing`] is one whose keys are in a file; an embedding program may bring its own
/// ([`WorkerBuilder::cipher`](crate::worker::WorkerBuilder::cipher)).
///
/// Called in the transaction of a batch, so it must not wait: keys of a service are fetched before.
pub trait Cipher: Send + Sync + 'static {
    /// Encrypts a value for the place where it will stand.
    ///
    /// # Errors
    /// When it can't: the message is then not stored, and is in its dead-letter queue alone.
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CipherError>;

    /// Decrypts a value that stands at a place.
    ///
    /// # Errors
    /// When the key is not there, or the value was made with another one, for another place, or was changed.
    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CipherError>;
}

/// Why a value can't be encrypted or decrypted. It names keys by their ids, and nothing of them or of the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// The key is not in the ring.
    #[error("encrypted with key {key:?}, which this process does not have ([encryption] keys)")]
    NoKey {
        /// Its id.
        key: String,
    },
    /// It does not open, though the key is there.
    #[error(
        "encrypted with key {key:?}, and does not open: it was changed, stands in another place, or another key has this id"
    )]
    DoesNotOpen {
        /// Its id.
        key: String,
    },
    /// Whatever else.
    #[error("{0}")]
    Other(String),
}

/// What stands before each encrypted value: a version, so that a later layout is told from this one.
const ENVELOPE: &[u8] = b"oncely\0\x01";

/// A value as a row holds it: its bytes, and the id of the key where it is encrypted.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    key: Option<String>,
    bytes: Vec<u8>,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("key", &self.key).field("bytes", &self.bytes.len()).finish()
    }
}

impl Stored {
    /// As it was read.
    pub(crate) fn read(bytes: Vec<u8>, key: Option<String>) -> Self {
        Self { key, bytes }
    }

    /// As it is to be written: encrypted where there is a cipher.
    pub(crate) fn seal(
        cipher: Option<&Arc<dyn Cipher>>,
        place: &Place<'_>,
        plain: &[u8],
    ) -> Result<Self, CipherError> {
        let Some(cipher) = cipher else { return Ok(Self { key: None, bytes: plain.to_vec() }) };
        let sealed = cipher.seal(place, plain)?;
        Ok(Self { key: Some(sealed.key), bytes: [ENVELOPE, &sealed.bytes].concat() })
    }

    /// The id of the key, where it is encrypted. Both have to say so: a program that knows nothing of encryption writes a body anew and leaves
    /// the key's id as it was.
    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref().filter(|_| self.bytes.starts_with(ENVELOPE))
    }

    /// The column of the key's id and that of the bytes.
    pub(crate) fn columns(self) -> (Option<String>, Vec<u8>) {
        (self.key, self.bytes)
    }

    /// The value.
    pub(crate) fn open(
        &self,
        cipher: Option<&Arc<dyn Cipher>>,
        place: &Place<'_>,
    ) -> Result<Cow<'_, [u8]>, CipherError> {
        let Some(key) = self.key() else { return Ok(Cow::Borrowed(&self.bytes)) };
        let Some(cipher) = cipher else { return Err(CipherError::NoKey { key: key.to_owned() }) };
        let bytes = self.bytes.get(ENVELOPE.len()..).unwrap_or_default().to_vec();
        cipher.open(place, &Sealed { key: key.to_owned(), bytes }).map(Cow::Owned)
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
        let stored = Stored::seal(Some(&cipher), &place("acme", "k"), b"secret").unwrap();
        assert_eq!(stored.key(), Some("a"));
        assert!(!stored.bytes.windows(6).any(|part| part == b"secret"));
        assert_eq!(stored.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), b"secret");
        let broken = Err(CipherError::DoesNotOpen { key: "a".to_owned() });
        let elsewhere = [
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
        for other in &elsewhere {
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
            let short = Stored { bytes: stored.bytes[..length].to_vec(), ..stored.clone() };
            assert_eq!(short.open(Some(&cipher), &place("acme", "k")), broken, "{length} bytes");
        }
    }

    #[test]
    fn the_first_key_seals_and_each_opens_its_own() {
        let old = ring(&[("old", 1)]);
        let stored = Stored::seal(Some(&old), &place("acme", "k"), b"{}").unwrap();
        let both = ring(&[("new", 2), ("old", 1)]);
        assert_eq!(stored.open(Some(&both), &place("acme", "k")).unwrap().as_ref(), b"{}");
        assert_eq!(Stored::seal(Some(&both), &place("acme", "k"), b"{}").unwrap().key(), Some("new"));
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
            let stored = Stored::read(plain.clone(), None);
            assert_eq!(stored.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), plain);
            assert_eq!(Stored::seal(None, &place("acme", "k"), &plain).unwrap(), stored);
            let sealed = Stored::seal(Some(&cipher), &place("acme", "k"), &plain).unwrap();
            assert_eq!(sealed.open(Some(&cipher), &place("acme", "k")).unwrap().as_ref(), plain);
        }
        // Written by a program that knows nothing of it, over one that was encrypted.
        let over = Stored::read(b"{}".to_vec(), Some("a".to_owned()));
        assert_eq!(over.open(None, &place("acme", "k")).unwrap().as_ref(), b"{}");
    }

    #[test]
    fn nothing_is_sealed_twice_alike() {
        let cipher = ring(&[("a", 1)]);
        let seal = || Stored::seal(Some(&cipher), &place("acme", "k"), b"{}").unwrap();
        assert_ne!(seal(), seal());
    }
}
