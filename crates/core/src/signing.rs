//! A signed identity in a retried copy, so that it keeps the identity of its original.
//!
//! A copy that the worker publishes for a later attempt can't carry the broker-validated `user_id` of its original (the broker checks it
//! against the worker's own user), and no header of an ordinary message may replace it: any publisher could set one. So the worker signs
//! the identity with a key that only workers know.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::identity::{Identity, IdentityPart};
use crate::letter::Letter;

/// Version of the format. A program that meets another version reports it, and does not guess.
const VERSION: &str = "1";

/// The keys of signed identities and letter marks: one of each signs, all are accepted, so that a key can be replaced while copies that it
/// signed are in transit.
#[derive(Clone)]
pub struct SigningKeys {
    identity: PurposeKeys,
    letter: PurposeKeys,
}

/// The keys of one purpose.
#[derive(Clone)]
struct PurposeKeys {
    signing: SigningKey,
    accepted: Vec<SigningKey>,
}

#[derive(Clone)]
struct SigningKey {
    /// Identifies the key, and reveals nothing of it.
    id: String,
    key: [u8; 32],
}

/// A secret of the database.
#[derive(Clone)]
pub struct StoredSecret {
    /// Name of the secret in signatures made with it.
    pub id: String,
    #[doc(hidden)]
    pub secret: Vec<u8>,
}

/// The database's secrets of one purpose.
#[derive(Clone)]
pub struct StoredSecrets {
    /// Secret that signs if the configuration has no other.
    pub signing: StoredSecret,
    /// Secrets that verify signatures, and don't sign.
    pub accepted: Vec<StoredSecret>,
}

/// The signing and accepted secrets of the database at one time.
#[derive(Clone)]
pub struct SigningSecrets {
    #[doc(hidden)]
    pub identity: StoredSecrets,
    #[doc(hidden)]
    pub letter: StoredSecrets,
}

/// Context of the derivation of keys for signed identities.
const IDENTITY_CONTEXT: &str = "oncely 2026-11-22 signed identity v1";
/// Context of the derivation of keys for letter marks.
const LETTER_CONTEXT: &str = "oncely 2026-11-22 dead letter mark v1";

/// The reason why a signed identity or a mark is not accepted. There is no fallback: an attacker who can spoil the
/// signature could choose it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("is malformed")]
    #[doc(hidden)]
    Malformed,
    #[error("has a version that this program does not know: a newer one wrote it")]
    #[doc(hidden)]
    Version,
    #[error("is signed with the key {0}, which is not accepted here (oncely secrets list; cell.known_keys)")]
    #[doc(hidden)]
    Key(String),
    #[error("does not belong to this message, or is forged")]
    #[doc(hidden)]
    Mismatch,
}

#[derive(Deserialize, Serialize)]
struct SignedContent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    user_id: Option<String>,
}

/// Content of a signed identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIdentity {
    /// Identity of the message; `None` if it was unknown when it was signed: the message is identified again.
    pub identity: Option<Identity>,
    #[doc(hidden)]
    pub user_id: Option<String>,
}

impl StoredSecret {
    /// Creates a secret, of a configuration or a test, with an id derived from it.
    fn with_derived_id(secret: &[u8]) -> Self {
        let [a, b, c, d, ..] = blake3::derive_key("oncely 2026-11-22 signing key id v1", secret);
        Self { id: format!("{:08x}", u32::from_be_bytes([a, b, c, d])), secret: secret.to_vec() }
    }
}

impl SigningKey {
    fn derive(context: &str, stored: &StoredSecret) -> Self {
        Self { id: stored.id.clone(), key: blake3::derive_key(context, &stored.secret) }
    }

    /// Formats `<version>.<key id>.<MAC>`, which precedes the content.
    fn format_signature(&self, mac: blake3::Hash) -> String {
        format!("{VERSION}.{}.{}", self.id, mac.to_hex())
    }

    fn compute_identity_mac(&self, consumer: &IdentityPart, body: &[u8], content: &str) -> blake3::Hash {
        hash_with_key(&self.key, &[consumer.as_str().as_bytes(), &Sha256::digest(body), content.as_bytes()])
    }

    fn compute_letter_mac(&self, letter: Letter, tenant: &str, body: &[u8]) -> blake3::Hash {
        hash_with_key(&self.key, &[letter.to_string().as_bytes(), tenant.as_bytes(), body])
    }
}

impl PurposeKeys {
    fn new(context: &str, signing: Option<&[u8]>, accepted: &[&[u8]], stored: &StoredSecrets) -> Self {
        let derive = |stored: &StoredSecret| SigningKey::derive(context, stored);
        let configured = accepted.iter().map(|secret| derive(&StoredSecret::with_derived_id(secret)));
        Self {
            signing: signing
                .map_or_else(|| derive(&stored.signing), |one| derive(&StoredSecret::with_derived_id(one))),
            accepted: configured
                .chain(std::iter::once(&stored.signing).chain(&stored.accepted).map(derive))
                .collect(),
        }
    }

    /// Finds the key of a signature that begins with this version and key id.
    fn find_key(&self, version: &str, id: &str) -> Result<&SigningKey, SignatureError> {
        if version != VERSION {
            let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
            return Err(if is_number { SignatureError::Version } else { SignatureError::Malformed });
        }
        let mut keys = std::iter::once(&self.signing).chain(&self.accepted);
        keys.find(|key| key.id == id).ok_or_else(|| {
            match id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
                true => SignatureError::Key(id.to_owned()),
                false => SignatureError::Malformed,
            }
        })
    }

    /// Returns whether a signature names a signing key that is not among these; `false` if it is malformed or has another version.
    fn lacks_key_of(&self, signature: &str) -> bool {
        let mut parts = signature.splitn(3, '.');
        let (version, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        matches!(self.find_key(version, id), Err(SignatureError::Key(_)))
    }
}

impl SigningKeys {
    /// Combines the configuration's signing key, its accepted keys, and the database's own, which sign if there is no other, and are always
    /// accepted.
    pub fn new(signing: Option<&[u8]>, accepted: &[&[u8]], stored: &SigningSecrets) -> Self {
        Self {
            identity: PurposeKeys::new(IDENTITY_CONTEXT, signing, accepted, &stored.identity),
            letter: PurposeKeys::new(LETTER_CONTEXT, signing, accepted, &stored.letter),
        }
    }

    /// Combines keys as [`new`](Self::new) does, with one secret of the database for every purpose: for tests and fuzzers.
    pub fn derive<'a>(
        signing: Option<&[u8]>,
        accepted: impl IntoIterator<Item = &'a [u8]>,
        secret: &[u8],
    ) -> Self {
        let stored = StoredSecrets { signing: StoredSecret::with_derived_id(secret), accepted: Vec::new() };
        let accepted: Vec<&[u8]> = accepted.into_iter().collect();
        Self::new(signing, &accepted, &SigningSecrets { identity: stored.clone(), letter: stored })
    }

    /// Returns whether the signed identity or the mark of a message names a signing key that is not among these.
    pub fn lacks_key_of(&self, identity: Option<&str>, mark: Option<&str>) -> bool {
        identity.is_some_and(|identity| self.identity.lacks_key_of(identity))
            || mark.is_some_and(|mark| self.letter.lacks_key_of(mark))
    }

    /// Signs the identity and the user id of a message. Returns the value of the header
    /// [`own_headers::IDENTITY`](crate::own_headers::IDENTITY) for copies of the message; it is valid for this consumer and body only.
    /// `None` if it can't be serialised as JSON, which no text causes.
    pub fn sign_identity(&self, identity: &Identity, user_id: Option<&str>, body: &[u8]) -> Option<String> {
        let signed = SignedContent {
            tenant: Some(identity.tenant.as_str().to_owned()),
            key: Some(identity.key.as_str().to_owned()),
            user_id: user_id.map(str::to_owned),
        };
        self.sign_content(&signed, &identity.consumer, body)
    }

    /// Signs the user id of a message with an unknown identity. Returns the value of the header
    /// [`own_headers::IDENTITY`](crate::own_headers::IDENTITY) for copies of the message; it is valid for this consumer and body only.
    /// `None` if it can't be serialised as JSON, which no text causes.
    pub fn sign_user_id(&self, consumer: &IdentityPart, user_id: &str, body: &[u8]) -> Option<String> {
        self.sign_content(
            &SignedContent { tenant: None, key: None, user_id: Some(user_id.to_owned()) },
            consumer,
            body,
        )
    }

    /// Signs a content; returns the header's value. `None` if the content can't be serialised as JSON, which no text causes.
    fn sign_content(&self, signed: &SignedContent, consumer: &IdentityPart, body: &[u8]) -> Option<String> {
        let content = serde_json::to_string(signed).ok()?;
        let key = &self.identity.signing;
        Some(format!(
            "{}.{content}",
            key.format_signature(key.compute_identity_mac(consumer, body, &content))
        ))
    }

    /// Reads the identity from the value of a header that a worker has signed for this consumer and body.
    ///
    /// # Errors
    /// If the signature is not accepted: the reason.
    pub fn read_identity(
        &self,
        value: &[u8],
        consumer: &IdentityPart,
        body: &[u8],
    ) -> Result<SignedIdentity, SignatureError> {
        let text = std::str::from_utf8(value).map_err(|_| SignatureError::Malformed)?;
        let mut parts = text.splitn(4, '.');
        let mut part = || parts.next().ok_or(SignatureError::Malformed);
        let (version, id, mac, content) = (part()?, part()?, part()?, part()?);
        let key = self.identity.find_key(version, id)?;
        check_mac(mac, key.compute_identity_mac(consumer, body, content))?;
        let signed: SignedContent = serde_json::from_str(content).map_err(|_| SignatureError::Malformed)?;
        let to_part = |text: &str| IdentityPart::new(text.as_bytes()).map_err(|_| SignatureError::Malformed);
        let identity = match (signed.tenant, signed.key) {
            (Some(tenant), Some(key)) => {
                Some(Identity { tenant: to_part(&tenant)?, consumer: consumer.clone(), key: to_part(&key)? })
            }
            _ => None,
        };
        Ok(SignedIdentity { identity, user_id: signed.user_id })
    }

    /// Signs a dead letter; returns its mark, so that no publisher can make a sweep confuse one message with another.
    pub fn sign_letter(&self, letter: Letter, tenant: &str, body: &[u8]) -> String {
        self.letter.signing.format_signature(self.letter.signing.compute_letter_mac(letter, tenant, body))
    }

    /// Reads the letter of a message from its two headers, the letter's name and its mark. `None` without a mark: any
    /// publisher could set a name alone.
    ///
    /// # Errors
    /// If the mark is not accepted: the reason.
    pub fn read_mark(
        &self,
        letter: Option<&str>,
        mark: Option<&str>,
        tenant: &str,
        body: &[u8],
    ) -> Result<Option<Letter>, SignatureError> {
        let Some(mark) = mark else { return Ok(None) };
        let mut parts = mark.splitn(3, '.');
        let mut part = || parts.next().ok_or(SignatureError::Malformed);
        let (version, id, mac) = (part()?, part()?, part()?);
        let key = self.letter.find_key(version, id)?;
        let letter = letter.and_then(Letter::parse).ok_or(SignatureError::Mismatch)?;
        check_mac(mac, key.compute_letter_mac(letter, tenant, body))?;
        Ok(Some(letter))
    }
}

/// Checks a MAC in constant time (blake3).
fn check_mac(mac: &str, expected: blake3::Hash) -> Result<(), SignatureError> {
    match blake3::Hash::from_hex(mac).map_err(|_| SignatureError::Malformed)? == expected {
        true => Ok(()),
        false => Err(SignatureError::Mismatch),
    }
}

/// Hashes parts with a key, each after its length.
fn hash_with_key(key: &[u8; 32], parts: &[&[u8]]) -> blake3::Hash {
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
    fn only_our_signature_on_this_body_for_this_consumer_opens() {
        let key = SigningKeys::derive(None, [], b"secret");
        let identity = Identity { tenant: part("acme"), consumer: part("payments"), key: part("k\u{1}\"") };
        let value = key.sign_identity(&identity, Some("shop"), b"body").unwrap();
        let open = |key: &SigningKeys, value: &str, consumer: &str, body: &[u8]| {
            key.read_identity(value.as_bytes(), &part(consumer), body)
        };
        assert_eq!(
            open(&key, &value, "payments", b"body"),
            Ok(SignedIdentity { identity: Some(identity), user_id: Some("shop".into()) })
        );
        assert_eq!(open(&key, &value, "ledger", b"body"), Err(SignatureError::Mismatch));
        assert_eq!(open(&key, &value, "payments", b"other"), Err(SignatureError::Mismatch));
        assert_eq!(
            open(&SigningKeys::derive(None, [], b"other"), &value, "payments", b"body"),
            Err(SignatureError::Key(key.identity.signing.id.clone()))
        );
        assert_eq!(
            open(&key, &value.replace("acme", "evil"), "payments", b"body"),
            Err(SignatureError::Mismatch)
        );
        let newer = value.replacen("1.", "2.", 1);
        assert_eq!(open(&key, &newer, "payments", b"body"), Err(SignatureError::Version));
        for junk in ["", ".", "zz.{}", "x", "...", "1.2.3.4", "1.00000000"] {
            assert_eq!(open(&key, junk, "payments", b"body"), Err(SignatureError::Malformed), "{junk}");
        }
    }

    #[test]
    fn a_key_is_replaced_while_copies_are_on_their_way() {
        let identity = Identity { tenant: part("acme"), consumer: part("payments"), key: part("k") };
        let letter = Letter { id: uuid::Uuid::from_u128(7), generation: 1 };
        let opens = |key: &SigningKeys, value: &str| {
            key.read_identity(value.as_bytes(), &identity.consumer, b"body").is_ok()
        };
        let before = SigningKeys::derive(None, [], b"secret");
        let (old, old_mark) = (
            before.sign_identity(&identity, None, b"body").unwrap(),
            before.sign_letter(letter, "acme", b"body"),
        );
        // Accepted everywhere first, then used to sign.
        let known = SigningKeys::derive(None, [&b"new key"[..]], b"secret");
        let after = SigningKeys::derive(Some(b"new key"), [], b"secret");
        let new = after.sign_identity(&identity, None, b"body").unwrap();
        assert_ne!(old, new);
        let reads = |key: &SigningKeys, mark: &str| {
            key.read_mark(Some(&letter.to_string()), Some(mark), "acme", b"body")
        };
        let new_mark = after.sign_letter(letter, "acme", b"body");
        for key in [&known, &after] {
            assert!(opens(key, &old) && opens(key, &new));
            assert_eq!(reads(key, &old_mark), Ok(Some(letter)));
            assert_eq!(reads(key, &new_mark), Ok(Some(letter)));
        }
        assert_eq!(reads(&before, &new_mark), Err(SignatureError::Key(after.letter.signing.id.clone())));
        assert!(!opens(&before, &new), "who does not have the key says so");
        let third = SigningKeys::derive(Some(b"newer key"), [&b"new key"[..]], b"secret");
        assert!(opens(&third, &new) && opens(&third, &old));
    }

    #[test]
    fn each_purpose_has_its_own_key_and_a_name_that_is_not_here_is_told_from_junk() {
        let ring = |name: &str| {
            let secret = |id: &str| StoredSecret { id: id.to_owned(), secret: name.as_bytes().to_vec() };
            StoredSecrets { signing: secret("00000001"), accepted: vec![secret("00000002")] }
        };
        let stored =
            |identity: &str, letter: &str| SigningSecrets { identity: ring(identity), letter: ring(letter) };
        let key = SigningKeys::new(None, &[], &stored("i", "l"));
        let letter = Letter { id: uuid::Uuid::from_u128(7), generation: 1 };
        let (user, mark) = (
            key.sign_user_id(&part("payments"), "shop", b"body").unwrap(),
            key.sign_letter(letter, "acme", b"body"),
        );
        let open = |key: &SigningKeys| key.read_identity(user.as_bytes(), &part("payments"), b"body").is_ok();
        let read = |key: &SigningKeys| {
            key.read_mark(Some(&letter.to_string()), Some(&mark), "acme", b"body").is_ok()
        };
        let (no_letter, no_identity) =
            (SigningKeys::new(None, &[], &stored("i", "x")), SigningKeys::new(None, &[], &stored("x", "l")));
        assert!(open(&no_letter) && !read(&no_letter) && !open(&no_identity) && read(&no_identity));
        for known in [&user, &mark, "1.00000001.", "1.00000002.ab.{}"] {
            assert!(!key.lacks_key_of(Some(known), Some(known)), "{known}");
        }
        for unknown in ["1.00000003", "1.00000003.ab", "1.fFfFfFfF.ab.{}"] {
            assert!(
                key.lacks_key_of(Some(unknown), None) && key.lacks_key_of(None, Some(unknown)),
                "{unknown}"
            );
        }
        for junk in ["", "1", "1.", "1.0000003.ab", "2.00000003.ab", "x.00000003.ab", "1.0000000g.ab"] {
            assert!(!key.lacks_key_of(Some(junk), Some(junk)), "{junk}");
        }
    }

    #[test]
    fn a_user_is_signed_where_the_identity_is_not_known() {
        let key = SigningKeys::derive(None, [], b"secret");
        let value = key.sign_user_id(&part("payments"), "shop", b"body").unwrap();
        let opened = SignedIdentity { identity: None, user_id: Some("shop".into()) };
        assert_eq!(key.read_identity(value.as_bytes(), &part("payments"), b"body"), Ok(opened));
        assert_eq!(
            key.read_identity(value.as_bytes(), &part("ledger"), b"body"),
            Err(SignatureError::Mismatch)
        );
    }

    #[test]
    fn a_dead_letters_mark_fits_its_letter_tenant_and_body_only() {
        let key = SigningKeys::derive(None, [], b"secret");
        let letter = Letter { id: uuid::Uuid::from_u128(7), generation: 1 };
        let next = Letter { generation: 2, ..letter };
        let mark = key.sign_letter(letter, "acme", b"body");
        let read = |mark: &str, letter: Letter, tenant: &str, body: &[u8]| {
            key.read_mark(Some(&letter.to_string()), Some(mark), tenant, body)
        };
        assert_eq!(read(&mark, letter, "acme", b"body"), Ok(Some(letter)));
        assert_eq!(read(&mark, next, "acme", b"body"), Err(SignatureError::Mismatch));
        assert_eq!(read(&mark, letter, "globex", b"body"), Err(SignatureError::Mismatch));
        assert_eq!(read(&mark, letter, "acme", b"other"), Err(SignatureError::Mismatch));
        assert_eq!(
            read(&mark.replacen("1.", "2.", 1), letter, "acme", b"body"),
            Err(SignatureError::Version)
        );
        for junk in ["", ".", "1", "1..", "x.00000000.00", "1.0000000g.00", &mark[..mark.len() - 1]] {
            assert_eq!(read(junk, letter, "acme", b"body"), Err(SignatureError::Malformed), "{junk}");
        }
        assert_eq!(key.read_mark(Some(&letter.to_string()), None, "acme", b"body"), Ok(None), "a name alone");
        assert_eq!(
            key.read_mark(None, Some(&mark), "acme", b"body"),
            Err(SignatureError::Mismatch),
            "a mark alone"
        );
    }

    proptest! {
        #[test]
        fn what_is_signed_is_found_and_no_bit_of_it_can_be_changed(
            tenant in "[^\u{0}]{1,60}",
            key in "[^\u{0}]{1,60}",
            user in prop::option::of(".{0,20}"),
            body in prop::collection::vec(any::<u8>(), 0..50),
            flip in any::<prop::sample::Index>(),
        ) {
            let signing_keys = SigningKeys::derive(None, [], b"secret");
            let identity = Identity { tenant: part(&tenant), consumer: part("payments"), key: part(&key) };
            let signed = signing_keys.sign_identity(&identity, user.as_deref(), &body).unwrap();
            let opened = signing_keys.read_identity(signed.as_bytes(), &identity.consumer, &body);
            prop_assert_eq!(opened, Ok(SignedIdentity { identity: Some(identity.clone()), user_id: user }));
            let mut forged = signed.into_bytes();
            let bit = flip.index(forged.len() * 8);
            forged[bit / 8] ^= 1 << (bit % 8);
            // The other case of a hexadecimal digit is the same MAC.
            let opened = signing_keys.read_identity(&forged, &identity.consumer, &body);
            let in_mac = (11..75).contains(&(bit / 8));
            let same_digit = bit % 8 == 5 && in_mac && forged[bit / 8].is_ascii_uppercase();
            prop_assert_eq!(opened.is_ok(), same_digit);
            let mut body = body;
            body.push(0);
            prop_assert!(signing_keys.read_identity(&forged, &identity.consumer, &body).is_err());
        }
    }
}
