//! `[encryption]`: keys for stored bodies.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use oncely_core::encryption::{Cipher, KeyRing};

/// Encryption of stored bodies.
#[derive(Clone)]
#[non_exhaustive]
pub struct EncryptionSettings {
    /// File of the keys; `None` with the embedding program's own cipher.
    pub keys: Option<PathBuf>,
    /// Ids of the keys in it.
    pub ids: Vec<String>,
    /// Cipher that encrypts and decrypts.
    pub cipher: Arc<dyn Cipher>,
}

impl EncryptionSettings {
    /// Creates settings with the program's own cipher.
    #[must_use]
    pub fn with_cipher(cipher: Arc<dyn Cipher>) -> Self {
        Self { keys: None, ids: Vec::new(), cipher }
    }

    /// Reads a file of keys.
    fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{} can't be read: {}", path.display(), error.kind()))?;
        let ring = KeyRing::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let ids = ring.ids().into_iter().map(str::to_owned).collect();
        Ok(Self { keys: Some(path.to_owned()), ids, cipher: Arc::new(ring) })
    }
}

impl fmt::Debug for EncryptionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, ids, .. } = self;
        f.debug_struct("EncryptionSettings").field("keys", keys).field("ids", ids).finish_non_exhaustive()
    }
}

#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EncryptionTable {
    /// A file of keys with which the bodies of dead letters are encrypted before the database sees them (docs/src/how-to/encryption.md). The first key of
    /// the file encrypts; each decrypts the bodies that it has encrypted. Workers need it to write; processes that show or requeue dead letters need it to
    /// read. Without it bodies are stored as they come. Read at the start.
    #[schemars(extend("x-example" = "/etc/oncely/keys.toml"))]
    keys: Option<PathBuf>,
}

impl EncryptionTable {
    /// Reads the file of keys; `None` if none is named, or if it is invalid, which is reported.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> Option<EncryptionSettings> {
        match EncryptionSettings::read(&self.keys?) {
            Ok(settings) => Some(settings),
            Err(message) => {
                problems.add("encryption.keys", message);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_is_read_and_nothing_of_a_key_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let debug_text = |settings: &EncryptionSettings| format!("{settings:?}");
        assert!(
            EncryptionSettings::read(&path)
                .unwrap_err()
                .ends_with("keys.toml can't be read: entity not found")
        );
        let key = "5e".repeat(32);
        std::fs::write(&path, format!("[[keys]]\nid = \"a\"\nkey = \"{key}\"")).unwrap();
        let settings = EncryptionSettings::read(&path).unwrap();
        assert_eq!(settings.ids, ["a"]);
        assert!(!debug_text(&settings).contains("5e5e"), "{}", debug_text(&settings));
        std::fs::write(&path, format!("[[keys]]\nid = \"a\"\nkey = \"{}\"", &key[2..])).unwrap();
        let error = EncryptionSettings::read(&path).unwrap_err();
        assert!(
            error.contains("keys[0].key (a) must be 64 hexadecimal digits") && !error.contains("5e5e"),
            "{error}"
        );
    }
}
