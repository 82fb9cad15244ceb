//! `[cell]`: the database that a process belongs to, and its keys of signatures.

use schemars::JsonSchema;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::Problems;
use super::values::Secret;

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CellTable {
    /// Name of the cell that the database must be (column name of oncely.cell). A worker refuses any other database: a wrong URL would deduplicate
    /// in the wrong place, and effects would run twice.
    pub(crate) name: String,
    /// Signs the identity that a copy for a later try carries, and marks dead letters: 16 bytes or more. By default the database's own keys. Those are
    /// always accepted, and `oncely secrets rotate` replaces them. A signed identity that can't be read is dead-lettered as signature_invalid; its
    /// headers are not asked instead. A dead letter with an unreadable mark stays in its queue: `oncely failed sweep` counts them, with the reason.
    #[schemars(extend("x-example" = "…"))]
    pub(crate) signing_key: Option<Secret>,
    /// Further accepted keys. To replace a key that is set here: add the new one to known_keys everywhere, then sign with it and move the old one there,
    /// and leave that out when none of its copies is on its way or in a dead-letter queue.
    #[schemars(extend("x-example" = []))]
    pub(crate) known_keys: Option<Vec<Secret>>,
}

impl Default for CellTable {
    fn default() -> Self {
        Self { name: "main".to_owned(), signing_key: None, known_keys: None }
    }
}

/// Name of the cell, the signing key and the further known keys.
pub(crate) struct CellSettings {
    pub(crate) name: String,
    pub(crate) signing_key: Option<SecretString>,
    pub(crate) known_keys: Vec<SecretString>,
}

impl CellTable {
    /// Checks the lengths of the keys, and converts the table.
    pub(crate) fn into_settings(self, problems: &mut Problems) -> CellSettings {
        let known_keys = self.known_keys.unwrap_or_default();
        for (name, keys) in [("signing_key", self.signing_key.as_slice()), ("known_keys", &known_keys)] {
            if keys.iter().any(|key| is_short(&key.0)) {
                problems.add(format!("cell.{name}"), KEY_TOO_SHORT);
            }
        }
        let known_keys = known_keys.into_iter().map(|key| key.0).collect();
        CellSettings { name: self.name, signing_key: self.signing_key.map(|key| key.0), known_keys }
    }
}

/// Problem of a key that is too short.
const KEY_TOO_SHORT: &str = "must have at least 16 bytes, or be left out";

fn is_short(key: &SecretString) -> bool {
    key.expose_secret().len() < 16
}

/// Reports a key of fewer than 16 bytes. `place`: name of its setting.
pub(crate) fn check_key(key: Option<&Secret>, place: &str, problems: &mut Problems) {
    if key.is_some_and(|key| is_short(&key.0)) {
        problems.add(place, KEY_TOO_SHORT);
    }
}
