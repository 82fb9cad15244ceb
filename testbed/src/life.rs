//! The user that a program runs as, and how long it lives.

use std::path::Path;
use std::process::Command;

use crate::spawner;

/// Debian's `nobody`: PostgreSQL refuses to run as root.
pub(crate) const NOBODY: u32 = 65_534;

/// Who a program runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs this process.
    Same,
    /// Nobody where this process is root, else the same.
    Nobody,
}

/// How long a program lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// To its own end.
    Free,
    /// Not longer than this process.
    Bound,
}

impl Life {
    /// A command for a program that lives so.
    pub(crate) fn command(self, program: &Path) -> Command {
        match self {
            Self::Free => Command::new(program),
            Self::Bound => spawner::bound_command(program),
        }
    }
}
