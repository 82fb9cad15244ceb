//! Which servers the testbed starts: this machine's own, or those of another Debian release.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A set of server versions. What holds for a whole process holds for the processes that it starts: they learn it from
/// [`Generation::VARIABLE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// What is installed here, or what this machine's package manager installs.
    #[default]
    Host,
    /// Debian 13: PostgreSQL 17, RabbitMQ 4.0, Valkey 8.1, in a root of its own.
    Trixie,
    /// Debian 14, before its release: PostgreSQL 18, RabbitMQ 4.3, Valkey 9, in a root of its own.
    Forky,
}

static CHOSEN: OnceLock<Generation> = OnceLock::new();

impl Generation {
    /// The environment variable that names it; unset or empty is this machine's own. (`ONCELY_…` would be a key of the product's
    /// configuration.)
    pub const VARIABLE: &str = "TESTBED_SERVERS";

    /// All of them.
    const ALL: [Self; 3] = [Self::Host, Self::Trixie, Self::Forky];

    /// Chooses for this process, before any server starts. Processes of its own are told with [`Generation::VARIABLE`].
    ///
    /// # Errors
    /// Where another one was chosen before.
    pub fn choose(self) -> anyhow::Result<()> {
        let chosen = *CHOSEN.get_or_init(|| self);
        anyhow::ensure!(chosen == self, "servers of {chosen} were chosen before");
        Ok(())
    }

    /// The one that counts: what was chosen, else what the environment says.
    ///
    /// # Errors
    /// Where the environment names one that does not exist.
    pub fn current() -> anyhow::Result<Self> {
        if let Some(chosen) = CHOSEN.get() {
            return Ok(*chosen);
        }
        let said = match std::env::var(Self::VARIABLE) {
            Ok(name) if !name.is_empty() => {
                name.parse().map_err(|unknown| anyhow::anyhow!("{}: {unknown}", Self::VARIABLE))?
            }
            _ => Self::Host,
        };
        Ok(*CHOSEN.get_or_init(|| said))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Trixie => "trixie",
            Self::Forky => "forky",
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There are no servers of that name.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "no servers {0:?} are known; there are \"host\" (this machine's own), \"trixie\" (Debian 13) and \"forky\" (Debian 14)"
)]
pub struct UnknownGeneration(String);

impl FromStr for Generation {
    type Err = UnknownGeneration;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|generation| generation.name() == name)
            .ok_or_else(|| UnknownGeneration(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_known_by_its_name_and_no_other() {
        for generation in Generation::ALL {
            assert_eq!(generation.to_string().parse::<Generation>().unwrap(), generation);
        }
        let unknown = "bookworn".parse::<Generation>().unwrap_err().to_string();
        assert!(
            unknown.contains("bookworn") && unknown.contains("trixie") && unknown.contains("forky"),
            "{unknown}"
        );
    }
}
