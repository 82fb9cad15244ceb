//! The user of the console, and the user's role.

use oncely_core::shown;

oncely_core::words! {
    array;
    /// The role of a user in the console. The roles of the database limit it further.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum ConsoleRole {
        /// Can view pages.
        Viewer = "viewer",
        /// Can also act.
        Operator = "operator",
    }
}

impl ConsoleRole {
    /// Parses the role of a token file; `None` for any other word.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A user who has signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) role: ConsoleRole,
}

/// Maximum length of a name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;

impl User {
    /// Creates a user; `None` if the name is empty, too long, or has hidden characters.
    pub(crate) fn new(name: &str, role: ConsoleRole) -> Option<Self> {
        let name = name.trim();
        let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES && shown::escape_value(name) == name;
        fits.then(|| Self { name: name.to_owned(), role })
    }

    /// Returns the name with which the user's actions are recorded.
    pub(crate) fn actor(&self) -> String {
        format!("{}, console", self.name)
    }
}
