//! The parts of a mirror entry: a keyed tag, and evidence that its writer has the key.

use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;

/// 128 bits of keyed BLAKE3 over epoch, identity and fingerprint. Another payload, epoch, tenant or key gives another tag, which is not
/// found; without the key no tag can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub [u8; Tag::BYTES]);

impl Tag {
    /// Length in bytes.
    pub const BYTES: usize = 16;

    /// Returns the part that selects the bucket.
    pub(super) fn bucket_part(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the part that a look-up sends. It only finds the entry; the evidence distinguishes two tags with the same field.
    pub(super) fn field(&self) -> [u8; 8] {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        [a, b, c, d, e, f, g, h]
    }
}

/// The value stored under a tag: 64 bits of keyed BLAKE3 over the whole tag and the name of its bucket. No look-up sends it, so an attacker
/// who sees look-ups, or may write to Redis, has one chance in 2^64 per try. A copy of a real one is valid only in its own bucket, so only
/// for its own tag and no longer than the entry itself.
#[derive(Clone, Copy)]
pub(super) struct Evidence(u64);

impl Evidence {
    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Returns whether the evidence equals the value found. Compares at once, so that the time reveals nothing.
    pub(super) fn matches(self, found: &[u8]) -> bool {
        found.try_into().is_ok_and(|found| u64::from_be_bytes(found) == self.0)
    }
}

/// The key of the tags, and the key of the evidence.
#[derive(Clone)]
pub struct TagKey {
    tags: [u8; 32],
    evidence: [u8; 32],
}

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TagKey([REDACTED])")
    }
}

impl TagKey {
    /// Derives a key from a secret of any length.
    #[must_use]
    pub fn derive(secret: &[u8]) -> Self {
        // The context is hard-coded, unique and dated, as BLAKE3's derive_key requires; a new layout gets a new one.
        Self {
            tags: blake3::derive_key("oncely 2026-11-20 mirror tag v1", secret),
            evidence: blake3::derive_key("oncely 2026-11-22 mirror evidence v1", secret),
        }
    }

    /// Computes the tag of a completed key. Lengths precede contents, so that no two identities share an input.
    #[must_use]
    pub fn tag(&self, epoch: &str, identity: &Identity, fingerprint: Option<&Fingerprint>) -> Tag {
        let mut hasher = blake3::Hasher::new_keyed(&self.tags);
        let print: &[u8] = fingerprint.map_or(&[], |print| &print.0);
        for part in [
            epoch.as_bytes(),
            identity.tenant.as_str().as_bytes(),
            identity.consumer.as_str().as_bytes(),
            identity.key.as_str().as_bytes(),
            print,
        ] {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let mut tag = [0; Tag::BYTES];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..Tag::BYTES]);
        Tag(tag)
    }

    /// Computes the value that must stand under a tag in the bucket of this name.
    pub(super) fn evidence(&self, tag: &Tag, bucket: &str) -> Evidence {
        let mut hasher = blake3::Hasher::new_keyed(&self.evidence);
        hasher.update(&tag.0).update(bucket.as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
        Evidence(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncely_core::identity::IdentityPart;
    use proptest::prelude::*;

    fn identity(parts: [&str; 3]) -> Identity {
        let [tenant, consumer, key] = parts.map(|part| IdentityPart::new(part.as_bytes()).unwrap());
        Identity { tenant, consumer, key }
    }

    #[test]
    fn everything_counts() {
        let key = TagKey::derive(b"secret");
        let print = Fingerprint::new([0; 4], [7; 12]);
        let base = key.tag("e1", &identity(["t", "c", "k"]), Some(&print));
        assert_eq!(base, key.tag("e1", &identity(["t", "c", "k"]), Some(&print)));
        for other in [
            key.tag("e2", &identity(["t", "c", "k"]), Some(&print)),
            key.tag("e1", &identity(["u", "c", "k"]), Some(&print)),
            key.tag("e1", &identity(["t", "d", "k"]), Some(&print)),
            key.tag("e1", &identity(["t", "c", "l"]), Some(&print)),
            key.tag("e1", &identity(["t", "c", "k"]), Some(&Fingerprint::new([0; 4], [8; 12]))),
            key.tag("e1", &identity(["t", "c", "k"]), None),
            TagKey::derive(b"other").tag("e1", &identity(["t", "c", "k"]), Some(&print)),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn evidence_is_of_one_tag_in_one_bucket_and_of_one_key() {
        let (key, tag) = (TagKey::derive(b"secret"), Tag([7; 16]));
        let evidence = key.evidence(&tag, "oncely:2:1:1:1:0");
        assert!(evidence.matches(&evidence.to_bytes()));
        for other in [
            // Another tag that is looked up by the same field.
            key.evidence(&Tag([9, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]), "oncely:2:1:1:1:0"),
            // A later window: a copied entry is invalid once its window is over.
            key.evidence(&tag, "oncely:2:1:1:2:0"),
            TagKey::derive(b"other").evidence(&tag, "oncely:2:1:1:1:0"),
        ] {
            assert!(!evidence.matches(&other.to_bytes()));
        }
        for junk in [&b""[..], b"1", &tag.0, &tag.field(), &evidence.to_bytes()[..7]] {
            assert!(!evidence.matches(junk));
        }
    }

    proptest! {
        /// "a:b" + "c" differs from "a" + "b:c" for all contents of the parts.
        #[test]
        fn different_identities_have_different_tags(
            left in prop::array::uniform3("[a:]{1,4}"),
            right in prop::array::uniform3("[a:]{1,4}"),
        ) {
            let key = TagKey::derive(b"secret");
            let of = |parts: &[String; 3]| key.tag("e", &identity([&parts[0], &parts[1], &parts[2]]), None);
            prop_assert_eq!(of(&left) == of(&right), left == right);
        }
    }
}
