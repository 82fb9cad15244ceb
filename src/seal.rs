//! An identity that a retried copy carries with it, so that it keeps the identity of its original.
//!
//! A copy that the worker publishes for a later try can't carry the broker-validated `user_id` of its original (the broker
//! checks it against *our* user), and no header of an ordinary message may replace it: anybody could set one. So the
//! worker seals the identity with a key that only workers know.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::identity::{Identity, IdentityPart};

/// Header of a sealed identity.
pub(crate) const SEAL_HEADER: &str = "x-oncely-seal";

/// The key of the seals.
#[derive(Clone)]
pub(crate) struct SealKey([u8; 32]);

#[derive(Deserialize, Serialize)]
struct Sealed {
    tenant: String,
    key: String,
    user_id: Option<String>,
}

impl SealKey {
    pub(crate) fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key("oncely 2026-11-20 retry seal v1", secret))
    }

    fn mac(&self, consumer: &IdentityPart, body: &[u8], content: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [consumer.as_str().as_bytes(), &Sha256::digest(body), content.as_bytes()] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }

    /// The header's value for a copy of a message with this body.
    pub(crate) fn seal(&self, identity: &Identity, user_id: Option<&str>, body: &[u8]) -> Option<String> {
        let sealed = Sealed {
            tenant: identity.tenant.as_str().to_owned(),
            key: identity.key.as_str().to_owned(),
            user_id: user_id.map(str::to_owned),
        };
        let content = serde_json::to_string(&sealed).ok()?;
        Some(format!("{}.{content}", self.mac(&identity.consumer, body, &content).to_hex()))
    }

    /// The identity and the user id in a header's value, if we sealed it, for this consumer and this body.
    pub(crate) fn open(
        &self,
        value: &[u8],
        consumer: &IdentityPart,
        body: &[u8],
    ) -> Option<(Identity, Option<String>)> {
        let (mac, content) = std::str::from_utf8(value).ok()?.split_once('.')?;
        // Compared in constant time by blake3.
        if blake3::Hash::from_hex(mac).ok()? != self.mac(consumer, body, content) {
            return None;
        }
        let sealed: Sealed = serde_json::from_str(content).ok()?;
        let identity = Identity {
            tenant: IdentityPart::new(sealed.tenant.as_bytes()).ok()?,
            consumer: consumer.clone(),
            key: IdentityPart::new(sealed.key.as_bytes()).ok()?,
        };
        Some((identity, sealed.user_id))
    }
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
        assert_eq!(open(&key, &value, "payments", b"body"), Some((identity, Some("shop".into()))));
        assert_eq!(open(&key, &value, "ledger", b"body"), None);
        assert_eq!(open(&key, &value, "payments", b"other"), None);
        assert_eq!(open(&SealKey::derive(b"other"), &value, "payments", b"body"), None);
        assert_eq!(open(&key, &value.replace("acme", "evil"), "payments", b"body"), None);
        for junk in ["", ".", "zz.{}", "x"] {
            assert_eq!(open(&key, junk, "payments", b"body"), None);
        }
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
            prop_assert_eq!(opened, Some((identity.clone(), user)));
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
