//! The one thing that a mirror entry is: a keyed tag.

use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::plant::planted;

/// 128 bits of keyed BLAKE3 over epoch, identity and fingerprint. Another payload, history, tenant or key gives another
/// tag, so it is simply not there; without the key no tag can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub [u8; Tag::BYTES]);

impl Tag {
    /// Length in bytes.
    pub const BYTES: usize = 16;
}

/// The key of the tags.
#[derive(Clone)]
pub struct TagKey([u8; 32]);

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TagKey([REDACTED])")
    }
}

impl TagKey {
    /// A key from a secret of any length.
    #[must_use]
    pub fn derive(secret: &[u8]) -> Self {
        // The context is hard-coded, unique and dated, as BLAKE3's derive_key asks; a new layout gets a new one.
        Self(blake3::derive_key("oncely 2026-11-20 mirror tag v1", secret))
    }

    /// The tag of a completed key. Lengths come before contents, so that no two identities share an input.
    #[must_use]
    pub fn tag(&self, epoch: &str, identity: &Identity, fingerprint: Option<&Fingerprint>) -> Tag {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let epoch = if planted("no_epoch") { "" } else { epoch };
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityPart;
    use proptest::prelude::*;

    fn identity(parts: [&str; 3]) -> Identity {
        let [tenant, consumer, key] = parts.map(|part| IdentityPart::new(part.as_bytes()).unwrap());
        Identity { tenant, consumer, key }
    }

    #[test]
    fn everything_counts() {
        let key = TagKey::derive(b"secret");
        let print = Fingerprint::new([0; 4], [7; 16]);
        let base = key.tag("e1", &identity(["t", "c", "k"]), Some(&print));
        assert_eq!(base, key.tag("e1", &identity(["t", "c", "k"]), Some(&print)));
        for other in [
            key.tag("e2", &identity(["t", "c", "k"]), Some(&print)),
            key.tag("e1", &identity(["u", "c", "k"]), Some(&print)),
            key.tag("e1", &identity(["t", "d", "k"]), Some(&print)),
            key.tag("e1", &identity(["t", "c", "l"]), Some(&print)),
            key.tag("e1", &identity(["t", "c", "k"]), Some(&Fingerprint::new([0; 4], [8; 16]))),
            key.tag("e1", &identity(["t", "c", "k"]), None),
            TagKey::derive(b"other").tag("e1", &identity(["t", "c", "k"]), Some(&print)),
        ] {
            assert_ne!(base, other);
        }
    }

    proptest! {
        /// "a:b" + "c" is not "a" + "b:c", whatever the parts hold.
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
