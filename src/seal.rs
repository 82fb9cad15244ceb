//! An identity that a retried copy carries with it, so that it keeps the identity of its original.
//!
//! A copy that the worker publishes for a later try can't carry the broker-validated `user_id` of its original (the broker
//! checks it against *our* user), and no header of an ordinary message may replace it: anybody could set one. So the
//! worker seals the identity with a key that only workers know.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::identity::{Identity, IdentityPart};
use crate::letter::Letter;

/// Header of a sealed identity.
pub(crate) const SEAL_HEADER: &str = "x-oncely-seal";

/// Header that names a dead letter's row: `<id>/<generation>`.
pub(crate) const LETTER_HEADER: &str = "x-oncely-dead-letter";

/// Header that shows that the worker wrote [`LETTER_HEADER`] and [`TENANT_HEADER`] on this very body.
pub(crate) const LETTER_SEAL_HEADER: &str = "x-oncely-dead-letter-seal";

/// Header of a dead letter's tenant; not there where it is not known.
pub(crate) const TENANT_HEADER: &str = "x-oncely-tenant";

/// The key of the seals.
#[derive(Clone)]
pub(crate) struct SealKey {
    retry: [u8; 32],
    letter: [u8; 32],
}

#[derive(Deserialize, Serialize)]
struct Sealed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    user_id: Option<String>,
}

/// What a seal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// `None` where it was not known; the message is asked again.
    pub(crate) identity: Option<Identity>,
    pub(crate) user_id: Option<String>,
}

impl SealKey {
    pub(crate) fn derive(secret: &[u8]) -> Self {
        Self {
            retry: blake3::derive_key("oncely 2026-11-20 retry seal v1", secret),
            letter: blake3::derive_key("oncely 2026-11-20 dead letter seal v1", secret),
        }
    }

    fn mac(&self, consumer: &IdentityPart, body: &[u8], content: &str) -> blake3::Hash {
        keyed(&self.retry, &[consumer.as_str().as_bytes(), &Sha256::digest(body), content.as_bytes()])
    }

    /// The header's value for a copy of a message with this body.
    pub(crate) fn seal(&self, identity: &Identity, user_id: Option<&str>, body: &[u8]) -> Option<String> {
        let sealed = Sealed {
            tenant: Some(identity.tenant.as_str().to_owned()),
            key: Some(identity.key.as_str().to_owned()),
            user_id: user_id.map(str::to_owned),
        };
        self.close(&sealed, &identity.consumer, body)
    }

    /// The same for a message whose identity is not known: its user id alone.
    pub(crate) fn seal_user(&self, consumer: &IdentityPart, user_id: &str, body: &[u8]) -> Option<String> {
        self.close(&Sealed { tenant: None, key: None, user_id: Some(user_id.to_owned()) }, consumer, body)
    }

    fn close(&self, sealed: &Sealed, consumer: &IdentityPart, body: &[u8]) -> Option<String> {
        let content = serde_json::to_string(sealed).ok()?;
        Some(format!("{}.{content}", self.mac(consumer, body, &content).to_hex()))
    }

    /// What a header's value holds, if we sealed it, for this consumer and this body.
    pub(crate) fn open(&self, value: &[u8], consumer: &IdentityPart, body: &[u8]) -> Option<Opened> {
        let (mac, content) = std::str::from_utf8(value).ok()?.split_once('.')?;
        // Compared in constant time by blake3.
        if blake3::Hash::from_hex(mac).ok()? != self.mac(consumer, body, content) {
            return None;
        }
        let sealed: Sealed = serde_json::from_str(content).ok()?;
        let identity = match (sealed.tenant, sealed.key) {
            (Some(tenant), Some(key)) => Some(Identity {
                tenant: IdentityPart::new(tenant.as_bytes()).ok()?,
                consumer: consumer.clone(),
                key: IdentityPart::new(key.as_bytes()).ok()?,
            }),
            _ => None,
        };
        Some(Opened { identity, user_id: sealed.user_id })
    }

    fn mark_of(&self, letter: Letter, tenant: &str, body: &[u8]) -> blake3::Hash {
        keyed(&self.letter, &[letter.to_string().as_bytes(), tenant.as_bytes(), body])
    }

    /// Marks a dead letter, so that no publisher can have a sweep take a message of his for another one.
    pub(crate) fn mark(&self, letter: Letter, tenant: &str, body: &[u8]) -> String {
        self.mark_of(letter, tenant, body).to_hex().to_string()
    }

    /// Did we mark it?
    pub(crate) fn is_mark(&self, mark: &str, letter: Letter, tenant: &str, body: &[u8]) -> bool {
        blake3::Hash::from_hex(mark).is_ok_and(|mark| mark == self.mark_of(letter, tenant, body))
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(text: &str) -> IdentityPart {
        IdentityPart::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_our_seal_on_this_body_for_this_consumer_opens() {
        let key = SealKey::derive(b"secret");
        let identity = Identity { tenant: part("acme"), consumer: part("payments"), key: part("k\u{1}\"") };
        let value = key.seal(&identity, Some("shop"), b"body").unwrap();
        let open = |key: &SealKey, value: &str, consumer: &str, body: &[u8]| {
            key.open(value.as_bytes(), &part(consumer), body)
        };
        assert_eq!(
            open(&key, &value, "payments", b"body"),
            Some(Opened { identity: Some(identity), user_id: Some("shop".into()) })
        );
        assert_eq!(open(&key, &value, "ledger", b"body"), None);
        assert_eq!(open(&key, &value, "payments", b"other"), None);
        assert_eq!(open(&SealKey::derive(b"other"), &value, "payments", b"body"), None);
        assert_eq!(open(&key, &value.replace("acme", "evil"), "payments", b"body"), None);
        for junk in ["", ".", "zz.{}", "x"] {
            assert_eq!(open(&key, junk, "payments", b"body"), None);
        }
    }
    #[test]
    fn a_user_is_sealed_where_the_identity_is_not_known() {
        let key = SealKey::derive(b"secret");
        let value = key.seal_user(&part("payments"), "shop", b"body").unwrap();
        let opened = Opened { identity: None, user_id: Some("shop".into()) };
        assert_eq!(key.open(value.as_bytes(), &part("payments"), b"body"), Some(opened));
        assert_eq!(key.open(value.as_bytes(), &part("ledger"), b"body"), None);
    }

    #[test]
    fn a_dead_letters_mark_fits_its_letter_tenant_and_body_only() {
        let key = SealKey::derive(b"secret");
        let letter = Letter { id: uuid::Uuid::from_u128(7), generation: 1 };
        let next = Letter { generation: 2, ..letter };
        let mark = key.mark(letter, "acme", b"body");
        assert!(key.is_mark(&mark, letter, "acme", b"body"));
        assert!(!key.is_mark(&mark, next, "acme", b"body"));
        assert!(!key.is_mark(&mark, letter, "globex", b"body"));
        assert!(!key.is_mark(&mark, letter, "acme", b"other"));
        assert!(!SealKey::derive(b"other").is_mark(&mark, letter, "acme", b"body"));
        assert!(!key.is_mark("", letter, "acme", b"body"));
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_found_and_no_bit_of_it_can_be_changed(
            tenant in "[^\u{0}]{1,60}",
            key in "[^\u{0}]{1,60}",
            user in prop::option::of(".{0,20}"),
            body in prop::collection::vec(any::<u8>(), 0..50),
            flip in any::<prop::sample::Index>(),
        ) {
            let seal_key = SealKey::derive(b"secret");
            let identity = Identity { tenant: part(&tenant), consumer: part("payments"), key: part(&key) };
            let sealed = seal_key.seal(&identity, user.as_deref(), &body).unwrap();
            let opened = seal_key.open(sealed.as_bytes(), &identity.consumer, &body);
            prop_assert_eq!(opened, Some(Opened { identity: Some(identity.clone()), user_id: user }));
            let mut forged = sealed.into_bytes();
            let bit = flip.index(forged.len() * 8);
            forged[bit / 8] ^= 1 << (bit % 8);
            // The other case of a hexadecimal digit is the same seal.
            let opened = seal_key.open(&forged, &identity.consumer, &body);
            let same_digit = bit % 8 == 5 && bit / 8 < 64 && forged[bit / 8].is_ascii_uppercase();
            prop_assert_eq!(opened.is_some(), same_digit);
            let mut body = body;
            body.push(0);
            prop_assert_eq!(seal_key.open(&forged, &identity.consumer, &body), None);
        }
    }
}
